"""Tables that Arrow reads: Parquet, folders of Parquet files, data sets of Hugging Face."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.data.labels import LABELS
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Array, Changes, Table, check_table, write_folder
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors, replace_with
from bayesmooth.optional import require

PIECE = 8192  # rows whose vectors are copied at once


class ArrowTable(Table):
    """A table that Arrow reads, column by column."""

    def __init__(self, where: str, columns: Columns, schema: Any, count: int, read: Any) -> None:
        super().__init__(where, columns)
        check_table(where, schema.names, count)
        self.schema, self.names, self.count, self.read = schema, schema.names, count, read

    def __len__(self) -> int:
        return self.count

    def values(self, name: str) -> list[Any]:
        """The values of a column; missing ones are None."""
        found: list[Any] = self.read([name])[name].to_pylist()
        return found

    def array(self, name: str) -> Array:
        """A column of numbers, or of vectors, without a detour."""
        types, kind = require("pyarrow", "data").types, self.schema.field(name).type
        if types.is_integer(kind) or types.is_floating(kind) or is_list(kind):
            made: Array = self.read([name])[name].to_numpy()
            return made
        return super().array(name)

    @cached_property
    def vectors(self) -> list[str]:
        """The columns of lists."""
        return [field.name for field in self.schema if is_list(field.type)]

    def plain_names(self) -> list[str]:
        """The columns of texts, numbers, truths and times."""
        types = require("pyarrow", "data").types
        odd = (types.is_nested, types.is_binary, types.is_large_binary)
        return [f.name for f in self.schema if not any(is_odd(f.type) for is_odd in odd)]

    def change(self, changes: Changes, rows: Sequence[int]) -> Any:
        """The Arrow table with other values, in the type they had: copied from a row that has them, or made."""
        arrow = require("pyarrow", "data")
        table = self.read(self.names)
        for name, changed in changes.items():
            at = table.column_names.index(name)
            field, column = table.schema.field(at), table[name]
            new, index = find_rows(self.texts(name), changed)
            if new:
                extra = self._make(new, field.type, name)
                chunks = [*column.chunks, extra]
                column = arrow.chunked_array(chunks, field.type).unify_dictionaries()
            table = table.set_column(at, field, column.take(arrow.array(index)))
        return table if len(rows) == len(self) else table.take(arrow.array(rows, arrow.int64()))

    def _make(self, texts: Sequence[str], kind: Any, name: str) -> Any:
        arrow = require("pyarrow", "data")
        try:
            inner = kind.value_type if arrow.types.is_dictionary(kind) else kind
            made = arrow.array(texts, arrow.string()).cast(inner)
            return made.dictionary_encode().cast(kind) if inner != kind else made
        except (ValueError, TypeError, arrow.ArrowException):
            raise InputError(f"{self.where}: the labels in {name!r} are {kind}; {texts[0]!r} is not one") from None


def is_list(kind: Any) -> bool:
    """Whether a type of Arrow is one of lists, such as vectors."""
    types = require("pyarrow", "data").types
    return any(f(kind) for f in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def find_rows(texts: Sequence[str], changed: Mapping[int, str]) -> tuple[list[str], Array]:
    """The new values that no row has yet, to go after the last row, and for every row one that has its new value."""
    source = {text: row for row, text in enumerate(texts)}
    new = [text for text in dict.fromkeys(changed.values()) if text not in source]
    source |= {text: len(texts) + k for k, text in enumerate(new)}
    index = np.arange(len(texts))
    index[list(changed)] = [source[text] for text in changed.values()]
    return new, index


class Parquet(ArrowTable):
    """A Parquet file."""

    def __init__(self, path: Path, columns: Columns) -> None:
        parquet = require("pyarrow.parquet", "data")
        with name_errors(path, "table"):
            file = parquet.ParquetFile(path)
            schema, count = file.schema_arrow, file.metadata.num_rows

        def read(names: Sequence[str]) -> Any:
            with name_errors(path, "table"):
                return parquet.ParquetFile(path).read(columns=list(names))

        super().__init__(str(path), columns, schema, count, read)
        self.path, self.folder = path, path.parent

    def read_pieces(self, column: str) -> Iterator[Array]:
        """The values of a column, some rows at a time."""
        file = require("pyarrow.parquet", "data").ParquetFile(self.path)
        for batch in file.iter_batches(PIECE, columns=[column]):
            yield batch[0].to_numpy(zero_copy_only=False)

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """One Parquet file."""
        changed, parquet = self.change(changes, rows), require("pyarrow.parquet", "data")
        replace_with(out, lambda beside: parquet.write_table(changed, beside))


class ParquetFolder(Table):
    """A table in several files, which keep their names, their rows and their own columns."""

    def __init__(self, path: Path, files: Sequence[Path], columns: Columns) -> None:
        super().__init__(str(path), columns)
        self.path = self.folder = path
        self.parts = [Parquet(file, columns) for file in files]
        self.names = list(dict.fromkeys(name for part in self.parts for name in part.names))
        self.vectors = self.parts[0].vectors

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold the labels, which every file must have."""
        return [part.label_columns for part in self.parts][-1]

    @property
    def id_column(self) -> str | None:
        """The column of ids; either all files have one, or none."""
        named = [part.id_column is not None for part in self.parts]
        if any(named) and not all(named):
            odd = self.parts[named.index(False)].where
            raise InputError(f"{odd}: has no column of ids, and others beside it have; add one")
        return self.parts[0].id_column

    def values(self, name: str) -> list[Any]:
        """The values of a column in all files; those without it have None."""
        every: list[Any] = []
        for part in self.parts:
            every += part.values(name) if name in part.names else [None] * len(part)
        return every

    def array(self, name: str) -> Array:
        """The columns of all files, one after the other."""
        if all(name in part.names for part in self.parts):
            return np.concatenate([part.array(name) for part in self.parts])
        return super().array(name)

    def digests(self, without: Any) -> list[str]:
        """Those of all files."""
        return [each for part in self.parts for each in part.digests(without)]

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """A folder of files with the same names."""

        def fill(beside: Path) -> None:
            start, kept = 0, np.asarray(rows)
            for part in self.parts:
                end = start + len(part)
                own = {
                    name: {row - start: text for row, text in some.items() if start <= row < end}
                    for name, some in changes.items()
                }
                within = kept[(kept >= start) & (kept < end)] - start
                part.write(beside / Path(part.where).name, own, within.tolist())
                start = end

        write_folder(out, self.folder, fill)


