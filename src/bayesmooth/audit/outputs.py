"""What an audit becomes: its files, and in a notebook the ten worst labels, the report inline and the map as a figure.

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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.audit.annotators import Consensus
from bayesmooth.audit.predictions import AXES, QUADRANTS
from bayesmooth.audit.report import render
from bayesmooth.audit.table import Audit, write_csv
from bayesmooth.audit.thumbnails import (
    SMALL,
    as_picture,
    encode_picture,
    open_shown,
    report_thumbnails,
)
from bayesmooth.data.prepare import SHEET_ROW
from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_together
from bayesmooth.optional import require

FILES = {
    "audit.csv",
    "audit.parquet",
    "audit.json",
    "audit.html",
    "annotators.csv",
    "label_again.csv",
}
TEXTS = 16_000_000  # characters of text in a report: it stays a file that opens at once
WORST = 10  # labels that a notebook shows by themselves
LONGEST = 160  # characters of their texts
HEIGHT = 900  # pixels of the report inline
COLOURS = ("#7b848f", "#0072b2", "#d55e00", "#b8578c")  # of the quadrants, as in the report


def save(audit: Audit, directory: Path, *, thumbnails: int, title: str) -> Path:
    """Write audit.csv, audit.parquet, audit.json and audit.html; the path of the last.

    With several annotators also annotators.csv and label_again.csv.
    """
    check_source_stays(directory, None if audit.examples is None else audit.examples.path)
    files: dict[str, str | bytes] = {"audit.csv": audit.to_csv()}
    if find_spec("pyarrow"):
        files["audit.parquet"] = to_parquet(audit)
    files["audit.json"] = json.dumps(summary(audit), indent=2, ensure_ascii=False) + "\n"
    if audit.consensus is not None:
        files |= _write_annotators(audit, audit.consensus)
    files["audit.html"] = to_html(audit, thumbnails=thumbnails, title=title)
    check_directory(directory)
    write_together(directory, files)
    for name in FILES - files.keys():  # of an audit that was here before
        (directory / name).unlink(missing_ok=True)
    return directory / "audit.html"


def _write_annotators(audit: Audit, consensus: Consensus) -> dict[str, str]:
    """How good everybody is, and the examples that are least certain, with the person to ask."""
    names, people = audit.class_names, consensus.describe(audit.class_names)
    again = [
        (audit.ids[i], names[k], f"{share:.4f}", who) for i, k, share, who in consensus.list_again()
    ]
    columns = ("id", "consensus", "probability", "annotator")
    return {
        "annotators.csv": write_csv({key: [one[key] for one in people] for key in people[0]}),
        "label_again.csv": write_csv(dict(zip(columns, zip(*again, strict=True), strict=True))),
    }


def check_source_stays(directory: Path, source: Path | None) -> None:
    """Refuse a folder where the files of an audit would overwrite the one that is audited."""
    for place in (directory / f"audit.{kind}" for kind in ("csv", "parquet", "json", "html")):
        there = source is not None and source.exists() and place.exists()
        if there and place.samefile(source or place):
            raise InputError(
                f"{place}: is what is audited, and would be overwritten; choose another folder (--out)"
            )


def to_parquet(audit: Audit) -> bytes:
    """The table as a parquet file."""
    arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
    file = io.BytesIO()
    parquet.write_table(arrow.table(audit.columns()), file)
    return file.getvalue()


def summary(audit: Audit) -> dict[str, Any]:
    """What audit.json says: counts, thresholds, classes and the matrix of given × suggested labels; or the tags."""
    return {
        "examples": len(audit),
        "quadrants": audit.counts,
        "disagreement_threshold": audit.disagreement_threshold,
        "ambiguity_threshold": audit.ambiguity_threshold,
        **audit.summary,
        **audit.found.counts(),
        "problems": audit.found.list_problems(),
        **audit.kind.summarise(audit),
        "top": [row["id"] for row in audit.top(100)],
    }


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
    notes = [audit.summary.get("warning"), *audit.summary.get("notes", ())]
    said = "".join(f"<p>{html.escape(str(note))}</p>" for note in notes if note)
    rows = ""
    for row, content in zip(audit.top(WORST), _show_worst(audit), strict=True):
        names = (row["id"], row["given"], row["suggested"], f"{row['suggested_probability']:.0%}")
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


def plot_audit(audit: Audit) -> Any:
    """A matplotlib figure: every label by ambiguity and disagreement, and the labels that get confused."""
    figures = require("matplotlib.figure", extra="audit")
    figure = figures.Figure(figsize=(10, 4.2), layout="constrained")
    figure._repr_png_ = partial(_to_png, figure)  # a notebook shows it
    scatter, matrix = figure.subplots(1, 2)
    for number, (name, colour) in enumerate(zip(QUADRANTS, COLOURS, strict=True)):
        some = audit.quadrant == number
        points = audit.ambiguity[some], audit.disagreement[some]
        scatter.scatter(*points, s=8, color=colour, label=f"{name} ({some.sum():,})", alpha=0.7)
    scatter.axhline(audit.disagreement_threshold, color="0.7", lw=0.8)
    scatter.axvline(audit.ambiguity_threshold, color="0.7", lw=0.8)
    scatter.set(xlabel=AXES[0], ylabel=AXES[1])
    scatter.legend(frameon=False, fontsize=8)
    audit.kind.plot(audit, matrix)
    return figure


def _to_png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _show_worst(audit: Audit) -> list[str]:
    """What each of the worst looks like, as HTML."""
    worst = audit.order[:WORST].tolist()
    pictures = open_shown(audit)
    if pictures is not None:
        files = [encode_picture(as_picture(pictures[i], SMALL), "image/png") for i in worst]
        data = [base64.b64encode(file).decode() for file in files]
        return [f'<img alt="" src="data:image/png;base64,{d}" height="{SMALL}">' for d in data]
    meta = audit.meta
    texts = [", ".join(f"{name} {column[i]}" for name, column in meta.items()) for i in worst]
    if "text" in meta:
        texts = [meta["text"][i] for i in worst]
    return [html.escape(text if len(text) <= LONGEST else text[:LONGEST] + " …") for text in texts]
