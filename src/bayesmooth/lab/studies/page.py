"""All studies of a directory on one HTML page, beside the figures that it shows."""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from bayesmooth.files import write_atomically
from bayesmooth.lab.studies.verdict import count_verdicts
from bayesmooth.words import format_duration

MARKS = {
    "reproduced": "#00734f",
    "direction only": "#8a5a00",
    "not reproduced": "#b3261e",
    "not run": "#5f5f5f",
}

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
img { max-width: 100%; height: auto; } section { margin: 3rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
td, th { text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid #ddd; }
.numbers { font-size: .875rem; } .numbers td { white-space: nowrap; } .numbers th { vertical-align: bottom; }
.numbers td + td, .numbers th + th { text-align: right; }
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

OWN = "(not in the paper) "  # claims of ours: they hold or not, there is nothing to reproduce
WORDS = {
    "reproduced": "holds",
    "direction only": "holds in part",
    "not reproduced": "does not hold",
}
TITLES = {"demo": "Trained on labels that are partly wrong"}


def write_page(out: Path, names: Iterable[str]) -> Path:
    """`index.html` in a directory of results: figure, claims and verdicts of each of these studies that is there."""
    studies = {
        name: _read(out / f"{name}.json") for name in names if (out / f"{name}.json").exists()
    }
    scales = {study["scale"] for study in studies.values() if study is not None}
    title = TITLES.get("".join(scales), "The paper's figures, claim by claim")
    body = _overview(studies) + "\n".join(_section(name, study) for name, study in studies.items())
    page = out / "index.html"
    write_atomically(page, PAGE.substitute(title=title, style=STYLE, body=body))
    return page


def _read(path: Path) -> dict[str, Any] | None:
    try:
        study: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        return None
    return study


def _overview(studies: dict[str, dict[str, Any] | None]) -> str:
    """All verdicts together, and the way to each study."""
    whole = {name: study for name, study in studies.items() if study is not None}
    links = (
        f"<li><a href='#{escape(name)}'>{escape(study['title'])}</a>: "
        f"{count_verdicts(study['claims']).partition(': ')[2]}</li>"
        for name, study in whole.items()
    )
    claims = [claim for study in whole.values() for claim in study["claims"]]
    return f"<p>{count_verdicts(claims)}</p><ul>{''.join(links)}</ul>" if len(whole) > 1 else ""


def _section(name: str, study: dict[str, Any] | None) -> str:
    if study is None:
        return f"<section><h2>{name}</h2><p>Its files are damaged: run it again.</p></section>"
    rows = "\n".join(_claim(claim) for claim in study["claims"])
    facts = [
        f"{study['scale']} scale",
        f"{study['runs']} runs",
        f"{format_duration(study['seconds'])} of training",
        *(f"{study[what]} runs {what}" for what in ("missing", "diverged") if study.get(what)),
    ]
    return (
        f"<section id='{escape(study['study'])}'><h2>{escape(study['title'])}</h2>"
        f"<p>{escape(study['shows'])}</p>"
        f"<img alt='{escape(study['shows'])}' src='{name}.png'>{_table(study.get('table', []))}"
        f"<table><tr><th>claim</th><th>measured</th><th>verdict</th></tr>{rows}</table>"
        f"<p class='small'>{escape(' · '.join(facts))} · <a href='{escape(study['study'])}.csv'>data</a> · "
        f"<code>{escape(study['command'])}</code></p></section>"
    )


def _table(rows: list[list[str]]) -> str:
    if not rows:
        return ""
    lines = [
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<div class='scroll'><table class='numbers'>{''.join(lines)}</table></div>"


def _claim(claim: dict[str, str]) -> str:
    colour, verdict = MARKS[claim["verdict"]], claim["verdict"]
    if claim["paper"].startswith(OWN):
        verdict = WORDS.get(verdict, verdict)
    measured = escape(claim["measured"]).replace("; ", "<br>")
    return (
        f"<tr><td>{escape(claim['paper'])}</td><td>{measured}</td>"
        f"<td class='verdict' style='color:{colour}'>{escape(verdict)}</td></tr>"
    )
