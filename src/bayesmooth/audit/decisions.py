"""What a reviewer decided, read from the report's CSV and applied to the labels, wherever these are kept.

A decisions file has the columns `id,given,decision,new_label`; `decision` is one of `keep`, `relabel`,
`remove` (the row leaves the data) and `skip`, and `new_label` is filled for `relabel` only. Labels are class names; a
new one makes a new class.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.audit.problems import UNREADABLE
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.tags import TagLabels, Vocabulary
from bayesmooth.data.csvtext import CsvText, unguard
from bayesmooth.data.formats import open_labels
from bayesmooth.data.labels import MISSING, class_numbers, label_texts
from bayesmooth.errors import InputError
from bayesmooth.files import read_json

DECISIONS = ("keep", "relabel", "remove", "skip")
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
    """Labels after the decisions, with the positions of what was changed and of what is removed."""

    labels: tuple[str, ...]
    relabelled: tuple[int, ...]
    removed: tuple[int, ...]


def read_decisions(path: str | Path) -> tuple[Decision, ...]:
    """The decisions in a CSV that the report wrote; a row that breaks the format is an error."""
    table = CsvText(Path(path))
    if table.header != COLUMNS:
        raise InputError(
            f"{path}: first line {table.mark.join(table.header)!r}; must be {','.join(COLUMNS)}"
        )
    decisions = [Decision(*map(unguard, row)) for row in table.rows()]
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
    numbered: bool = False,
) -> Corrected:
    """The labels after the decisions.

    `labels` are class names, or positions in `class_names` written as numbers; the result is written alike.
    Without `class_names` the classes are those that occur in `labels` or are decided on. Blanks around a label stay.

    >>> apply_decisions(["a", "b"], ["cat ", "dog"], [Decision("a", "cat", "relabel", "dog")]).labels
    ('dog ', 'dog')
    """
    position = {name: i for i, name in enumerate(ids)}
    twice = {name for name, times in Counter(ids).items() if times > 1}
    bare = label_texts(labels)
    classes = _find_classes(bare, class_names, numbered)
    if class_names is None:
        classes |= {row.new_label: row.new_label for row in decisions if row.decision == "relabel"}
    # As it stands in the first row that has it: 0.0 stays 0.0.
    written = {text: label.strip() for text, label in zip(bare[::-1], labels[::-1], strict=True)}
    corrected = list(labels)
    for row in decisions:
        if row.id in twice:
            raise InputError(
                f"decision on id {row.id!r}, which several rows have; make the ids unique and audit again"
            )
        _check(row, position, bare, classes)
        if row.decision == "relabel" and classes[row.new_label] != bare[position[row.id]]:
            at, new = position[row.id], classes[row.new_label]
            corrected[at] = labels[at].replace(labels[at].strip(), written.get(new, new))
    changed = tuple(i for i, label in enumerate(corrected) if label != labels[i])
    removed = (position[row.id] for row in decisions if row.decision == "remove")
    return Corrected(tuple(corrected), changed, tuple(sorted(removed)))


def clean(
    labels: str | Path,
    decisions: str | Path | None,
    out: str | Path,
    class_names: Sequence[str] | None = None,
    label: str | None = None,
    id: str | None = None,
    encoding: str | None = None,
    tags: Sequence[str] | None = None,
    separator: str | None = None,
    audit: str | Path | None = None,
    drop_duplicates: bool = False,
    drop_unreadable: bool = False,
) -> Corrected:
    """Write `out`: the labels with the decisions applied, in the format they came in, all else as it was.

    `labels` is what was audited (a CSV, TSV, Parquet, .npz or .npy file, a Hugging Face data set on disk, a folder of
    pictures or of Parquet files) or the `audit.csv` of it. `label` and `id` name the columns, or the arrays in a .npz;
    else those that were audited count, if the `audit` is at hand (a folder; by default that of the decisions, or
    `audit`), else the usual names, and without ids the position of a row, from 0, is its id. No input is ever written
    to. Where an example has several labels, `tags` names their columns of 0 and 1, or `separator` is what stands
    between them in the column of labels.

    `drop_duplicates` leaves out all but the first of the near duplicates that have the same label in the end,
    `drop_unreadable` the pictures that the audit could not read.
    """
    source, target = Path(labels), Path(out)
    inputs = [source, *([] if decisions is None else [Path(decisions)])]
    if any(target.exists() and path.exists() and target.samefile(path) for path in inputs):
        raise InputError(f"{target}: would overwrite an input; name another file")
    if not target.parent.is_dir():
        raise InputError(f"{target}: its folder does not exist; create {target.parent} first")
    files = AuditFiles.find(source, decisions, audit)
    named: dict[str, Any] = {"label": label, "id": id, "encoding": encoding}
    named |= {"separator": separator, "class_names": class_names, "tags": tags}
    audited = {} if files is None else files.read_columns()
    settings = Settings(**audited | {name: v for name, v in named.items() if v is not None})
    read: Sequence[Decision] = () if decisions is None else read_decisions(decisions)
    data = (
        TagLabels(source, settings)
        if settings.tagged
        else open_labels(source, settings.label, settings.id, settings.encoding)
    )
    names = data.class_names if settings.class_names is None else settings.class_names
    if isinstance(data, TagLabels):
        read, names = rewrite_sets(read, data.words, data.labels)
    made = apply_decisions(data.ids, data.labels, read, names, data.numbered)
    gone = {*made.removed}
    if drop_duplicates or drop_unreadable:
        if files is None:
            raise InputError(f"{source}: no audit of it is at hand; name its folder (--audit)")
        final = dict(zip(data.ids, made.labels, strict=True))
        dropped = files.list_copies(final) if drop_duplicates else set[str]()
        dropped |= files.list_unreadable() if drop_unreadable else set()
        gone |= {i for i, name in enumerate(data.ids) if name in dropped}
    rows = [i for i in range(len(data.ids)) if i not in gone]
    data.write(target, {i: made.labels[i] for i in made.relabelled}, rows)
    return replace(made, removed=tuple(sorted(gone)))


@dataclass(frozen=True)
class AuditFiles:
    """The folder of an audit, as `Audit.save` wrote it."""

    folder: Path
    summary: Mapping[str, Any]

    @classmethod
    def find(
        cls, source: Path, decisions: str | Path | None, named: str | Path | None
    ) -> "AuditFiles | None":
        """The audit of this source: in the folder that is named, beside the decisions or the source, or in `audit`."""
        near = [source.parent] if decisions is None else [Path(decisions).parent, source.parent]
        folders = [Path(named)] if named is not None else [*near, Path("audit")]
        for folder in folders:
            if (folder / "audit.json").is_file():
                summary = read_json(folder / "audit.json")
                if named is not None or summary.get("source") in (source.name, source.stem):
                    return cls(folder, summary)
        if named is not None:
            raise InputError(f"{named}: holds no audit.json; name the folder that `audit` wrote")
        return None

    def read_columns(self) -> dict[str, Any]:
        """The settings by which the labels were read."""
        columns = self.summary.get("columns", {})
        lists = {"labels": "tags", "class-names": "class_names"}
        return {
            lists.get(name, name): value.split(",") if name in lists else value
            for name, value in columns.items()
        }

    def list_copies(self, labels: Mapping[str, str]) -> set[str]:
        """Ids of near duplicates that have the same label as the first of them, which is not among them."""
        table = CsvText(self.folder / "audit.csv")
        if "duplicate_of" not in table.header:
            raise InputError(f"{self.folder}: this audit looked for no duplicates")
        id, first = (table.header.index(name) for name in ("id", "duplicate_of"))
        pairs = [(unguard(row[id]), unguard(row[first])) for row in table.rows()]
        return {a for a, b in pairs if b not in ("", a) and labels.get(a) == labels.get(b)}

    def list_unreadable(self) -> set[str]:
        """Ids of the pictures that could not be read."""
        problems = self.summary.get("problems", [])
        return {id for one in problems if one["kind"] == UNREADABLE for id in one["ids"]}


def rewrite_sets(
    decisions: Sequence[Decision], words: Vocabulary, known: Iterable[str]
) -> tuple[tuple[Decision, ...], Sequence[str]]:
    """Decisions on sets of tags as the vocabulary writes them, and all sets: the known ones and the new ones."""
    made = []
    for row in decisions:
        where = f"decision on id {row.id!r}"
        new = row.new_label and words.rewrite(row.new_label, where)
        made.append(replace(row, given=words.rewrite(row.given, where), new_label=new))
    names = dict.fromkeys([*known, *(row.new_label for row in made)])
    return tuple(made), [name for name in names if name]


def _find_classes(
    labels: Sequence[str], class_names: Sequence[str] | None, numbered: bool
) -> dict[str, str]:
    """What stands in the labels for each class: its name or its position."""
    if class_names is None:
        return {label: label for label in labels}
    present = set(labels) - {*MISSING, "-1"}  # rows without a label are in no decision
    numbers = class_numbers(present, class_names, numbered)
    odd = sorted(present - numbers.keys())
    if odd:
        raise InputError(
            f"label {odd[0]!r} is neither one of the {len(class_names)} classes nor its position"
        )
    return {class_names[k]: text for text, k in numbers.items()}


def _check(
    row: Decision, position: Mapping[str, int], labels: Sequence[str], classes: Mapping[str, str]
) -> None:
    """Refuse a decision that was made on other data than these."""
    if row.id not in position:
        raise InputError(
            f"decision on id {row.id!r}, which the labels do not have; "
            "give the file that was audited, and the same column of ids (--id)"
        )
    label = labels[position[row.id]]
    if classes.get(row.given) != label:
        raise InputError(
            f"id {row.id!r} has the label {label!r}, but the decision was made on {row.given!r}; "
            "the labels changed since the audit: audit them again"
        )
    if row.new_label and row.new_label not in classes:
        raise InputError(
            f"id {row.id!r}: unknown class {row.new_label!r}; known: {', '.join(list(classes)[:20])}"
        )
