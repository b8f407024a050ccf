"""The files of an audit: all are made in memory first, then each is written whole."""

import datetime
import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.annotators import Consensus
from bayesmooth.audit.multilabel import Tags
from bayesmooth.audit.report import render
from bayesmooth.audit.table import Audit, write_csv
from bayesmooth.audit.thumbnails import report_thumbnails
from bayesmooth.data.tabular import SHEET_ROW
from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_atomically
from bayesmooth.optional import require

MATRIX_CLASSES = 500  # up to which audit.json holds the matrices of pairs of classes
TEXTS = 16_000_000  # characters of text in a report: it stays a file that opens at once


def save(audit: Audit, directory: Path, *, thumbnails: int, title: str) -> Path:
    """Write audit.csv, audit.parquet, audit.json and audit.html; the path of the last.

    With several annotators also annotators.csv and label_again.csv.
    """
    check_source_stays(directory, None if audit.examples is None else audit.examples.source)
    files: dict[str, str | bytes] = {"audit.csv": audit.to_csv()}
    if find_spec("pyarrow"):
        files["audit.parquet"] = to_parquet(audit)
    files["audit.json"] = json.dumps(summary(audit), indent=2, ensure_ascii=False) + "\n"
    if audit.consensus is not None:
        files |= _write_annotators(audit, audit.consensus)
    files["audit.html"] = to_html(audit, thumbnails=thumbnails, title=title)
    check_directory(directory)
    for name, content in files.items():
        write_atomically(directory / name, content)
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
        if source is not None and place.exists() and place.samefile(source):
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
        **audit.findings.counts(),
        "problems": audit.findings.list_problems(),
        **(_describe_classes(audit) if audit.tags is None else _describe_tags(audit, audit.tags)),
        "top": [row["id"] for row in audit.top(100)],
    }


def _describe_classes(audit: Audit) -> dict[str, Any]:
    given, matrix = np.bincount(audit.given, minlength=len(audit.class_names)), audit.matrix
    return {
        "class_names": list(audit.class_names),
        "classes": [
            {
                "name": name,
                "examples": int(given[k]),
                "contradicted": int(given[k] - matrix[k, k]),
                "ambiguity": float(audit.ambiguity[audit.given == k].mean()) if given[k] else None,
            }
            for k, name in enumerate(audit.class_names)
        ],
        "given_by_suggested": _list_matrix(matrix),
        "given_by_true": _list_matrix(audit.true_matrix),
    }


def _describe_tags(audit: Audit, tags: Tags) -> dict[str, Any]:
    names = ("name", "examples", "to_add", "to_remove")
    rows = zip(tags.vocabulary.names, tags.given.sum(0), *audit.tag_changes(), strict=True)
    return {
        "tags": [dict(zip(names, (name, *map(int, counts)), strict=True)) for name, *counts in rows]
    }


def _list_matrix(matrix: NDArray[Any] | None) -> list[list[int]] | None:
    """K × K counts; none where they would make a file of many megabytes, as the table says the same."""
    return None if matrix is None or len(matrix) > MATRIX_CLASSES else matrix.tolist()


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
    hidden = {
        SHEET_ROW,
        "votes" if audit.consensus is not None else "",
    }  # cards show votes by themselves
    meta = {name: column for name, column in audit.meta.items() if name not in hidden}
    if not meta:
        return None
    rows: list[Any] = [
        dict(zip(meta, row, strict=True)) for row in zip(*meta.values(), strict=True)
    ]
    if set(meta) == {"text"}:
        rows = list(meta["text"])
    sizes = np.array([len(str(row)) for row in rows])
    fits = audit.order[np.cumsum(sizes[audit.order]) <= TEXTS]
    kept = set(fits.tolist())
    return [row if number in kept else None for number, row in enumerate(rows)]
