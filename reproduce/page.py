"""All studies of a directory on one HTML page, beside the figures that it shows."""

import json
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from bayesmooth.files import write_atomically
from bayesmooth.words import format_duration
from reproduce.verdict import count_verdicts

MARKS = {
    "reproduced": ("holds", "#00734f"),
    "direction only": ("holds in part", "#8a5a00"),
    "not reproduced": ("does not hold", "#b3261e"),
    "not run": ("not run", "#5f5f5f"),
}
"""What a verdict says of a claim that is ours, where there is nothing to reproduce, and its colour."""

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

OWN = "(not in the paper) "  # so begins a claim of ours
TITLES = {"demo": "Trained on labels that are partly wrong"}


def write_page(out: Path, names: Iterable[str]) -> Path:
    """`index.html` in a directory of results: figure, claims and verdicts of each of these studies that is there."""
    sections, studies = [], list[dict[str, Any]]()
    for name in names:
        if (path := out / f"{name}.json").exists():
            try:
                studies.append(json.loads(path.read_text()))
                sections.append(_section(studies[-1]))
            except ValueError:
                damaged = "Its files are damaged: run it again."
                sections.append(f"<section><h2>{name}</h2><p>{damaged}</p></section>")
    scales = {study["scale"] for study in studies}
    title = TITLES.get("".join(scales), "The paper's figures, claim by claim")
    body = _overview(studies) + "\n".join(sections)
    page = out / "index.html"
    write_atomically(page, PAGE.substitute(title=title, style=STYLE, body=body))
    return page


def _overview(studies: list[dict[str, Any]]) -> str:
    """All verdicts together, and the way to each study."""
    links = (
        f"<li><a href='#{escape(study['study'])}'>{escape(study['title'])}</a>: "
        f"{count_claims(study['claims'])}</li>"
        for study in studies
    )
    claims = [claim for study in studies for claim in study["claims"]]
    return f"<p>{count_claims(claims)}</p><ul>{''.join(links)}</ul>" if len(studies) > 1 else ""


def count_claims(claims: list[dict[str, str]]) -> str:
    """How many claims have which verdict: those of the paper, and apart from them ours, in their own words.

    >>> count_claims([{"paper": "a", "verdict": "reproduced"}, {"paper": OWN + "b", "verdict": "direction only"}])
    'of the paper 1 claim: 1 reproduced; of ours 1 claim: holds in part (1)'
    """
    own = [MARKS[claim["verdict"]][0] for claim in claims if claim["paper"].startswith(OWN)]
    papers = [claim for claim in claims if not claim["paper"].startswith(OWN)]
    parts = [f"of the paper {count_verdicts(papers)}"] if papers else []
    if own:
        words = ", ".join(f"{mark} ({count})" for mark, count in Counter(own).most_common())
        parts.append(f"of ours {len(own)} claim{'s' * (len(own) > 1)}: {words}")
    return "; ".join(parts)


def _section(study: dict[str, Any]) -> str:
    name = escape(study["study"])
    rows = "\n".join(_claim(claim) for claim in study["claims"])
    facts = [
        f"{study['scale']} scale",
        f"{study['runs']} runs",
        f"{format_duration(study['seconds'])} of training",
        *(f"{study[what]} runs {what}" for what in ("missing", "diverged") if study.get(what)),
    ]
    return (
        f"<section id='{name}'><h2>{escape(study['title'])}</h2>"
        f"<p>{escape(study['shows'])}</p>"
        f"<img alt='{escape(study['shows'])}' src='{name}.png'>{_table(study.get('table', []))}"
        f"<table><tr><th>claim</th><th>measured</th><th>verdict</th></tr>{rows}</table>"
        f"<p class='small'>{escape(' · '.join(facts))} · <a href='{name}.csv'>data</a> · "
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
    own, colour = MARKS[claim["verdict"]]
    verdict = own if claim["paper"].startswith(OWN) else claim["verdict"]
    measured = escape(claim["measured"]).replace("; ", "<br>")
    return (
        f"<tr><td>{escape(claim['paper'])}</td><td>{measured}</td>"
        f"<td class='verdict' style='color:{colour}'>{escape(verdict)}</td></tr>"
    )
