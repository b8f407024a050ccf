"""What a reviewer decided, read from the report's CSV and applied to the labels, wherever these are kept.

A decisions file has the columns `id,given,decision,new_label`; `decision` is one of `keep`, `relabel`,
`ambiguous` and `skip`, and `new_label` is filled for `relabel` only. Labels are class names.
"""

import io
import re
import shutil
import zipfile
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bayesmooth.audit.opening import HUGGING_FACE, LABELS, class_names_of, read_arrow, split_folder
from bayesmooth.data.pictures import folder
from bayesmooth.data.reading import read_npy, read_npz
from bayesmooth.data.tabular import MISSING, separator
from bayesmooth.errors import InputError
from bayesmooth.files import read_json, write_atomically, write_json
from bayesmooth.optional import require

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
    table = _TextTable(Path(path), ",")
    if table.header != COLUMNS:
        raise InputError(
            f"{path}: first line {','.join(table.header)!r}; must be {','.join(COLUMNS)}"
        )
    decisions = [Decision(*row) for row in table.rows()]
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
    Without `class_names` the classes are those that occur in `labels`. Blanks around a label stay.

    >>> apply_decisions(["a", "b"], ["cat ", "dog"], [Decision("a", "cat", "relabel", "dog")]).labels
    ('dog ', 'dog')
    """
    position = {name: i for i, name in enumerate(ids)}
    if len(position) < len(ids):
        raise InputError(
            "the ids of the labels are not unique; decisions could not tell them apart"
        )
    bare = [label.strip() for label in labels]
    written = _spelling(bare, class_names)
    corrected = list(labels)
    for row in decisions:
        _check(row, position, bare, written)
        if row.decision == "relabel":
            at = position[row.id]
            corrected[at] = labels[at].replace(bare[at], written[row.new_label])
    changed = tuple(i for i, label in enumerate(corrected) if label != labels[i])
    ambiguous = (position[row.id] for row in decisions if row.decision == "ambiguous")
    return Corrected(tuple(corrected), changed, tuple(sorted(ambiguous)))


def clean(
    labels: str | Path,
    decisions: str | Path,
    out: str | Path,
    class_names: Sequence[str] | None = None,
    drop_ambiguous: bool = False,
    label: str | None = None,
    id: str | None = None,
) -> Corrected:
    """Write `out`: the labels with the decisions applied, in the format they came in, all else as it was.

    `labels` is what was audited (a CSV, TSV, Parquet, .npz or .npy file, a Hugging Face data set on disk, a folder of
    pictures or of Parquet files) or the `audit.csv` of it. `label` and `id` name the columns, or the arrays in a .npz;
    else the usual names count, and without ids the position of a row, from 0, is its id. No input is ever written to.
    """
    source, target = Path(labels), Path(out)
    if any(target.exists() and target.samefile(path) for path in (source, decisions)):
        raise InputError(f"{target}: would overwrite an input; name another file")
    if not target.parent.is_dir():
        raise InputError(f"{target}: its folder does not exist; create {target.parent} first")
    kept = _open(source, label, id)
    names = class_names if class_names is not None else kept.class_names
    result = apply_decisions(kept.ids, kept.labels, read_decisions(decisions), names)
    gone = frozenset(result.ambiguous if drop_ambiguous else ())
    kept.write(target, result, [i for i in range(len(kept.ids)) if i not in gone])
    return result


class _Kept(Protocol):
    """Labels in a format that can be written again."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def class_names(self) -> Sequence[str] | None: ...

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """Write these rows with their labels after the decisions."""


def _open(path: Path, label: str | None, id: str | None) -> _Kept:
    if path.is_dir():
        if any((path / name).is_file() for name in HUGGING_FACE):
            return _HuggingFace(path, label, id)
        if any(path.glob("*.parquet")):
            return _ParquetFolder(path, label, id)
        return _Folder(path)
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        return _Arrays(path, label, id)
    if kind in (".parquet", ".pq"):
        return _Parquet(path, label, id)
    return _Csv(path, label, id)


