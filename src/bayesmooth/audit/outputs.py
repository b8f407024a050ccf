"""What an audit becomes: its files, and in a notebook the ten worst labels and the report inline.

All files are made in memory first, then written together.
"""

import base64
import datetime
import html
import io
import json
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.audit.findings import FINDINGS
from bayesmooth.audit.report import render
from bayesmooth.audit.table import Audit, format_sureness, write_csv
from bayesmooth.audit.thumbnails import SMALL, encode_picture, find_pictures, report_thumbnails, shrink_picture
from bayesmooth.data.features import SHEET_ROW
from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_together
from bayesmooth.optional import require
from bayesmooth.words import format_percent

FILES = {"audit.csv", "audit.parquet", "audit.json", "audit.html", "annotators.csv", "label_again.csv"}
TEXTS = 16_000_000  # characters of text in a report: it stays a file that opens at once
WORST = 10  # labels that a notebook shows by themselves
LONGEST = 160  # characters of their texts
HEIGHT = 900  # pixels of the report inline


def save(audit: Audit, directory: Path, *, thumbnails: int, title: str) -> Path:
    """Write audit.csv, audit.parquet, audit.json and audit.html; the path of the last.

    With several annotators also annotators.csv and label_again.csv.
    """
    check_source_stays(directory, audit.examples.path)
    files: dict[str, str | bytes] = {"audit.csv": audit.to_csv()}
    if find_spec("pyarrow"):
        arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
        parquet.write_table(arrow.table(audit.columns()), file := io.BytesIO())
        files["audit.parquet"] = file.getvalue()
    summary = {
        "examples": len(audit),
        "quadrants": audit.counts,
        "disagreement_threshold": audit.disagreement_threshold,
        **audit.summary,
        **audit.findings.counts(),
        "problems": audit.findings.list_problems(),
        **audit.describe_labels(),
        "top": [row["id"] for row in audit.top(100)],
    }
    files["audit.json"] = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    if audit.consensus is not None:
        people, names = audit.consensus.describe(audit.class_names), audit.class_names
        again = [(audit.ids[i], names[k], f"{share:.4f}", who) for i, k, share, who in audit.consensus.list_again()]
        columns = ("id", "consensus", "probability", "annotator")
        files |= {
            "annotators.csv": write_csv({key: [one[key] for one in people] for key in people[0]}),
            "label_again.csv": write_csv(dict(zip(columns, zip(*again, strict=True), strict=True))),
        }
    files["audit.html"] = to_html(audit, thumbnails=thumbnails, title=title)
    check_directory(directory)
    write_together(directory, files)
    for name in FILES - files.keys():  # of an audit that was here before
        (directory / name).unlink(missing_ok=True)
    return directory / "audit.html"


def check_source_stays(directory: Path, source: Path | None) -> None:
    """Refuse a folder where the files of an audit would overwrite the one that is audited."""
    for place in (directory / f"audit.{kind}" for kind in ("csv", "parquet", "json", "html")):
        there = source is not None and source.exists() and place.exists()
        if there and place.samefile(source or place):
            raise InputError(f"{place}: is what is audited, and would be overwritten; choose another folder (--out)")


def find_failures(audit: Audit, above: float | None, kinds: Sequence[str]) -> list[str]:
    """Why data with this audit should not pass, in words; empty where they should.

    `above` is the share of wrong labels that is allowed, held against the lower bound of the audit. `kinds` are
    findings that must not occur.
    """
    failures = []
    least: float | None = audit.summary.get("noise_rate_at_least")
    if above is not None and least is None:
        failures.append("it cannot be told how many labels are wrong")
    elif above is not None and least is not None and least > above:
        shares = format_percent(least), format_percent(above)
        failures.append("at least {} of the labels are wrong, more than {}".format(*shares))
    masks = audit.findings.masks()
    for kind in kinds:
        if kind not in masks:
            raise InputError(f"--fail-on {kind}: this audit did not look for any")
        if count := int(masks[kind].sum()):
            failures.append(f"{count:,} {FINDINGS[kind].replace('_', ' ')} ({kind})")
    return failures


