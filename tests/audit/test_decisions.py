import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit.decisions import Decision, apply_decisions, clean, read_decisions
from bayesmooth.errors import InputError

HEADER = "id,given,decision,new_label\n"
LABELS = "id,split,label\na,train,cat\nb,train,dog\nc,test,cat\n"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(LABELS)
    return path


def decisions_file(folder: Path, rows: str, header: str = HEADER) -> Path:
    path = folder / "decisions.csv"
    path.write_bytes((header + rows).encode())
    return path


def test_only_relabelled_rows_change(labels: Path, tmp_path: Path) -> None:
    rows = '"a","cat","relabel","dog"\n"b","dog","keep",""\n"c","cat","ambiguous",""\n'
    result = clean(labels, decisions_file(tmp_path, rows), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == LABELS.replace("a,train,cat", "a,train,dog")
    assert labels.read_text() == LABELS
    assert (result.relabelled, result.ambiguous) == ((0,), (2,))


def test_ambiguous_rows_leave_when_asked(labels: Path, tmp_path: Path) -> None:
    decisions = decisions_file(tmp_path, "a,cat,ambiguous,\nb,dog,skip,\n")
    clean(labels, decisions, tmp_path / "out.csv", drop_ambiguous=True)
    assert (tmp_path / "out.csv").read_text() == LABELS.replace("a,train,cat\n", "")


def test_numbered_labels_are_written_as_numbers(tmp_path: Path) -> None:
    labels = tmp_path / "audit.csv"
    labels.write_text("given,score\n0,.5\n1,.7\n")
    decisions = decisions_file(tmp_path, "1,dog,relabel,bird\n")
    clean(labels, decisions, tmp_path / "out.csv", class_names=("cat", "dog", "bird"))
    assert (tmp_path / "out.csv").read_text() == "given,score\n0,.5\n2,.7\n"


def test_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = decisions_file(tmp_path, "a,cat,keep,\r\n", header="\ufeff" + HEADER.strip() + "\r\n")
    assert read_decisions(path) == (Decision("a", "cat", "keep"),)


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, unique=True))
def test_any_id_survives_the_file(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([name, "=cmd()", "keep", ""] for name in ids)
    path = decisions_file(tmp_path_factory.mktemp("ids"), file.getvalue())
    assert [row.id for row in read_decisions(path)] == ids
    assert all(row.given == "=cmd()" for row in read_decisions(path))


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=20), st.data())
def test_labels_without_a_relabelling_never_change(labels: list[str], data: st.DataObject) -> None:
    ids = [f"i{k}" for k in range(len(labels))]
    rows = [
        Decision(name, label, kind, data.draw(st.sampled_from(labels)) if kind == "relabel" else "")
        for name, label in zip(ids, labels, strict=True)
        if (kind := data.draw(st.sampled_from(["keep", "relabel", "ambiguous", "skip", None])))
    ]
    result = apply_decisions(ids, labels, rows)
    wanted = {row.id: row.new_label for row in rows if row.decision == "relabel"}
    assert list(result.labels) == [
        wanted.get(i, label) for i, label in zip(ids, labels, strict=True)
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,cat,keep,\na,cat,skip,\n", "row 2 decides on 'a' a second time"),
        ("a,cat,delete,\n", "'delete' is none of keep, relabel, ambiguous, skip"),
        ("a,cat,relabel,\n", "new_label goes with relabel"),
        ("a,cat,keep,dog\n", "new_label goes with relabel"),
        ("a,cat,keep\n", "row 1 has 3 fields, the header 4"),
        ("z,cat,keep,\n", "decision on id 'z', which the labels do not have"),
        ("a,dog,keep,\n", "has the label 'cat', but the decision was made on 'dog'"),
        ("a,cat,relabel,bird\n", "unknown class 'bird'; known: cat, dog"),
        ('"a,cat\n', "cannot be read as UTF-8 CSV"),
    ],
)
def test_what_does_not_fit_the_labels_is_refused_and_nothing_is_written(
    labels: Path, tmp_path: Path, rows: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        clean(labels, decisions_file(tmp_path, rows), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_an_input_is_never_overwritten(labels: Path, tmp_path: Path) -> None:
    decisions = decisions_file(tmp_path, "a,cat,relabel,dog\n")
    os.link(labels, tmp_path / "linked.csv")
    (tmp_path / "symbolic.csv").symlink_to(labels)
    for out in (labels, decisions, tmp_path / "linked.csv", tmp_path / "symbolic.csv"):
        with pytest.raises(InputError, match="would overwrite an input"):
            clean(labels, decisions, out)
    assert labels.read_text() == LABELS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"id,name\na,cat\n", "no column label or .* or given among id, name"),
        (b"id,label\na,\xff\n", "cannot be read as UTF-8 CSV"),
        (b"id,label\na,cat\na,dog\n", "ids of the labels are not unique"),
    ],
)
def test_broken_label_files_are_named(
    labels: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    labels.write_bytes(content)
    with pytest.raises(InputError, match=message):
        clean(labels, decisions_file(tmp_path, "a,cat,keep,\n"), tmp_path / "out.csv")


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(
        InputError, match="label '7' is neither one of the 2 classes nor its position"
    ):
        apply_decisions(["a"], ["7"], [], class_names=("cat", "dog"))


def test_missing_files_and_wrong_headers_are_named(labels: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        clean(labels, tmp_path / "none.csv", tmp_path / "out.csv")
    with pytest.raises(
        InputError, match="first line 'id;given'; must be id,given,decision,new_label"
    ):
        read_decisions(decisions_file(tmp_path, "", header="id;given\n"))
