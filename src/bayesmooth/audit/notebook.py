"""An audit in a notebook: the ten worst labels as HTML, the report inline, and the map as a figure."""

import base64
import html
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.audit.multilabel import Tags
from bayesmooth.audit.outputs import to_html
from bayesmooth.audit.scores import AXES, QUADRANTS
from bayesmooth.audit.table import Audit
from bayesmooth.audit.thumbnails import SMALL, as_picture, encode, open_pictures
from bayesmooth.optional import require

WORST = 10
MOST_TAGS = 20  # in the figure
LONGEST = 160  # characters of a text
HEIGHT = 900  # pixels of the report inline
COLOURS = ("#7b848f", "#0072b2", "#d55e00", "#b8578c")  # of the quadrants, as in the report


def to_short_html(audit: Audit) -> str:
    """The headline, the notes and the ten worst labels with their pictures or texts."""
    notes = [audit.summary.get("warning"), *audit.summary.get("notes", ())]
    said = "".join(f"<p>{html.escape(str(note))}</p>" for note in notes if note)
    rows = "".join(map(_to_row, audit.top(WORST), _contents(audit)))
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
    figure = require("matplotlib.figure", extra="audit").Figure(
        figsize=(10, 4.2), layout="constrained"
    )
    scatter, matrix = figure.subplots(1, 2)
    for number, (name, colour) in enumerate(zip(QUADRANTS, COLOURS, strict=True)):
        some = audit.quadrant == number
        points = audit.ambiguity[some], audit.disagreement[some]
        scatter.scatter(*points, s=8, color=colour, label=f"{name} ({some.sum():,})", alpha=0.7)
    scatter.axhline(audit.disagreement_threshold, color="0.7", lw=0.8)
    scatter.axvline(audit.ambiguity_threshold, color="0.7", lw=0.8)
    scatter.set(xlabel=AXES[0], ylabel=AXES[1])
    scatter.legend(frameon=False, fontsize=8)
    if audit.tags is not None:
        _plot_tags(matrix, audit, audit.tags)
        return figure
    confused = audit.matrix * (1 - np.eye(len(audit.class_names), dtype=np.int64))
    matrix.imshow(confused, cmap="Oranges")
    matrix.set(xlabel="looks like", ylabel="label")
    if len(audit.class_names) <= 20:
        ticks = range(len(audit.class_names))
        matrix.set_xticks(ticks, audit.class_names, rotation=90, fontsize=8)
        matrix.set_yticks(ticks, audit.class_names, fontsize=8)
    return figure


def _plot_tags(axes: Any, audit: Audit, tags: Tags) -> None:
    """How many examples each tag should be added to and removed from, of those that change most."""
    added, removed = audit.tag_changes()
    most = (added + removed).argsort(kind="stable")[-MOST_TAGS:]
    names = [tags.vocabulary.names[t] for t in most]
    axes.barh(names, added[most], color=COLOURS[1], label="to add")
    axes.barh(names, -removed[most], color=COLOURS[2], label="to remove")
    axes.legend(frameon=False, fontsize=8)


def _to_row(row: dict[str, Any], content: str) -> str:
    names = (row["id"], row["given"], row["suggested"], f"{row['suggested_probability']:.0%}")
    cells = "".join(f"<td>{html.escape(name)}</td>" for name in names)
    return f'<tr>{cells}<td style="text-align:left">{content}</td></tr>'


def _contents(audit: Audit) -> list[str]:
    """What each of the worst looks like, as HTML."""
    worst = audit.order[:WORST].tolist()
    pictures = open_pictures(audit)
    if pictures is not None:
        return [_to_image(pictures[i]) for i in worst]
    meta = audit.meta
    texts = [
        meta["text"][i] if "text" in meta else ", ".join(f"{k} {v[i]}" for k, v in meta.items())
        for i in worst
    ]
    return [html.escape(text if len(text) <= LONGEST else text[:LONGEST] + " …") for text in texts]


def _to_image(image: Any) -> str:
    data = base64.b64encode(encode(as_picture(image, SMALL), "image/png")).decode()
    return f'<img alt="" src="data:image/png;base64,{data}" height="{SMALL}">'
