"""The demo as one HTML file that opens from disk: no scripts, nothing fetched, light and dark."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from statistics import mean

from bayesmooth.progress import duration
from bayesmooth.studies.demo.digits import DIGIT, DRAWS, Digits
from bayesmooth.studies.demo.drawing import DARK, LIGHT, means
from bayesmooth.studies.demo.results import (
    AVERAGED,
    MEASURES,
    METHODS,
    OURS,
    Comparison,
    Measure,
    Result,
    compare,
)
from bayesmooth.training import Run

Pictures = Mapping[str, tuple[bytes, bytes]]
"""By name, a PNG for a light page and one for a dark page."""

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
h1, h2, p, dl, dd, ul, figure { margin: 0; padding: 0; }
h1 { font-size: clamp(28px, 4.6vw, 42px); line-height: 1.14; font-weight: 650; letter-spacing: -0.02em; text-wrap: balance; }
h2 { font-size: 22px; line-height: 1.25; font-weight: 650; letter-spacing: -0.01em; text-wrap: balance; }
.eyebrow { color: var(--muted); font-size: 14px; font-weight: 600; margin-bottom: 10px; }
.lead { font-size: 18px; color: var(--muted); margin-top: 14px; text-wrap: pretty; }
section { margin-top: 44px; }
section > p { margin-top: 8px; color: var(--muted); text-wrap: pretty; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px; margin-top: 18px; }
.scroll { overflow-x: auto; }
img { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
th, td { text-align: right; padding: 10px 0 10px 18px; border-top: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; font-weight: 600; white-space: normal; min-width: 150px; }
thead th { border-top: 0; color: var(--muted); font-weight: 600; font-size: 13px; padding-top: 0; }
.bar { display: block; height: 5px; margin-top: 5px; border-radius: 3px; background: var(--line); overflow: hidden; }
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--of); }
.best { font-weight: 700; }
.ours th { color: var(--of); }
dt { font-weight: 600; margin-top: 16px; }
dt:first-child { margin-top: 0; }
dd { color: var(--muted); }
dd b { color: var(--good); font-weight: 600; } dd.behind b { color: var(--bad); } dd.level b { color: var(--muted); }
code { font: 13.5px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 1px 6px; }
pre { margin: 14px 0 0; overflow-x: auto; } pre code { display: block; padding: 12px 16px; border-radius: 10px; }
footer { margin-top: 48px; color: var(--muted); font-size: 14px; }
"""


def page(
    results: Sequence[Result],
    runs: Mapping[str, Sequence[Run]],
    digits: Digits,
    pictures: Pictures,
) -> str:
    """The whole page."""
    parts = [
        _head(results, runs),
        _table(results),
        _verdict(results, runs),
        _noise(digits, pictures),
        _learning(runs, pictures),
        _foot(runs),
    ]
    return (
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>bayesmooth: a demo</title>\n<style>{STYLE}{_colours()}</style>\n"
        f"<main>\n{chr(10).join(parts)}\n</main>\n</html>\n"
    )


def _colours() -> str:
    """A class a method, with its colour in both themes."""
    return "".join(
        f".{method.colour} {{ --of: light-dark({LIGHT.colour(method.colour)}, {DARK.colour(method.colour)}); }}\n"
        for method in METHODS.values()
    )


def _named(results: Sequence[Result]) -> dict[str, Result]:
    return {row.name if row.name == AVERAGED else row.method: row for row in results}


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _head(results: Sequence[Result], runs: Mapping[str, Sequence[Run]]) -> str:
    rows = _named(results)
    plain, smooth, ours = (rows[name] for name in ("cross-entropy", "label smoothing", OURS))
    rate = _percent(runs[OURS][0].recipe.corruption.options["rate"])
    right = {row.name: _percent(mean(row.figures["accuracy"])) for row in (plain, smooth, ours)}
    wrong = {row.name: _percent(mean(row.figures["memorised"])) for row in (plain, smooth, ours)}
    return (
        "<header><p class='eyebrow'>bayesmooth · variational learning is adaptive label smoothing</p>"
        f"<h1>Trained on labels of which {rate} are wrong, IVON reads {right[ours.name]} of new digits, "
        f"cross-entropy {right[plain.name]}.</h1>"
        f"<p class='lead'>The same small network on the same digits. Cross-entropy learns {wrong[plain.name]} of the "
        f"wrong labels by heart, {escape(smooth.name)} {wrong[smooth.name]}, IVON {wrong[ours.name]}.</p></header>"
    )


def _table(results: Sequence[Result]) -> str:
    arrows = {1: " ↑", -1: " ↓", 0: ""}
    heads = "".join(
        f"<th scope='col'>{escape(m.name)}{arrows[m.better]}</th>" for m in MEASURES.values()
    )
    rows = "\n".join(_row(row, results) for row in results)
    return (
        "<section class='card scroll'><table><thead><tr><th scope='col'></th>"
        f"{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></section>"
    )


def _row(row: Result, results: Sequence[Result]) -> str:
    colour = METHODS[row.method].colour
    cells = "".join(_cell(row, key, measure, results) for key, measure in MEASURES.items())
    kind = f"{colour} ours" if row.method == OURS else colour
    return f"<tr class='{kind}'><th scope='row'>{escape(row.name)}</th>{cells}</tr>"


