"""All studies of a directory as one HTML file that opens from disk."""

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

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


def write_page(out: Path) -> Path:
    """`index.html` in a directory of results: every study's figure, claims and verdicts."""
    studies = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    body = "\n".join(_section(study, out) for study in studies)
    page = out / "index.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>bayesmooth: studies</title><style>{STYLE}</style>\n"
        f"<main><h1>The paper's figures, claim by claim</h1>\n{body}\n</main></html>\n"
    )
    return page


def _section(study: dict[str, Any], out: Path) -> str:
    picture = out / f"{study['study']}.png"
    data = base64.b64encode(picture.read_bytes()).decode()
    rows = "\n".join(_claim(claim) for claim in study["claims"])
    facts = [
        f"{study['scale']} scale",
        f"{study['runs']} runs",
        f"{duration(study['seconds'])} of training",
    ]
    return (
        f"<section id='{escape(study['study'])}'><h2>{escape(study['title'])}</h2>"
        f"<p>{escape(study['shows'])}</p>"
        f"<img alt='{escape(study['shows'])}' src='data:image/png;base64,{data}'>"
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