def _find_column(path: Path, columns: Sequence[str], label: str | None) -> str:
    wanted = (label,) if label else (*LABELS, "given")
    for name in wanted:
        if name in columns:
            return name
    raise InputError(
        f"{path}: no column {' or '.join(wanted)} among {', '.join(columns)[:200]}; name it with label (--label)"
    )


def _id_column(path: Path, columns: Sequence[str], id: str | None) -> str | None:
    if id is not None and id not in columns:
        raise InputError(f"{path}: no column {id!r} for the ids among {', '.join(columns)[:200]}")
    return id or ("id" if "id" in columns else None)


class _TextTable:
    """A CSV as a text and the places of its fields: what is not changed stays as it was, to the byte."""

    def __init__(self, path: Path, mark: str) -> None:
        self.path = path
        try:
            # A byte order mark is what spreadsheets add when they save.
            self.text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as cause:
            raise InputError(f"{path}: cannot be read as UTF-8 CSV; {cause}") from None
        start = 1 if self.text.startswith("\ufeff") else 0
        lines = self._lines(start, mark)
        if not lines:
            raise InputError(f"{path}: empty; its first line must name the columns")
        self.places = lines[1:]
        self.header = [self.field(place) for place in lines[0]]
        for number, line in enumerate(self.places, start=1):
            if len(line) != len(self.header):
                raise InputError(
                    f"{path}: row {number} has {len(line)} fields, the header {len(self.header)}"
                )

    def _lines(self, start: int, mark: str) -> list[list[tuple[int, int]]]:
        """The (start, end) of every field of every line that is not blank."""
        field = re.compile(rf'("(?:[^"]|"")*"|[^"{mark}\r\n][^{mark}\r\n]*|)({mark}|\r\n|\r|\n|\Z)')
        lines: list[list[tuple[int, int]]] = [[]]
        at = start
        while at < len(self.text):
            found = field.match(self.text, at)
            if found is None:
                line = self.text.count("\n", 0, at) + 1
                raise InputError(
                    f"{self.path}: cannot be read as UTF-8 CSV; line {line} has a stray quotation mark"
                )
            lines[-1].append(found.span(1))
            at = found.end()
            if found[2] != mark:
                lines.append([])
        if lines[-1] and self.text.endswith(mark):
            lines[-1].append((at, at))
        return [line for line in lines if line and line != [(line[0][0], line[0][0])]]

    def field(self, place: tuple[int, int]) -> str:
        """The value at a place, without the quotation marks around it."""
        raw = self.text[slice(*place)]
        return raw[1:-1].replace('""', '"') if raw.startswith('"') else raw

    def rows(self) -> list[list[str]]:
        """The values of all rows."""
        return [[self.field(place) for place in line] for line in self.places]

    def column(self, name: str) -> list[str]:
        """The values of a column."""
        at = self.header.index(name)
        return [self.field(line[at]) for line in self.places]


class _Csv:
    class_names: Sequence[str] | None = None

    def __init__(self, path: Path, label: str | None, id: str | None) -> None:
        try:
            self.mark = separator(path)
        except OSError as cause:
            raise InputError(f"{path}: cannot be read as UTF-8 CSV; {cause}") from None
        self.table = table = _TextTable(path, self.mark)
        self.at = table.header.index(_find_column(path, table.header, label))
        self.labels = [table.field(line[self.at]) for line in table.places]
        key = _id_column(path, table.header, id)
        self.ids = table.column(key) if key else [*map(str, range(len(self.labels)))]

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """The text as it was, but for the labels that changed and the lines that are left out."""
        text, places = self.table.text, self.table.places
        starts = [line[0][0] for line in places] + [len(text)]
        changed, parts = set(result.relabelled), [text[: starts[0]] if places else text]
        for row in rows:
            begin, end = starts[row], starts[row + 1]
            if row not in changed:
                parts.append(text[begin:end])
                continue
            first, last = places[row][self.at]
            parts += [
                text[begin:first],
                self._quoted(result.labels[row], text[first:last]),
                text[last:end],
            ]
        write_atomically(out, "".join(parts))

    def _quoted(self, label: str, before: str) -> str:
        needed = before.startswith('"') or any(
            sign in label for sign in (self.mark, '"', "\n", "\r")
        )
        return '"' + label.replace('"', '""') + '"' if needed else label