def _cell(row: Result, key: str, measure: Measure, results: Sequence[Result]) -> str:
    """The figure, above a bar whose full length is 100 %, or the largest of the column."""
    means = [mean(other.figures[key]) for other in results]
    value = mean(row.figures[key])
    best = measure.better and value == max(means, key=lambda each: measure.better * each)
    length = 100 * value / (1.0 if measure.share else max(means))
    return (
        f"<td{' class=best' if best else ''}>{escape(row.said(key))}"
        f"<span class='bar'><i style='width:{length:.1f}%'></i></span></td>"
    )


def _verdict(results: Sequence[Result], runs: Mapping[str, Sequence[Run]]) -> str:
    ours = _named(results)[OURS]
    items = "\n".join(_against(ours, found) for found in compare(results))
    words = {key: _percent(mean(ours.figures[key])) for key in ("accuracy", "confidence")}
    rate = _percent(runs[OURS][0].recipe.corruption.options["rate"])
    return (
        "<section><h2>Where IVON is ahead, and where it is not</h2>"
        "<p>Clearly ahead or behind means by more than two standard errors over the seeds.</p>"
        f"<dl class='card'>{items}</dl>"
        f"<p>About calibration: IVON is right about {words['accuracy']} of the clean test digits and says "
        f"{words['confidence']} on average. It was taught by labels that are wrong {rate} of the time, and the ECE on clean "
        "labels counts the caution that comes of this as an error.</p></section>"
    )


def _against(ours: Result, found: Comparison) -> str:
    sides = {"ahead": found.ahead, "behind": found.behind, "level": found.level}
    words = {"ahead": "ahead in", "behind": "behind in", "level": "no clear difference in"}
    lines = "".join(
        f"<dd class='{side}'><b>{words[side]}</b> "
        + ", ".join(
            f"{MEASURES[key].name} ({ours.said(key)} against {found.rival.said(key)})"
            for key in keys
        )
        + "</dd>"
        for side, keys in sides.items()
        if keys
    )
    return f"<dt>against {escape(found.rival.name)}</dt>{lines}"


def _noise(digits: Digits, pictures: Pictures) -> str:
    near, far = (float(digits.size[at]) for at in digits.pair())
    classes = len(digits.labels.unique())
    return (
        "<section><h2>Why: label smoothing treats all digits alike, the posterior does not</h2>"
        "<p>IVON learns a Gaussian over the weights and trains at draws from it. Every draw moves the prediction for a "
        "digit, and that acts like noise on its label: little where the draws agree, much where they do not.</p>"
        + _picture(
            pictures["illustration"],
            f"Label noise by class. Label smoothing: the same for both digits. IVON: {_percent(near)} of the label for "
            f"the typical {DIGIT}, {_percent(far)} for the atypical one.",
        )
        + f"<p>The noise had no part in the choice of these two: they are the {DIGIT} nearest to the other {DIGIT}s, pixel "
        f"by pixel, and the one farthest from them. In {digits.agreeing()} of {classes} classes the farthest digit has more "
        f"noise than the nearest; over all {len(digits.labels):,} digits with a right label the rank correlation of noise "
        f"and distance is {digits.correlation():.2f}. Sizes are means over {DRAWS} draws.</p>"
        + _picture(
            pictures["strips"],
            "The training digits with the least label noise, and those with the most, each with its noise.",
        )
        + "<p>Sorted by label noise alone: the clearest and the most ambiguous digits of the training set.</p></section>"
    )


def _learning(runs: Mapping[str, Sequence[Run]], pictures: Pictures) -> str:
    epochs, values = means(runs["cross-entropy"], "test.accuracy")
    top = max(range(len(values)), key=values.__getitem__)
    return (
        "<section><h2>How it comes about, epoch by epoch</h2>"
        f"<p>Cross-entropy knows {values[top]:.0f} % of the test digits after epoch {epochs[top]} and {values[-1]:.0f} % at "
        "the end, when it has learned the wrong labels too.</p>"
        + _picture(pictures["curves"], "Accuracy and memorised errors of every method by epoch.")
        + "</section>"
    )


def _picture(pictures: tuple[bytes, bytes], alt: str) -> str:
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pictures)
    return (
        "<figure class='card'><picture>"
        f"<source media='(prefers-color-scheme: dark)' srcset='{dark}'>"
        f"<img alt='{escape(alt)}' src='{light}'></picture></figure>"
    )


def _foot(runs: Mapping[str, Sequence[Run]]) -> str:
    every = [run for own in runs.values() for run in own]
    first = runs[OURS][0]
    count = len(first.examples("train"))
    seeds = len(runs[OURS])
    tuned = runs["label smoothing, tuned"][0].recipe.loss.options["alpha"]
    lines = "\n".join(
        escape(" ".join(["bayesmooth train", m.recipe, *(f"--set {s}" for s in m.settings)]))
        for m in METHODS.values()
    )
    return (
        "<section><h2>Do it again</h2><p>Each method is a recipe; <code>bayesmooth recipes digits-ivon</code> prints one, with "
        f"the reason for every number. IVON's h₀ and the tuned α = {tuned:g} were both chosen on held-back labels that are as "
        f"noisy as the rest; no clean label had a part in it.</p><pre><code>{lines}</code></pre></section>"
        f"<footer>{count:,} digits of scikit-learn to train on, {len(first.examples('test')):,} to test, {seeds} "
        f"seed{'s' if seeds > 1 else ''} a method, ± is the standard deviation over them; {len(every)} runs, "
        f"{duration(sum(run.seconds() for run in every))} of training.</footer>"
    )
