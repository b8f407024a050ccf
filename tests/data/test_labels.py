"""Labels as people write them; sets of tags, read from tables and arrays, and written back after a review."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit.decisions import clean
from bayesmooth.data import Columns, open_source
from bayesmooth.data.labels import NO_TAGS, Vocabulary, split_tags
from bayesmooth.errors import InputError

NAMES = ("beach", "dog", "night sky")
HEADER = "id,given,decision,new_label\n"


@given(st.sets(st.sampled_from(NAMES)), st.sampled_from([";", ",", "|", "\t", " + "]))
def test_a_set_is_read_as_it_was_written(tags: set[str], separator: str) -> None:
    words = Vocabulary(NAMES, separator)
    assert {*split_tags(words.write(tags), separator)} == tags
    row = words.table([words.write(tags)])[0].tolist()
    assert row == [int(name in tags) for name in NAMES]


@pytest.mark.parametrize("name", ["a;b", " a", "", "NA", NO_TAGS])
def test_a_tag_that_could_not_be_read_again_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="rename it, or choose another separator"):
        Vocabulary(("dog", name))


def test_arrays_frames_and_sets_are_the_same_labels() -> None:
    rows = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    sets = [{"beach", "night sky"}, set(), {"dog"}]
    same: list[Any] = [rows, rows.astype(bool), pd.DataFrame(rows, columns=NAMES), sets]
    for labels in same:
        source = open_source(np.eye(3), Columns(class_names=NAMES), labels)
        assert source.labels.texts() == ["beach; night sky", NO_TAGS, "dog"]
        assert source.labels.vocabulary.names == NAMES
        assert source.labels.table().tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 1], [1, 0]], "may be a row of 0 and 1 or numbers of tags"),
        (np.array([[0, 2]]), "'2' must be 0 or 1"),
        ([{"dog"}, {"dgo"}], "'dgo' is not one of the tags beach, dog"),
        ([{"dog"}, "dog"], r"labels\[1\] = dog: must be a set"),
    ],
)
def test_labels_that_are_no_tags_are_refused(labels: Any, message: str) -> None:
    names = None if isinstance(labels, np.ndarray) else NAMES
    with pytest.raises(InputError, match=message):
        open_source(np.eye(len(labels)), Columns(class_names=names), labels)


def write_tables(folder: Path, rows: list[set[str]], value: tuple[str, str]) -> tuple[Path, Path]:
    """The same tags as columns and as texts, between columns that must stay as they are."""
    columns, texts = ["id,beach,note,dog,night sky,x"], ["id,note,tags,x"]
    for i, tags in enumerate(rows):
        cells = [value[name in tags] for name in NAMES]
        columns.append(f'r{i},{cells[0]},"a, ""b""",{cells[1]},{cells[2]},0{i}.50')
        texts.append(f'r{i},"a, ""b""",{";".join(n for n in reversed(NAMES) if n in tags)},0{i}.50')
    paths = folder / "columns.csv", folder / "texts.csv"
    for path, lines in zip(paths, (columns, texts), strict=True):
        path.write_bytes("\r\n".join(lines).encode())
    return paths


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from(NAMES)), min_size=2, max_size=6),
    st.data(),
    st.sampled_from([("0", "1"), ("False", "True"), ("0.0", "1.0")]),
)
def test_only_decided_pairs_change_and_all_else_stays_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, rows: list[set[str]], data: st.DataObject, value: tuple[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("tags")
    words = Vocabulary(NAMES)
    decided = data.draw(st.dictionaries(st.integers(0, len(rows) - 1), st.sets(st.sampled_from(NAMES))))
    lines = [f'"r{i}","{words.write(rows[i])}","relabel","{words.write(new)}"\n' for i, new in decided.items()]
    decisions = folder / "decisions.csv"
    decisions.write_text(HEADER + "".join(lines))
    columns, texts = write_tables(folder, rows, value)
    after = [decided.get(i, tags) for i, tags in enumerate(rows)]
    out = folder / "out.csv"
    clean(columns, decisions, out, tags=NAMES)
    wanted, _ = write_tables(tmp_path_factory.mktemp("wanted"), after, value)
    assert out.read_bytes() == wanted.read_bytes()
    clean(texts, decisions, out, label="tags", separator=";", class_names=NAMES)
    got = open_source(out, Columns(label="tags", separator=";", class_names=NAMES))
    assert got.labels.texts() == [words.write(tags) for tags in after]
    untouched = [i for i in range(len(rows)) if decided.get(i, rows[i]) == rows[i]]
    before, now = texts.read_bytes().split(b"\r\n"), out.read_bytes().split(b"\r\n")
    assert all(before[i + 1] == now[i + 1] for i in untouched)
    assert [p.name for p in folder.iterdir() if p.is_dir()] == []


def test_a_changed_set_is_written_in_the_order_of_the_tags_and_the_way_of_the_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,tags\na,dog; beach\nb,\nc,beach\n")
    decisions = tmp_path / "d.csv"
    decisions.write_text(
        HEADER + "a,beach; dog,relabel,beach; night\nb,(no tags),relabel,night; dog\nc,beach,relabel,(no tags)\n"
    )
    names = ("night", "dog", "beach")
    clean(path, decisions, tmp_path / "o.csv", label="tags", separator=";", class_names=names)
    assert (tmp_path / "o.csv").read_text() == "id,tags\na,night; beach\nb,night; dog\nc,\n"


def test_parquet_columns_keep_their_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "dog": [True, False], "beach": [1, 0], "x": [0.5, 1.5]})
    frame.to_parquet(tmp_path / "t.parquet")
    decisions = tmp_path / "d.csv"
    decisions.write_text(HEADER + "b,(no tags),relabel,dog; beach\n")
    clean(tmp_path / "t.parquet", decisions, tmp_path / "o.parquet", tags=["dog", "beach"])
    made = pd.read_parquet(tmp_path / "o.parquet")
    pd.testing.assert_frame_equal(made, frame.assign(dog=[True, True], beach=[1, 1]))


def read(values: list[Any], names: tuple[str, ...] | None = None) -> Any:
    return open_source([{"label": value} for value in values], Columns(class_names=names)).labels


@given(st.lists(st.integers(0, 99) | st.text("abc", min_size=1, max_size=2), min_size=1))
def test_the_name_at_the_number_is_the_label(values: list[Any]) -> None:
    assert read(values).texts() == [*map(str, values)]


def test_numbers_are_sorted_as_numbers_and_index_given_names_that_are_words() -> None:
    assert read(["10", "2", "1"]).names == ("1", "2", "10")
    assert read(["10", "2", "x"]).names == ("10", "2", "x")
    assert read(["1", "0"], ("cat", "dog")).numbers.tolist() == [1, 0]
    assert read(["2", "1"], ("1", "2")).numbers.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        ([1.0, 1.5], None, r"label, row 1 .*1\.5 is not a class"),
        ([1.0, math.inf], None, "row 1 .*inf is not a class"),
        (["cat", "emu"], ("cat", "dog"), "row 1 .*'emu' is not one of the classes cat, dog"),
        (["2"], ("cat", "dog"), "row 0 .*'2'"),
        (["cat"], ("cat", "cat"), "appears twice"),
    ],
)
def test_what_is_no_class_is_named_with_its_row(values: list[Any], names: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(values, names)
