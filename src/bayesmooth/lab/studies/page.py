"""All studies of a directory on one HTML page, beside the figures that it shows."""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from bayesmooth.files import write_atomically
from bayesmooth.progress import duration

MARKS = {
    "reproduced": "#00734f",
    "direction only": "#8a5a00",
    "not reproduced": "#b3261e",
    "not run": "#5f5f5f",
}

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
img { max-width: 100%; height: auto; } section { margin: 3rem 0; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid #ddd; }
.verdict { font-weight: 600; white-space: nowrap; } .small { color: #555; font-size: .875rem; }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: 3px; }
"""


def write_page(out: Path, names: Iterable[str]) -> Path:
    """`index.html` in a directory of results: figure, claims and verdicts of each of these studies that is there."""
    body = "\n".join(_section(name, out) for name in names if (out / f"{name}.json").exists())
    page = out / "index.html"
    write_atomically(
        page,
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>bayesmooth: studies</title><style>{STYLE}</style>\n"
        f"<main><h1>The paper's figures, claim by claim</h1>\n{body}\n</main></html>\n",
    )
    return page


def _section(name: str, out: Path) -> str:
    try:
        study = json.loads((out / f"{name}.json").read_text())
    except ValueError:
        return f"<section><h2>{name}</h2><p>Its files are damaged: run it again.</p></section>"
    rows = "\n".join(_claim(claim) for claim in study["claims"])
    facts = [
        f"{study['scale']} scale",
        f"{study['runs']} runs",
        f"{duration(study['seconds'])} of training",
        *(f"{study[what]} runs {what}" for what in ("missing", "diverged") if study.get(what)),
    ]
    return (
        f"<section id='{escape(study['study'])}'><h2>{escape(study['title'])}</h2>"
        f"<p>{escape(study['shows'])}</p>"
        f"<img alt='{escape(study['shows'])}' src='{name}.png'>"
        f"<table><tr><th>the paper says</th><th>measured</th><th>verdict</th></tr>{rows}</table>"
        f"<p class='small'>{escape(' · '.join(facts))} · <a href='{escape(study['study'])}.csv'>data</a> · "
        f"<code>{escape(study['command'])}</code></p></section>"
    )


def _claim(claim: dict[str, str]) -> str:
    colour = MARKS[claim["verdict"]]
    measured = escape(claim["measured"]).replace("; ", "<br>")
    return (
        f"<tr><td>{escape(claim['paper'])}</td><td>{measured}</td>"
        f"<td class='verdict' style='color:{colour}'>{escape(claim['verdict'])}</td></tr>"
    )