class _Arrays:
    """A .npz of arrays, or a .npy of labels."""

    class_names: Sequence[str] | None = None

    def __init__(self, path: Path, label: str | None, id: str | None) -> None:
        self.path = path
        self.arrays = (
            read_npz(path) if path.suffix.lower() == ".npz" else {"labels": read_npy(path)}
        )
        self.key = _find_column(path, list(self.arrays), label)
        self.given = self.arrays[self.key]
        self.labels = [_as_text(value) for value in self.given.tolist()]
        key = id or "ids"
        if id is not None and id not in self.arrays:
            raise InputError(f"{path}: has no array {id!r}, only {', '.join(self.arrays)}")
        self.ids = (
            [str(value) for value in self.arrays[key].tolist()]
            if key in self.arrays
            else [*map(str, range(len(self.labels)))]
        )
        if "class_names" in self.arrays:
            self.class_names = self.arrays["class_names"].tolist()

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """All arrays; those with one entry per example without the rows that are left out."""
        whole = self.given.dtype.kind in "iu"
        labels = np.array(result.labels).astype(self.given.dtype if whole else np.str_)
        count = len(self.ids)
        made = {
            name: array[rows]
            if len(rows) < count and array.shape[:1] == (count,) and name != "class_names"
            else array
            for name, array in (self.arrays | {self.key: labels}).items()
        }
        content = io.BytesIO()
        if self.path.suffix.lower() == ".npy":
            np.save(content, made[self.key])
        else:
            with zipfile.ZipFile(self.path) as archive:
                packed = any(entry.compress_type for entry in archive.infolist())
            (np.savez_compressed if packed else np.savez)(content, **made)
        write_atomically(out, content.getvalue())


class _Parquet:
    """An Arrow table; a subclass says where it comes from and goes to."""

    class_names: Sequence[str] | None = None

    def __init__(self, path: Path, label: str | None, id: str | None) -> None:
        self.path = path
        self.table = self.read()
        columns = self.table.column_names
        self.label = _find_column(path, columns, label)
        key = _id_column(path, columns, id)
        self.labels = [_as_text(value) for value in self.table[self.label].to_pylist()]
        self.ids = (
            [_as_text(value) for value in self.table[key].to_pylist()]
            if key
            else [*map(str, range(len(self.labels)))]
        )

    def read(self) -> Any:
        """The table."""
        arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
        try:
            return parquet.read_table(self.path)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise InputError(f"{self.path}: not a table that can be read ({error})") from None

    def corrected(self, result: Corrected, rows: Sequence[int]) -> Any:
        """The table with its labels after the decisions, in the type that they had."""
        arrow = require("pyarrow", "data")
        at = self.table.column_names.index(self.label)
        field = self.table.schema.field(at)
        text = arrow.array([value if value else None for value in result.labels], arrow.string())
        dictionary = arrow.types.is_dictionary(field.type)
        column = text.cast(field.type.value_type if dictionary else field.type)
        column = column.dictionary_encode().cast(field.type) if dictionary else column
        made = self.table.set_column(at, field, column)
        return made if len(rows) == len(self.ids) else made.take(arrow.array(rows, arrow.int64()))

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """One Parquet file."""
        content = io.BytesIO()
        require("pyarrow.parquet", "data").write_table(self.corrected(result, rows), content)
        write_atomically(out, content.getvalue())


