"""The words and the look of the demo's page; `$names` are filled in by `page.py`."""

from string import Template

STYLE = """
:root {
  color-scheme: light dark;
  --page: light-dark(#f6f6f4, #121417); --card: light-dark(#ffffff, #1b1e23); --ink: light-dark(#1a1d21, #e9ebee);
  --muted: light-dark(#59616b, #a4acb7); --line: light-dark(#e3e5e8, #2e333a);
  --good: light-dark(#00734f, #4cc79b); --bad: light-dark(#b3261e, #ff8f85);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 48px 24px 72px; max-width: 880px; background: var(--page); color: var(--ink);
  font: 16px/1.55 "Segoe UI", -apple-system, BlinkMacSystemFont, Roboto, "Helvetica Neue", Arial, system-ui, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1, h2, p, dl, dd, figure { margin: 0; padding: 0; }
h1 { font-size: clamp(28px, 4.6vw, 42px); line-height: 1.14; font-weight: 650; letter-spacing: -0.02em; }
h2 { font-size: 22px; line-height: 1.25; font-weight: 650; letter-spacing: -0.01em; }
h1, h2 { text-wrap: balance; }
.eyebrow { color: var(--muted); font-size: 14px; font-weight: 600; margin-bottom: 10px; }
.lead { font-size: 18px; color: var(--muted); margin-top: 14px; text-wrap: pretty; }
section { margin-top: 44px; }
section > p { margin-top: 8px; color: var(--muted); text-wrap: pretty; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px; margin-top: 18px; }
.scroll { overflow-x: auto; }
img { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
th, td { text-align: right; padding: 10px 0 10px 18px; border-top: 1px solid var(--line); }
th, td { vertical-align: top; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; font-weight: 600; white-space: normal; min-width: 150px; }
thead th { border-top: 0; color: var(--muted); font-weight: 600; font-size: 13px; padding-top: 0; }
.bar { display: block; height: 5px; margin-top: 5px; border-radius: 3px; background: var(--line); overflow: hidden; }
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--of); }
.best { font-weight: 700; }
.ours th { color: var(--of); }
dl { display: grid; grid-template-columns: minmax(150px, 1fr) 2fr; gap: 12px 24px; }
dt { font-weight: 600; }
dd { color: var(--muted); }
dd b { font-weight: 600; }
.ahead { color: var(--good); }
.behind { color: var(--bad); }
code { font: 13.5px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 1px 6px; }
pre { margin: 14px 0 0; overflow-x: auto; } pre code { display: block; padding: 12px 16px; border-radius: 10px; }
footer { margin-top: 48px; color: var(--muted); font-size: 14px; }
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>bayesmooth: a demo</title>
<style>$style</style>
<main>

<header>
<p class="eyebrow">bayesmooth · variational learning is adaptive label smoothing</p>
<h1>Trained on labels of which $rate are wrong, IVON reads $ours_accuracy of new digits, cross-entropy
$plain_accuracy.</h1>
<p class="lead">The same small network on the same digits. Cross-entropy learns $plain_memorised of the wrong labels by
heart, label smoothing $smooth_memorised, IVON $ours_memorised. At a tuned rate label smoothing reads $tuned_accuracy
and learns $tuned_memorised by heart.</p>
</header>

<section class="card scroll">
<table>
$table
</table>
</section>

<section>
<h2>Why: label smoothing treats all digits alike, the posterior does not</h2>
<p>IVON learns a Gaussian over the weights and trains at draws from it. Every draw moves the prediction for a digit, and
that acts like noise on its label: little where the draws agree, much where they do not.</p>
$illustration
<p>The noise had no part in the choice of these two: they are the $digit nearest to the other ${digit}s, pixel by pixel,
and the one farthest from them. In $agreeing of $classes classes the farthest digit has more noise than the nearest;
over all $right digits whose label is right the rank correlation of noise and distance is $correlation. Sizes are means
over $draws draws.</p>
$strips
<p>Sorted by label noise alone: the clearest and the most ambiguous digits of the training set.</p>
</section>

<section>
<h2>Where IVON is ahead, and where it is not</h2>
<p>Ahead or behind: by more than two standard errors of the difference over the seeds. Level: neither.</p>
<dl class="card">
$verdicts
</dl>
$caution
</section>

<section>
<h2>How it comes about, epoch by epoch</h2>
<p>Cross-entropy knows $peak of the test digits after epoch $peak_epoch, and $plain_accuracy at the end, when it has
learned $plain_memorised of the wrong labels too.</p>
$curves
</section>

<section>
<h2>Do it again</h2>
<p>Each method is a recipe; <code>bayesmooth recipes digits-ivon</code> prints one, with the reason for every number.
IVON’s h₀ and the tuned α were both chosen on held-back labels that are as noisy as the rest: no clean label had a part
in it.</p>
<pre><code>$commands</code></pre>
</section>

<footer>$train digits of scikit-learn to train on, $test clean ones to test; $seeds a method, ± is the standard
deviation over them. The number behind label smoothing is its rate α. Memorised: the share of the wrong training labels
that the network predicts. Confidence: the mean of the largest probability. Averaged: over $samples draws of the
weights; else at their mean. $runs runs, $time of training.</footer>

</main>
</html>
""")

CAUTION = Template("""<p>About the ECE: IVON is right about $ours_accuracy of the clean test digits and is
$ours_confidence sure of its answers on average. It was taught by labels that are wrong $rate of the time, and on clean
labels the ECE counts the caution that this taught it as an error.</p>""")
