"""Vectors of many Parquet files, copied once to an array on the disk and read from there."""

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
import torch

from bayesmooth.data.encoders import cache_folder
from bayesmooth.data.features import Reading
from bayesmooth.data.reading import Array, map_npy
from bayesmooth.data.source import Kind, Mapped, Source
from bayesmooth.data.tables import ParquetFolder
from bayesmooth.errors import InputError
from bayesmooth.files import replace_with
from bayesmooth.optional import require
from bayesmooth.progress import bar

PIECE = 8192  # rows that are copied at once


def map_vectors(
    source: Source, table: ParquetFolder, column: str, cache: str | Path | None, quiet: bool
) -> Source:
    """The examples with the vectors of a column as inputs, without those that have none."""
    array = _open_copy(table, column, cache, quiet)
    rows = source.rows
    assert rows is not None
    empty = np.isnan(array[:, 0])  # the row of a missing vector is NaN
    empty[empty] = np.isnan(array[empty]).all(1)
    inputs = Mapped(array) if len(rows) == len(table) else Mapped(array, rows)
    reading = Reading(label=table.label_columns[0], vectors={column: []})
    source = Source(
        inputs, source.labels, source.clean, source.ids, source.name,
        reading=reading, notes=source.notes, table=table, rows=rows,
    )  # fmt: skip
    source = source.note(Kind.LEARNED, f"learned from the vectors in {column!r}")
    gone = torch.from_numpy(empty)[rows]
    if not bool(gone.any()):
        return source
    text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
    return source.note(Kind.MISSING_VECTOR, text, gone).subset(~gone)


def _open_copy(table: ParquetFolder, column: str, cache: str | Path | None, quiet: bool) -> Array:
    """The copy in the cache, under the hash of the files' content."""
    digest = hashlib.sha256(column.encode())
    for part in table.parts:
        with open(part.where, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    folder = cache_folder(cache)
    place = folder / f"{digest.hexdigest()[:32]}.npy"
    with suppress(InputError):  # a damaged entry is made again
        rows = map_npy(place)
        if rows.ndim == 2 and len(rows) == len(table):
            return rows
    with TemporaryDirectory(ignore_cleanup_errors=True) as spare:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError:  # a cache that cannot be written costs time and nothing else
            place = Path(spare) / place.name
        replace_with(place, lambda at: _copy_vectors(at, table, column, quiet))
        return map_npy(place)  # what is mapped stays, though its name may go


def _copy_vectors(place: Path, table: ParquetFolder, column: str, quiet: bool) -> None:
    """Copy the vectors of all files to one array, piece by piece; the row of a missing one is NaN."""
    parquet = require("pyarrow.parquet", "data")
    array, at, missing = None, 0, list[int]()
    with bar(len(table), description="reading", quiet=quiet) as shown:
        for part in table.parts:
            if column not in part.names:
                raise InputError(f"{part.where}: no column {column!r}, which others beside it have")
            for batch in parquet.ParquetFile(part.where).iter_batches(PIECE, columns=[column]):
                there = batch[0].is_valid().to_numpy(zero_copy_only=False)
                if there.any():
                    width = None if array is None else array.shape[1]
                    where = f"{part.where}: column {column!r}"
                    rows = _as_rows(batch[0].drop_null(), width, where)
                    if array is None:
                        shape = (len(table), rows.shape[1])
                        array = np.lib.format.open_memmap(place, "w+", np.float32, shape)
                    array[at + np.flatnonzero(there)] = rows
                missing += (at + np.flatnonzero(~there)).tolist()
                at += len(batch)
                shown.update(at)
    if array is None:
        where = table.parts[0].where
        raise InputError(f"{where}: column {column!r}: no row has a vector; name other columns")
    array[missing] = np.nan
    array.flush()


def _as_rows(vectors: Any, width: int | None, where: str) -> Array:
    """Lists of numbers as an array; all have the same length, `width` if that is known."""
    lengths = require("pyarrow.compute", "data").list_value_length(vectors).unique().to_pylist()
    if len(lengths) != 1 or lengths[0] != (width or lengths[0]):
        raise InputError(f"{where}: its vectors must all have the same length")
    try:
        return np.asarray(vectors.flatten(), np.float32).reshape(len(vectors), -1)
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: its vectors must be numbers; name other columns with features"
        ) from None