class _ParquetFolder(_Parquet):
    """A table in several files, which keep their names and their rows."""

    def read(self) -> Any:
        """The table of all files."""
        arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
        self.files = sorted(self.path.glob("*.parquet"))
        try:
            tables = [parquet.read_table(file) for file in self.files]
            self.sizes = [len(table) for table in tables]
            return arrow.concat_tables(tables)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise InputError(f"{self.path}: not a table that can be read ({error})") from None

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """A folder of files with the same names."""
        _check_new(out, self.path)
        made, begin = self.corrected(result, rows), 0
        ends = np.cumsum(self.sizes).tolist()
        out.mkdir(exist_ok=True)
        for file, end in zip(self.files, ends, strict=True):
            count = bisect_left(rows, end) - begin
            content = io.BytesIO()
            part = made.slice(begin, count)
            require("pyarrow.parquet", "data").write_table(part, content)
            write_atomically(out / file.name, content.getvalue())
            begin += count


class _HuggingFace(_Parquet):
    """A data set on disk; of one with several splits, that which was audited."""

    def read(self) -> Any:
        """The table of the split."""
        self.split, _ = split_folder(self.path)
        return read_arrow(self.split)

    def __init__(self, path: Path, label: str | None, id: str | None) -> None:
        super().__init__(path, label, id)
        self.class_names = class_names_of(
            read_json(self.split / HUGGING_FACE[1]).get("features"), self.label
        )

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """A folder of the same layout, with one Arrow file for the split that changed."""
        made = self.corrected(result, rows)
        _check_new(out, self.path)
        shutil.copytree(self.path, out, dirs_exist_ok=True)
        split = out / self.split.relative_to(self.path)
        for old in split.glob("*.arrow"):
            old.unlink()
        content = io.BytesIO()
        with require("pyarrow.ipc", "data").new_stream(content, made.schema) as stream:
            stream.write_table(made)
        name = "data-00000-of-00001.arrow"
        write_atomically(split / name, content.getvalue())
        state = read_json(split / "state.json")
        write_json(
            split / "state.json",
            state | {"_data_files": [{"filename": name}], "_fingerprint": "cleaned"},
        )


class _Folder:
    """One folder of pictures per class."""

    def __init__(self, path: Path) -> None:
        self.path = path
        examples = folder("train", Path(), str(path.absolute()))
        self.base = path / "train" if (path / "train").is_dir() else path
        self.class_names = examples.class_names
        self.labels = [examples.class_names[int(k)] for k in examples.labels]
        self.ids = examples.ids or ()

    def write(self, out: Path, result: Corrected, rows: Sequence[int]) -> None:
        """A copy in which the pictures lie in the folders of their new classes."""
        _check_new(out, self.path)
        changed, keep = set(result.relabelled), set(rows)
        base = out / self.base.relative_to(self.path)
        shutil.copytree(self.path, out, dirs_exist_ok=True)
        for row, name in enumerate(self.ids):
            if row in keep and row not in changed:
                continue
            if row in keep:
                place = base / result.labels[row] / Path(name).relative_to(self.labels[row])
                if place.exists():  # another picture has this name there
                    place = place.with_name(f"{self.labels[row]}-{place.name}")
                place.parent.mkdir(parents=True, exist_ok=True)
                (base / name).rename(place)
            else:
                (base / name).unlink()


def _check_new(out: Path, source: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is there already; name a new folder")
    if source.absolute() in out.absolute().parents:
        raise InputError(f"{out}: lies in the folder that is read; name one outside of it")


def _as_text(value: Any) -> str:
    """A label as the audit reads it: whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else value.decode() if isinstance(value, bytes) else str(value)


def _spelling(labels: Sequence[str], class_names: Sequence[str] | None) -> dict[str, str]:
    """How the labels write each class: by its name or by its position."""
    if class_names is None:
        return {label: label for label in labels}
    by_name = {name: name for name in class_names}
    by_position = {name: str(k) for k, name in enumerate(class_names)}
    present = set(labels) - {*MISSING, "-1"}  # rows without a label are in no decision
    for spelling in (by_name, by_position):
        if present <= set(spelling.values()):
            return spelling
    odd = next(label for label in labels if label in present and label not in by_name)
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