def to_markdown(audit: Audit, failures: Sequence[str] = ()) -> str:
    """The headline, what was found and the ten worst labels, for the page of a job."""
    lines = [f"## {'❌' if failures else '✅'} {audit.summary.get('source', 'labels')}", ""]
    lines += [audit.headline, "", *(f"- **{failure}**" for failure in failures)]
    lines += [f"- also found: {audit.findings}"]
    lines += [f"- {problem.text}" for problem in audit.findings.problems]
    lines += ["", "| id | label | looks like | how sure |", "| --- | --- | --- | --- |"]
    for row in audit.top(WORST):
        sure = format_sureness(row["suggested_probability"])
        cells = (row["id"], row["given"], row["suggested"], sure)
        safe = (html.escape(" ".join(cell.split())).replace("|", "\\|") for cell in cells)
        lines.append(f"| {' | '.join(safe)} |")
    return "\n".join(lines) + "\n"


def to_html(audit: Audit, *, thumbnails: int, title: str = "") -> str:
    """The report, with pictures of the examples that matter most, and texts as far as `TEXTS` allows."""
    large, small = report_thumbnails(audit, thumbnails)
    return render(
        audit,
        title=title,
        created=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        texts=report_texts(audit),
        thumbnails=large,
        small=small,
    )


def report_texts(audit: Audit) -> list[Any] | None:
    """The text or table row of every example, as far as TEXTS allows, the most contradicted labels first."""
    hidden = {SHEET_ROW} if audit.consensus is None else {SHEET_ROW, "votes"}  # on every card
    meta = {name: column for name, column in audit.meta.items() if name not in hidden}
    if not meta:
        return None
    rows: list[Any] = list(meta.get("text", ()))
    if set(meta) != {"text"}:
        rows = [dict(zip(meta, row, strict=True)) for row in zip(*meta.values(), strict=True)]
    sizes = np.array([len(str(row)) for row in rows])
    fits = audit.order[np.cumsum(sizes[audit.order]) <= TEXTS]
    kept = set(fits.tolist())
    return [row if number in kept else None for number, row in enumerate(rows)]


def to_short_html(audit: Audit) -> str:
    """The headline, the notes and the ten worst labels with their pictures or texts."""
    worst, pictures, meta = audit.order[:WORST].tolist(), find_pictures(audit), audit.meta
    if pictures is not None:
        files = [encode_picture(shrink_picture(pictures, i, SMALL), "image/png") for i in worst]
        data = [base64.b64encode(file).decode() for file in files]
        shown = [f'<img alt="" src="data:image/png;base64,{d}" height="{SMALL}">' for d in data]
    else:
        texts = [", ".join(f"{name} {column[i]}" for name, column in meta.items()) for i in worst]
        if "text" in meta:
            texts = [meta["text"][i] for i in worst]
        cut = [text if len(text) <= LONGEST else text[:LONGEST] + " …" for text in texts]
        shown = [html.escape(text) for text in cut]
    notes = [audit.summary.get("warning"), *audit.summary.get("notes", ())]
    said = "".join(f"<p>{html.escape(str(note))}</p>" for note in notes if note)
    rows = ""
    for row, content in zip(audit.top(WORST), shown, strict=True):
        sure = format_sureness(row["suggested_probability"])
        names = (row["id"], row["given"], row["suggested"], sure)
        cells = "".join(f"<td>{html.escape(name)}</td>" for name in names)
        rows += f'<tr>{cells}<td style="text-align:left">{content}</td></tr>'
    head = "".join(f"<th>{name}</th>" for name in ("id", "label", "looks like", "", "example"))
    title = f"<p><b>{html.escape(audit.headline)}</b></p>"
    return f"<div>{title}{said}<table><tr>{head}</tr>{rows}</table></div>"


def show_inline(audit: Audit) -> None:
    """The report below the cell of a notebook; elsewhere in the browser."""
    page = to_html(audit, thumbnails=500)
    if "ipykernel" in sys.modules:  # a kernel of Jupyter or Colab runs this
        inline = f'<iframe srcdoc="{html.escape(page)}" width="100%" height="{HEIGHT}"></iframe>'
        display = sys.modules["IPython"].display  # loaded, as a notebook is running
        display.display(display.HTML(inline))
    else:
        file = Path(tempfile.mkdtemp(prefix="audit-")) / "audit.html"
        file.write_text(page, encoding="utf-8")
        webbrowser.open(file.as_uri())
