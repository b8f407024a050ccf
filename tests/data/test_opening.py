"""Whatever a table holds, it is read with what is dirty as a finding, or refused."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesmooth.data import Columns, open_source
from bayesmooth.data.opening import make_ready
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
ROWS = np.arange(40, dtype=np.float32).reshape(20, 2)


@pytest.mark.parametrize("kind", ["frame", "file"])
def test_a_missing_vector_is_a_finding_and_the_rest_is_read(open_data: Any, tmp_path: Path, kind: str) -> None:
    frame = pandas.DataFrame({"embedding": [None, *ROWS[1:7], None, *ROWS[8:]], "label": ["a", "b"] * 10})
    frame.to_parquet(tmp_path / "0.parquet")
    source = open_data(frame if kind == "frame" else tmp_path / "0.parquet")
    assert source.reading.names == ("embedding",)
    np.testing.assert_array_equal(source.inputs, np.delete(ROWS, [0, 7], axis=0))
    (missing,) = source.problems
    places = [int(name.partition("-")[0]) for name in missing.ids]
    assert (missing.kind, places) == ("missing_vector", [0, 7])


def test_every_column_is_said_to_be_learned_from_or_not(open_data: Any) -> None:
    count = {"n": range(20), "note": [f"note {k}" for k in range(20)], "none": [None] * 20}
    frame = pandas.DataFrame(count | {"x": np.sin(ROWS[:, 0]), "label": ["a", "b"] * 10})
    learned, left = map(str, open_data(frame).notes)
    assert learned == "learned from 'x'"
    for said in ("'n' (row numbers)", "'note' (texts)", "'none' (empty)"):
        assert said in left


# Whatever a table holds, it is opened or refused with a reason.
COUNT = 12
CELLS = st.sampled_from(
    [
        None, float("nan"), float("inf"), -1, 0, 1, 2.5, 1e300, 10**30, True, 1 + 2j, decimal.Decimal("1.5"),
        "", "NA", "a", " b", "12%", "1,5", "x" * 300, "\ud800", "a\0b", b"a", b"\xff", pandas.NA, pandas.NaT,
        pandas.Timestamp("2020"), datetime.date(2020, 1, 1), {"bytes": b"x"}, {}, [1.0, 2.0], [1.0], ["a"], (1, 2),
    ]
)  # fmt: skip
COLUMNS = st.lists(CELLS, min_size=COUNT, max_size=COUNT).map(
    lambda cells: pandas.Series(cells, dtype=object)
) | st.sampled_from(
    [
        pandas.Series(values)
        for values in (
            np.arange(COUNT), np.arange(COUNT) / 7, np.arange(COUNT) % 3 == 0, np.array([b"a", b"b"] * 6),
            np.full(COUNT, np.nan), np.arange(COUNT) + 1j, np.arange(COUNT, dtype=np.float16), list(np.eye(COUNT)),
            np.arange(COUNT, dtype=np.uint64) + 2**63, pandas.Categorical(["a", "b", None] * 4),
            pandas.Categorical([2, 1, None] * 4, ordered=True), pandas.array([1, None, 2] * 4, "Int64"),
            pandas.array([True, None, False] * 4, "boolean"), pandas.array(["x", None, "y"] * 4, "string"),
            pandas.date_range("2020", periods=COUNT, tz="UTC"), pandas.timedelta_range("1D", periods=COUNT),
            pandas.period_range("2020", periods=COUNT, freq="D"), pandas.interval_range(0, COUNT),
            pandas.arrays.SparseArray([0] * 11 + [1]),
        )
    ]
)  # fmt: skip
LABELS = COLUMNS | st.sampled_from([["a", "b"] * 6, [0, 1] * 6, [1.0, 2.0] * 6, [True, False] * 6])
NAMES = st.sampled_from(["id", "text", "path", "image", "split", "row", "", "a", "=x", "ü\n", " label", 0, 1.5, None])
hostile = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check_opened(what: Any, labels: Any = None, predicted: bool = False, **names: Any) -> None:
    """It is opened, every row under a name of its own, or refused."""
    columns = Columns(**names)
    try:
        opened = open_source(what, columns, labels, predicted=predicted)
        source = make_ready(opened, columns, encoder="plain", predicted=predicted)
    except InputError:
        return
    assert len({*source.ids}) == len(source) <= COUNT
    "".join([*source.ids, *source.class_names]).encode()  # can be written


@hostile
@given(st.dictionaries(NAMES, COLUMNS, max_size=4), LABELS)
def test_every_table_is_opened_or_refused(columns: dict[Any, Any], labels: Any) -> None:
    frame = pandas.DataFrame(dict(enumerate([*columns.values(), pandas.Series(labels)])))
    frame.columns = pandas.Index([*columns, "label"], dtype=object)
    check_opened(frame)


@hostile
@given(LABELS | st.lists(CELLS, max_size=14), st.sampled_from([None, ["a", "b"], ["-1", "1"]]))
def test_every_kind_of_labels_is_taken_or_refused(labels: Any, names: Any) -> None:
    try:
        array = np.asarray(labels)
    except ValueError:  # lists of several lengths
        array = labels
    for predicted in (False, True):
        check_opened(np.full((COUNT, 2), 0.5), array, predicted, class_names=names)


@pytest.mark.parametrize("odd", [["a", "b"], [1.0], [None, 2.0]])
def test_vectors_of_words_or_of_several_lengths_are_refused(open_data: Any, odd: Any) -> None:
    frame = pandas.DataFrame(
        {"embedding": [odd, *([odd] if odd == ["a", "b"] else ROWS.tolist())[:1]] * 10, "label": ["a", "b"] * 10}
    )
    with pytest.raises(InputError, match=r"embedding.* must be"):
        open_data(frame)
