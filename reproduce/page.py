"""What people read: all studies of a directory on one HTML page, and the paper figure by figure in Markdown."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from bayesmooth.files import write_atomically
from bayesmooth.words import format_duration

COLOURS = {"reproduced": "#00734f", "direction only": "#8a5a00", "not reproduced": "#b3261e", "not run": "#5f5f5f"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
img { max-width: 100%; height: auto; } section { margin: 3rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
td, th { text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid #ddd; }
.numbers { font-size: .875rem; } .numbers td { white-space: nowrap; } .numbers th { vertical-align: bottom; }
.verdict { font-weight: 600; white-space: nowrap; } .small { color: #555; font-size: .875rem; }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: 3px; }
"""
PAGE = Template("""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>bayesmooth: $title</title><style>$style</style>
<main><h1>$title</h1>
$body
</main></html>
""")
TITLES = {"demo": "Trained on labels that are partly wrong"}
SIZES = ("full", "day", "overnight", "features", "laptop")  # the most images first
OURS = ("demo", "strategies")  # studies that are not in the paper
Claims = Sequence[dict[str, Any]]


def read_captions() -> dict[str, dict[str, str]]:
    """The figures of the paper: caption, and why ours may differ, by the name of the study."""
    return tomllib.loads((Path(__file__).parent / "captions.toml").read_text("utf-8"))


def read_studies(out: Path) -> dict[str, Any]:
    """The studies of a directory by name; ours first, then those of the paper in its order."""
    places = {name: out / f"{name}.json" for name in (*OURS, *read_captions())}
    there = {name: path for name, path in places.items() if path.exists()}
    return {name: json.loads(path.read_text("utf-8")) for name, path in there.items()}


def count_claims(claims: Claims) -> str:
    """How many claims have which verdict: those of the paper, and apart from them ours.

    >>> count_claims([{"own": False, "verdict": "reproduced"}, {"own": True, "verdict": "direction only"}])
    'of the paper: 1 reproduced; of ours: 1 direction only'
    """
    parts = []
    for own, whose in ((False, "of the paper"), (True, "of ours")):
        counts = Counter(claim["verdict"] for claim in claims if claim["own"] == own)
        if counts:
            words = ", ".join(f"{counts[each]} {each}" for each in COLOURS if counts[each])
            parts.append(f"{whose}: {words}")
    return "; ".join(parts)


def write_page(out: Path) -> None:
    """`index.html` in a directory of results: figure, claims and verdicts of each study that is there."""
    studies = read_studies(out)
    links = [
        f"<li><a href='#{escape(name)}'>{escape(study['title'])}</a>: {count_claims(study['claims'])}</li>"
        for name, study in studies.items()
    ]
    claims = [claim for study in studies.values() for claim in study["claims"]]
    overview = f"<p>{count_claims(claims)}</p><ul>{''.join(links)}</ul>" if len(links) > 1 else ""
    scales = {study["scale"] for study in studies.values()}
    title = TITLES.get("".join(scales), "The paper's figures, claim by claim")
    body = overview + "\n".join(map(_section, studies.values()))
    write_atomically(out / "index.html", PAGE.substitute(title=title, style=STYLE, body=body))


def _section(study: dict[str, Any]) -> str:
    name, shows = escape(study["study"]), escape(study["shows"])
    head, *rows = study.get("table") or [[]]
    numbers = _lines([head], "th") + _lines(rows, "td")
    facts = [
        f"{study['scale']} scale",
        f"{study['runs']} runs",
        f"{format_duration(study['seconds'])} of training",
        *(f"{study[what]} runs {what}" for what in ("missing", "diverged") if study.get(what)),
    ]
    claims = "\n".join(
        f"<tr><td>{'(ours) ' * claim['own']}{escape(claim['says'])}</td>"
        f"<td>{escape(claim['measured']).replace('; ', '<br>')}</td>"
        f"<td class='verdict' style='color:{COLOURS[claim['verdict']]}'>{claim['verdict']}</td></tr>"
        for claim in study["claims"]
    )
    return (
        f"<section id='{name}'><h2>{escape(study['title'])}</h2>"
        f"<p>{shows}</p><img alt='{shows}' src='{name}.png'>"
        + (f"<div class='scroll'><table class='numbers'>{numbers}</table></div>" if rows else "")
        + f"<table><tr><th>claim</th><th>measured</th><th>verdict</th></tr>{claims}</table>"
        f"<p class='small'>{escape(' · '.join(facts))} · <a href='{name}.csv'>data</a> · "
        f"<code>{escape(study['command'])}</code></p></section>"
    )


def _lines(rows: Iterable[Sequence[str]], tag: str) -> str:
    cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for row in rows)
    return "".join(f"<tr>{row}</tr>" for row in cells)


def write_paper(results: Path) -> None:
    """`paper.md` in the folder of all scales: the paper's caption, our figure, its claims with verdicts, the reason."""
    scales = {scale: read_studies(results / scale) for scale in SIZES if (results / scale).is_dir()}
    parts = [
        "# The paper, figure by figure",
        "*Variational Learning Induces Adaptive Label Smoothing* (arXiv 2502.07273). Under each caption of the paper "
        "stands our figure of the largest scale that has it, and what the paper says with our verdict at every scale. "
        "`python -m reproduce` writes this page from the tables in `results/`.",
    ]
    for name, texts in read_captions().items():
        there = {scale: studies[name] for scale, studies in scales.items() if name in studies}
        if not there:
            continue
        first, study = next(iter(there.items()))
        parts += [f"## {study['title']} ({study['figure']})", f"> {texts['caption']}"]
        parts += [f"![{study['shows']}]({first}/{name}.png)"]
        rows = [["the paper says", *there, f"measured at the scale {first}"]]
        verdicts: dict[str, list[str]] = {}
        for each in there.values():
            for claim in each["claims"]:
                if not claim["own"]:
                    verdicts.setdefault(claim["says"], []).append(claim["verdict"])
        measured = {claim["says"]: claim["measured"] for claim in study["claims"]}
        rows += [
            [says, *found, measured[says].replace("; ", "<br>").replace("|", r"\|")] for says, found in verdicts.items()
        ]
        head, *body = [f"| {' | '.join(row)} |" for row in rows]
        parts += ["\n".join([head, "| --- " * len(rows[0]) + "|", *body])]
        parts += [
            f"{texts['reason']} Figures of the other scales: "
            + ", ".join(f"[{scale}]({scale}/{name}.png)" for scale in there if scale != first)
            + "."
            if len(there) > 1
            else texts["reason"]
        ]
    write_atomically(results / "paper.md", "\n\n".join(parts) + "\n")