class HuggingFace(ArrowTable):
    """A data set of Hugging Face, in memory or as `save_to_disk` wrote it; of several splits, the training split, else
    the first."""

    def __init__(self, what: Any, columns: Columns) -> None:
        library = require("datasets", "huggingface")
        path = what if isinstance(what, Path) else None
        with name_errors(path or "data set", "data set"):
            self.whole = library.load_from_disk(str(path)) if path else what
            splits = list(self.whole) if isinstance(self.whole, dict) else []
            self.split = "train" if "train" in splits else "".join(splits[:1])
            data = self.whole[self.split] if splits else self.whole
            if isinstance(data, library.IterableDataset):
                data = library.Dataset.from_list(list(data), features=data.features)
            table = data.with_format("arrow")[:]
        super().__init__(str(path or "data set"), columns, table.schema, len(table), table.select)
        self.path, self.folder, self.info = path, (path or Path()) / self.split, data.info
        self.names_rows = path is not None
        if len(splits) > 1:
            text = f"this is the split {self.split!r}, of {', '.join(splits)}"
            self.notes = (Note(Kind.SPLIT, text),)
        names = find_class_names(data.features, columns.label)
        self.class_names, self.numbered = names, names is not None

    @property
    def other_splits(self) -> Any:
        """All other splits as one data set; None where there are none."""
        if not self.split or len(self.whole) < 2:
            return None
        others = [data for name, data in self.whole.items() if name != self.split]
        return require("datasets", "huggingface").concatenate_datasets(others)

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """A folder of the same layout."""
        library = require("datasets", "huggingface")
        changed = library.table.InMemoryTable(self.change(changes, rows))
        data: Any = library.Dataset(changed, info=self.info.copy())
        if self.split:
            data = library.DatasetDict({**self.whole, self.split: data})
        library.disable_progress_bars()
        write_folder(out, self.path, lambda beside: data.save_to_disk(str(beside)))


def find_class_names(features: Any, label: str | None) -> tuple[str, ...] | None:
    """The names that a Hugging Face data set gives to the numbers of its labels."""
    for column in (label,) if label else LABELS:
        kind = features.get(column) if hasattr(features, "get") else None
        names = getattr(kind, "names", None)
        if isinstance(names, list) and names:
            return tuple(str(name) for name in names)
    return None
