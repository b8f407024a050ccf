"""What a reviewer decided, read from the report's CSV and applied to a file of labels.

A decisions file has the columns `id,given,decision,new_label`; `decision` is one of `keep`, `relabel`,
`ambiguous` and `skip`, and `new_label` is filled for `relabel` only. Labels are class names.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesmooth.audit.files import write_atomically
from bayesmooth.errors import InputError

DECISIONS = ("keep", "relabel", "ambiguous", "skip")
COLUMNS = ["id", "given", "decision", "new_label"]


@dataclass(frozen=True)
class Decision:
    """One row of a decisions file."""

    id: str
    given: str
    decision: str
    new_label: str = ""


@dataclass(frozen=True)
class Corrected:
    """Labels after the decisions, with the positions of what was changed and of what is ambiguous."""

    labels: tuple[str, ...]
    relabelled: tuple[int, ...]
    ambiguous: tuple[int, ...]


def read_decisions(path: str | Path) -> tuple[Decision, ...]:
    """The decisions in a CSV that the report wrote; a row that breaks the format is an error."""
    rows = _read_csv(path)
    if rows[0] != COLUMNS:
        raise InputError(f"{path}: first line {','.join(rows[0])!r}; must be {','.join(COLUMNS)}")
    decisions = [Decision(*row) for row in rows[1:]]
    seen: set[str] = set()
    for number, row in enumerate(decisions, start=1):
        if row.id in seen:
            raise InputError(
                f"{path}: row {number} decides on {row.id!r} a second time; keep one row"
            )
        if row.decision not in DECISIONS:
            raise InputError(
                f"{path}: row {number}: {row.decision!r} is none of {', '.join(DECISIONS)}"
            )
        if (row.decision == "relabel") != bool(row.new_label):
            raise InputError(f"{path}: row {number}: new_label goes with relabel, and only with it")
        seen.add(row.id)
    return tuple(decisions)


def apply_decisions(
    ids: Sequence[str],
    labels: Sequence[str],
    decisions: Sequence[Decision],
    class_names: Sequence[str] | None = None,
) -> Corrected:
    """The labels after the decisions.

    `labels` are class names, or positions in `class_names` written as numbers; the result is written alike.
    Without `class_names` the classes are those that occur in `labels`.

    >>> apply_decisions(["a", "b"], ["cat", "dog"], [Decision("a", "cat", "relabel", "dog")]).labels
    ('dog', 'dog')
    """
    position = {name: i for i, name in enumerate(ids)}
    if len(position) < len(ids):
        raise InputError(
            "the ids of the labels are not unique; decisions could not tell them apart"
        )
    written = _spelling(labels, class_names)
    corrected = list(labels)
    for row in decisions:
        _check(row, position, labels, written)
        if row.decision == "relabel":
            corrected[position[row.id]] = written[row.new_label]
    changed = tuple(i for i, label in enumerate(corrected) if label != labels[i])
    ambiguous = (position[row.id] for row in decisions if row.decision == "ambiguous")
    return Corrected(tuple(corrected), changed, tuple(sorted(ambiguous)))


def clean(
    labels: str | Path,
    decisions: str | Path,
    out: str | Path,
    class_names: Sequence[str] | None = None,
    drop_ambiguous: bool = False,
) -> Corrected:
    """Write `out`: the CSV `labels` with the decisions applied, all other columns as they were.

    The labels stand in the column `label`, or else `given` (as in `audit.csv`); the ids in `id`, or else a
    row's id is its position from 0. Neither input is ever written to.
    """
    header, *rows = _read_csv(labels)
    at = _label_column(header, labels)
    ids = _column(rows, header.index("id")) if "id" in header else [*map(str, range(len(rows)))]
    result = apply_decisions(ids, _column(rows, at), read_decisions(decisions), class_names)
    if any(Path(out).exists() and Path(out).samefile(source) for source in (labels, decisions)):
        raise InputError(f"{out}: would overwrite an input; name another file")
    dropped = frozenset(result.ambiguous if drop_ambiguous else ())
    corrected = [
        [*row[:at], label, *row[at + 1 :]]
        for i, (row, label) in enumerate(zip(rows, result.labels, strict=True))
        if i not in dropped
    ]
    write_atomically(out, _to_csv([header, *corrected]))
    return result


def _label_column(header: list[str], path: str | Path) -> int:
    for name in ("label", "given"):
        if name in header:
            return header.index(name)
    raise InputError(f"{path}: no column label or given among {', '.join(header)}; rename one")


def _column(rows: list[list[str]], at: int) -> list[str]:
    return [row[at] for row in rows]


def _to_csv(rows: list[list[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _read_csv(path: str | Path) -> list[list[str]]:
    """Header and rows of one width, blank lines left out."""
    try:
        # A byte order mark is what spreadsheets add when they save.
        text = Path(path).read_bytes().decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise InputError(f"{path}: cannot be read as UTF-8 CSV; {cause}") from None
    if not rows:
        raise InputError(f"{path}: empty; its first line must name the columns")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{path}: row {number} has {len(row)} fields, the header {len(rows[0])}"
            )
    return rows


def _spelling(labels: Sequence[str], class_names: Sequence[str] | None) -> dict[str, str]:
    """How the labels write each class: by its name or by its position."""
    if class_names is None:
        return {label: label for label in labels}
    by_name = {name: name for name in class_names}
    by_position = {name: str(k) for k, name in enumerate(class_names)}
    for spelling in (by_name, by_position):
        if set(labels) <= set(spelling.values()):
            return spelling
    odd = next(label for label in labels if label not in by_name)
    raise InputError(
        f"label {odd!r} is neither one of the {len(class_names)} classes nor its position"
    )


def _check(
    row: Decision, position: Mapping[str, int], labels: Sequence[str], written: Mapping[str, str]
) -> None:
    """Refuse a decision that was made on other data than these."""
    if row.id not in position:
        raise InputError(f"decision on id {row.id!r}, which the labels do not have; wrong file?")
    label = labels[position[row.id]]
    if written.get(row.given) != label:
        raise InputError(
            f"id {row.id!r} has the label {label!r}, but the decision was made on {row.given!r}; "
            "the labels changed since the audit: audit them again"
        )
    if row.new_label and row.new_label not in written:
        raise InputError(
            f"id {row.id!r}: unknown class {row.new_label!r}; known: {', '.join(list(written)[:20])}"
        )
