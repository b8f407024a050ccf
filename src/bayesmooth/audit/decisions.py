"""A reviewer's decisions, read from the report's CSV and applied to the labels in their own format.

A decisions file has the columns `id,given,decision,new_label,drawn`; `decision` is one of `keep`, `relabel`,
`remove` (the row leaves the data) and `skip`, and `new_label` is filled for `relabel` only. Labels are class names; a
new one makes a new class, unless the data set names its classes. `drawn` is the probability with which the row came
into the queue of the review; it is empty for other rows, and the column may be missing.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.data import Columns, Labels, Source, open_source
from bayesmooth.data.formats import read_csv
from bayesmooth.data.labels import MISSING
from bayesmooth.data.opening import FILES
from bayesmooth.data.source import Kind
from bayesmooth.data.tables import unguard
from bayesmooth.errors import InputError
from bayesmooth.files import check_output, read_json

DECISIONS = ("keep", "relabel", "remove", "skip")
COLUMNS = ["id", "given", "decision", "new_label", "drawn"]
NUMBER = re.compile(r"\d*\.?\d+([eE]-\d+)?", re.ASCII)


@dataclass(frozen=True)
class Decision:
    """One row of a decisions file."""

    id: str
    given: str
    decision: str
    new_label: str = ""
    drawn: str = ""

    @property
    def wrong(self) -> bool | None:
        """Whether the reviewer found the label wrong; None where they skipped it."""
        return None if self.decision == "skip" else self.decision != "keep"


@dataclass(frozen=True)
class Corrected:
    """Labels after the decisions, with the positions of the changed and of the removed ones."""

    labels: Labels
    relabelled: tuple[int, ...]
    removed: tuple[int, ...]


def read_decisions(path: str | Path) -> tuple[Decision, ...]:
    """The decisions in a CSV that the report wrote; a row that breaks the format is an error."""
    table = read_csv(Path(path))
    if table.names not in (COLUMNS, COLUMNS[:-1]):
        raise InputError(f"{path}: first line {','.join(table.names)!r}; must be {','.join(COLUMNS)}")
    rows = zip(*map(table.values, table.names), strict=True)
    decisions = [Decision(*map(unguard, row)) for row in rows]
    seen: set[str] = set()
    for number, row in enumerate(decisions):
        if row.id in seen:
            raise InputError(f"{path}: {table.place(number)} decides on {row.id!r} a second time; keep one row")
        if row.decision not in DECISIONS:
            raise InputError(f"{path}: {table.place(number)}: {row.decision!r} is none of {', '.join(DECISIONS)}")
        if (row.decision == "relabel") != bool(row.new_label):
            raise InputError(f"{path}: {table.place(number)}: new_label goes with relabel, and only with it")
        if row.drawn and not (NUMBER.fullmatch(row.drawn) and 0 < float(row.drawn) <= 1):
            raise InputError(f"{path}: {table.place(number)}: drawn={row.drawn!r} must be above 0, to 1, or empty")
        seen.add(row.id)
    return tuple(decisions)


def apply_decisions(source: Source, decisions: Sequence[Decision]) -> Corrected:
    """The labels of a source after the decisions; one that was made on other data is an error."""
    labels, positions = source.labels, source.find([row.id for row in decisions])
    texts, twice = labels.texts(), {id for id, times in Counter(source.ids).items() if times > 1}
    corrected, named = list(texts), labels.kind != "tags" and source.names_classes
    unread = {*MISSING} - {*labels.names} if source.table is not None and source.table.given is None else {""}
    for row in decisions:
        if row.id in twice:
            raise InputError(
                f"decision on id {row.id!r}, which several rows have; make the ids unique and audit again; "
                "if the rows are votes, clean audit.csv"
            )
        if row.id not in positions:
            raise InputError(
                f"decision on id {row.id!r}, which the labels do not have; give the file that was audited, "
                "with the same columns (--label, --id), or audit it again if its rows changed since"
            )
        where, at = f"decision on id {row.id!r}", positions[row.id]
        if labels.parse(row.given, where) != texts[at]:
            raise InputError(
                f"id {row.id!r} has the label {texts[at]!r}, but the decision was made on {row.given!r}; "
                "the labels changed since the audit: audit them again"
            )
        if row.new_label:
            corrected[at] = labels.parse(row.new_label, where)
            if corrected[at] in unread:
                raise InputError(f"id {row.id!r}: {row.new_label!r} means that a label is missing; rename it")
            if named and corrected[at] not in labels.names:
                classes = ", ".join(labels.names[:20])
                raise InputError(f"id {row.id!r}: unknown class {row.new_label!r}; known: {classes}")
    changed = tuple(i for i, text in enumerate(corrected) if text != texts[i])
    removed = sorted(positions[row.id] for row in decisions if row.decision == "remove")
    return Corrected(labels.relabel(corrected), changed, tuple(removed))


def clean(
    labels: str | Path,
    decisions: str | Path | None,
    out: str | Path,
    *,
    audit: str | Path | None = None,
    drop_duplicates: bool = False,
    drop_unreadable: bool = False,
    **columns: Any,
) -> Corrected:
    """Write `out`: the labels with the decisions applied, in the format they came in, all else as it was.

    `labels` are the audited data, a file or a folder, or their `audit.csv`. `columns` give the meaning of the columns,
    by the names of `bayesmooth.data.Columns`; else those that were audited count, if the `audit` is at hand (a folder;
    by default that of the decisions, or `audit`), else the usual names. No input is ever written to.

    `drop_duplicates` leaves out all but the first of the near duplicates that have the same label in the end,
    `drop_unreadable` the pictures that the audit could not read.
    """
    path, target = Path(labels), Path(out)
    inputs = [path, *([] if decisions is None else [Path(decisions)])]
    if any(target.exists() and place.exists() and target.samefile(place) for place in inputs):
        raise InputError(f"{target}: would overwrite an input; name another file")
    if path.is_file():
        own, known = path.suffix.lower(), target.suffix.lower() in {*FILES, ".gz"}
        check_output(target, [end for end in (*FILES, ".gz") if known and FILES.get(end) is FILES.get(own)])
    if not target.parent.is_dir():
        raise InputError(f"{target}: its folder does not exist; create {target.parent} first")
    audited = find_audit(path, decisions, audit)
    summary = {} if audited is None else read_json(audited)
    if audited is None or path.resolve() != audited.with_suffix(".csv").resolve():  # whose columns are the usual
        columns = summary.get("columns", {}) | {k: v for k, v in columns.items() if v is not None}
    source = open_source(path, Columns(**columns))
    corrected = apply_decisions(source, () if decisions is None else read_decisions(decisions))
    texts, gone = corrected.labels.texts(), {*corrected.removed}
    if drop_duplicates or drop_unreadable:
        if audited is None:
            raise InputError(f"{path}: no audit of it is at hand; name its folder (--audit)")
        final = {name: text for i, (name, text) in enumerate(zip(source.ids, texts, strict=True)) if i not in gone}
        dropped = list_copies(audited.with_suffix(".csv"), final) if drop_duplicates else set[str]()
        if drop_unreadable:
            dropped |= {i for one in summary["problems"] if one["kind"] == Kind.UNREADABLE for i in one["ids"]}
        gone |= {i for i, name in enumerate(source.ids) if name in dropped}
    changes: dict[str, str | None] = {source.ids[i]: texts[i] for i in corrected.relabelled}
    source.write(target, changes | dict.fromkeys((source.ids[i] for i in gone), None))
    return replace(corrected, removed=tuple(sorted(gone)))


def find_audit(source: Path, decisions: str | Path | None, named: str | Path | None) -> Path | None:
    """The audit.json of this source: in the folder that is named, beside the decisions or the source, or in `audit`."""
    if named is not None:
        if not (Path(named) / "audit.json").is_file():
            raise InputError(f"{named}: holds no audit.json; name the folder that `audit` wrote")
        return Path(named) / "audit.json"
    folders = [source.parent, Path("audit")]
    if decisions is not None:
        folders.insert(0, Path(decisions).parent)
    names = source.name, Path(source.name.removesuffix(".gz")).stem
    for place in (folder / "audit.json" for folder in folders):
        own = source == place.with_suffix(".csv")
        if place.is_file() and (own or read_json(place).get("source") in names):
            return place
    return None


def list_copies(table: Path, labels: Mapping[str, str]) -> set[str]:
    """Ids of near duplicates with the same label as an earlier one, among the ids that have a label here."""
    audited = read_csv(table)
    if "duplicate_of" not in audited.names:
        raise InputError(f"{table}: this audit tells no duplicates: it had no inputs, or equal rows occur by chance")
    first: dict[tuple[str, str], str] = {}
    pairs = zip(audited.values("id"), audited.values("duplicate_of"), strict=True)
    return {a for a, b in pairs if b and a in labels and first.setdefault((b, labels[a]), a) != a}
