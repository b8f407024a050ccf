"""A folder of Parquet files whose vectors are kept in the cache; what is dirty in a table of numbers."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from bayesmooth.audit.opening import open_data
from bayesmooth.audit.settings import Settings
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
ROWS = np.arange(40, dtype=np.float32).reshape(20, 2)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    write_part(folder, ROWS)
    return folder


def write_part(folder: Path, rows: Any) -> None:
    frame = pandas.DataFrame({"embedding": list(rows), "label": ["a", "b"] * 10})
    frame.to_parquet(folder / "part.parquet", compression=None)


def vectors(folder: Path, cache: Path) -> Any:
    inputs: Any = open_data(folder, Settings(cache=cache, quiet=True)).inputs
    return np.array(inputs.array)


def test_other_content_with_the_same_size_and_time_is_read_again(
    parts: Path, tmp_path: Path
) -> None:
    file, cache = parts / "part.parquet", tmp_path / "cache"
    np.testing.assert_array_equal(vectors(parts, cache), ROWS)
    before = file.stat()
    write_part(parts, ROWS[::-1])
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    np.testing.assert_array_equal(vectors(parts, cache), ROWS[::-1])


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_copy_is_made_again(parts: Path, tmp_path: Path, damage: bytes | None) -> None:
    vectors(parts, tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:-9] if damage is None else damage)
    np.testing.assert_array_equal(vectors(parts, tmp_path / "cache"), ROWS)
    (tmp_path / "file").touch()
    np.testing.assert_array_equal(vectors(parts, tmp_path / "file"), ROWS)


def test_many_may_fill_one_cache_at_once(parts: Path, tmp_path: Path) -> None:
    start = Barrier(8)

    def read(_: int) -> Any:
        start.wait()
        return vectors(parts, tmp_path / "cache")

    with ThreadPoolExecutor(8) as pool:
        for made in pool.map(read, range(8)):
            np.testing.assert_array_equal(made, ROWS)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_files_without_the_vectors_of_the_others_are_named(parts: Path, tmp_path: Path) -> None:
    pandas.DataFrame({"label": ["a"]}).to_parquet(parts / "rest.parquet")
    with pytest.raises(InputError, match=r"rest\.parquet: no column 'embedding'"):
        vectors(parts, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_missing_vector_counts_as_the_mean_wherever_it_stands() -> None:
    rows: list[Any] = list(ROWS)
    rows[0] = None
    frame = pandas.DataFrame({"embedding": rows, "label": ["a", "b"] * 10})
    examples = open_data(frame, Settings())
    assert examples.columns == ("embedding",)
    np.testing.assert_allclose(examples.inputs[0], ROWS[1:].mean(0))
    np.testing.assert_array_equal(examples.inputs[1:], ROWS[1:])
    assert "missing vectors count as the mean of their column: 1 in 'embedding'" in examples.notes


def test_percentages_are_numbers(tmp_path: Path) -> None:
    cells = [f"{k % 7}.5%" for k in range(20)]
    table = pandas.DataFrame({"share": cells, "label": ["a", "b"] * 10})
    examples = open_data(table, Settings())
    assert examples.columns == ("share",)
    assert examples.inputs[:3, 0].tolist() == [0.5, 1.5, 2.5]


def test_complex_numbers_are_refused() -> None:
    for column in (ROWS[:, 0] + 1j, list(ROWS + 1j)):
        frame = pandas.DataFrame({"x": column, "label": ["a", "b"] * 10})
        with pytest.raises(InputError, match=r"complex"):
            open_data(frame, Settings())


def test_every_column_is_said_to_be_learned_from_or_not() -> None:
    count = {"n": range(20), "note": [f"note {k}" for k in range(20)], "none": [None] * 20}
    frame = pandas.DataFrame(count | {"x": np.sin(ROWS[:, 0]), "label": ["a", "b"] * 10})
    learned, left = open_data(frame, Settings()).notes
    assert learned == "learned from 'x'"
    for said in ("'n' (row numbers)", "'note' (texts)", "'none' (empty)"):
        assert said in left
