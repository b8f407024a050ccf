import csv
import gzip
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit import audit
from bayesmooth.audit.decisions import clean, read_decisions
from bayesmooth.cli import main
from bayesmooth.data import Columns, open_source
from bayesmooth.data.tables import guard
from bayesmooth.errors import InputError

HEADER = "id,given,decision,new_label\n"
CLASSES = ("cat", "dog", "bird")
LABELS = "id,split,label\na,train,cat\nb,train,dog\nc,test,cat\n"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(LABELS)
    return path


def decisions_file(folder: Path, rows: str, header: str = HEADER, of: Path | None = None, **names: Any) -> Path:
    """A file of decisions; the number of a row stands for its id in the data `of`."""
    if of is not None:
        ids = open_source(of, Columns(**names)).ids
        rows = re.sub(r"^\d+", lambda found: ids[int(found[0])], rows, flags=re.MULTILINE)
    path = folder / "decisions.csv"
    path.write_bytes((header + rows).encode())
    return path


def test_only_relabelled_rows_change_and_removed_ones_leave(labels: Path, tmp_path: Path) -> None:
    rows = '"a","cat","relabel","dog"\n"b","dog","keep",""\n"c","cat","skip",""\n'
    result = clean(labels, decisions_file(tmp_path, rows), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == LABELS.replace("a,train,cat", "a,train,dog")
    assert labels.read_text() == LABELS
    assert (result.relabelled, result.removed) == ((0,), ())
    assert clean(labels, decisions_file(tmp_path, "a,cat,remove,\n"), tmp_path / "out.csv").removed == (0,)
    assert (tmp_path / "out.csv").read_text() == LABELS.replace("a,train,cat\n", "")


def test_label_that_no_row_has_makes_a_new_class(labels: Path, tmp_path: Path) -> None:
    decisions = decisions_file(tmp_path, "a,cat,relabel,bird \n")  # a blank makes no class of its own
    clean(labels, decisions, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == LABELS.replace("a,train,cat", "a,train,bird")
    with pytest.raises(InputError, match="id 'a': unknown class 'bird "):
        clean(labels, decisions, tmp_path / "no.csv", class_names=("cat", "dog"))


def test_numbered_labels_are_written_as_numbers(tmp_path: Path) -> None:
    labels = tmp_path / "audit.csv"
    labels.write_text("given,score\n0,.5\n1,.7\n")
    decisions = decisions_file(tmp_path, "1,dog,relabel,bird\n", of=labels, class_names=CLASSES)
    clean(labels, decisions, tmp_path / "out.csv", class_names=CLASSES)
    assert (tmp_path / "out.csv").read_text() == "given,score\n0,.5\n2,.7\n"


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, unique=True))
def test_any_id_survives_the_file(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([guard(name), guard("=cmd()"), "keep", ""] for name in ids)
    path = decisions_file(tmp_path_factory.mktemp("ids"), file.getvalue())
    assert [row.id for row in read_decisions(path)] == ids
    assert all(row.given == "=cmd()" for row in read_decisions(path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,cat,keep,\na,cat,skip,\n", "row 3 decides on 'a' a second time"),
        ("a,cat,delete,\n", "'delete' is none of keep, relabel, remove, skip"),
        ("a,cat,relabel,\n", "new_label goes with relabel"),
        ("a,cat,keep,dog\n", "new_label goes with relabel"),
        ("a,cat,relabel, NA\n", "id 'a': ' NA' means that a label is missing"),
        ("a,cat,keep,,\n", "row 2 has 5 fields, the header 4"),
        ("z,cat,keep,\n", "decision on id 'z', which the labels do not have"),
        ("a,dog,keep,\n", "has the label 'cat', but the decision was made on 'dog'"),
        ('"a,cat\n', "row 2 has a stray quotation mark"),
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
    os.mkfifo(tmp_path / "pipe")
    for name, why in {"pipe": "a directory or a device", ".": "a directory", "out.parquet": "must end in .csv"}.items():
        with pytest.raises(InputError, match=why):
            clean(labels, decisions, tmp_path / name if name != "." else name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"id,name\na,cat\n", "no column 'label' or .* or 'given', only id, name"),
        (b"id,label\na,\x81\n", "cannot be read as utf-8"),
        (b"id,label\na,cat\na,dog\n", "decision on id 'a', which several rows have"),
    ],
)
def test_broken_label_files_are_named(labels: Path, tmp_path: Path, content: bytes, message: str) -> None:
    labels.write_bytes(content)
    with pytest.raises(InputError, match=message):
        clean(labels, decisions_file(tmp_path, "a,cat,keep,\n"), tmp_path / "out.csv")


def test_missing_files_and_wrong_headers_are_named(labels: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        clean(labels, tmp_path / "none.csv", tmp_path / "out.csv")
    with pytest.raises(InputError, match="first line 'id,given'; must be id,given,decision,new_label"):
        read_decisions(decisions_file(tmp_path, "", header="id;given\n"))


DECIDED = "0,cat,relabel,dog\n2,dog,remove,\n"


def test_only_the_label_changes_in_a_csv_and_no_other_byte(tmp_path: Path) -> None:
    text = '\ufeff"kind";note; x\r\n cat ;"a;b";1,50\r\n"dog";"a ""b""";2\r\n\r\ndog;  ;003\r\n'
    (tmp_path / "t.csv").write_bytes(text.encode())
    decisions = decisions_file(tmp_path, "0,cat,relabel,dog\n1,dog,relabel,cat\n", of=tmp_path / "t.csv", label="kind")
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv", label="kind")
    expected = text.replace(" cat ;", " dog ;").replace('"dog";"a', '"cat";"a')
    assert (tmp_path / "out.csv").read_bytes() == expected.encode()
    decisions = decisions_file(tmp_path, "1,dog,remove,\n", of=tmp_path / "t.csv", label="kind")
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv", label="kind")
    assert (tmp_path / "out.csv").read_bytes().decode() == text.replace('"dog";"a ""b""";2\r\n\r\n', "")


def test_an_array_of_labels_comes_back_as_one(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array(["cat", "dog", "dog"]))
    clean(tmp_path / "y.npy", decisions_file(tmp_path, DECIDED, of=tmp_path / "y.npy"), tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").tolist() == ["dog", "dog"]


@pytest.mark.parametrize("packed", [True, False])
def test_an_npz_comes_back_as_an_npz(tmp_path: Path, packed: bool) -> None:
    arrays = {
        "embeddings": np.arange(6.0).reshape(3, 2), "labels": np.array([0, 1, 1], np.int32),
        "class_names": np.array(["cat", "dog", "emu"]), "about": np.array(3),
    }  # fmt: skip
    (np.savez_compressed if packed else np.savez)(tmp_path / "e.npz", **arrays)
    decisions = decisions_file(tmp_path, DECIDED.replace("relabel,dog", "relabel,emu"), of=tmp_path / "e.npz")
    clean(tmp_path / "e.npz", decisions, tmp_path / "out.npz")
    made = np.load(tmp_path / "out.npz")
    assert (made["labels"].tolist(), made["labels"].dtype) == ([2, 1], np.int32)
    assert made["embeddings"].tolist() == [[0, 1], [2, 3]]
    # Three classes, not three examples.
    assert made["class_names"].tolist() == ["cat", "dog", "emu"]
    assert made["about"] == 3
    sizes = [(tmp_path / name).stat().st_size for name in ("e.npz", "out.npz")]
    assert sizes[1] <= sizes[0]


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kinds = arrow.array(["cat", "dog", "dog"]).dictionary_encode()
    table = arrow.table({"v": [[1.0], [2.0], [3.0]], "kind": kinds, "stars": arrow.array([1, 5, 5], arrow.int8())})
    parquet.write_table(table, tmp_path / "t.parquet")
    decisions = decisions_file(tmp_path, DECIDED, of=tmp_path / "t.parquet", label="kind")
    clean(tmp_path / "t.parquet", decisions, tmp_path / "out.parquet", label="kind")
    made = parquet.read_table(tmp_path / "out.parquet")
    assert made.schema.equals(table.schema)
    assert made["kind"].to_pylist() == ["dog", "dog"]
    decisions = decisions_file(tmp_path, "0,1,relabel,5\n", of=tmp_path / "t.parquet", label="stars")
    clean(tmp_path / "t.parquet", decisions, tmp_path / "out.parquet", label="stars")
    made = parquet.read_table(tmp_path / "out.parquet")
    assert made.schema.equals(table.schema)
    assert made["stars"].to_pylist() == [5, 5, 5]
    (tmp_path / "t.json").write_text('[{"x": 1, "label": 0.0}, {"x": 2, "label": 1.0}]')
    decisions = decisions_file(tmp_path, "0,0,relabel,7\n", of=tmp_path / "t.json")
    clean(tmp_path / "t.json", decisions, tmp_path / "out.json")
    assert '"label": 7.0' in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize("top", ["", "train"])
def test_a_folder_of_pictures_comes_back_with_the_pictures_moved(tmp_path: Path, top: str) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    for name in ("cat/1.png", "cat/a/2.png", "dog/1.png", "dog/3.png"):
        (photos / top / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / top / name).write_text(name)
    (photos / "README").write_text("mine")
    rows = "cat/1.png,cat,relabel,dog\ncat/a/2.png,cat,relabel,dog\ndog/3.png,dog,remove,\n"
    clean(photos, decisions_file(tmp_path, rows), out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    start = f"{top}/" if top else ""
    assert found == {"README", f"{start}dog/1.png", f"{start}dog/cat-1.png", f"{start}dog/a/2.png"}
    assert (out / top / "dog" / "cat-1.png").read_text() == "cat/1.png"
    assert (photos / top / "cat" / "1.png").exists()
    for place, message in ((out, "is there already"), (photos / "new", "lies in the folder that is read")):
        with pytest.raises(InputError, match=message):
            clean(photos, decisions_file(tmp_path, rows), place)


def write_rows(path: Path, rows: list[int]) -> None:
    """A file of cats with these rows, in the format of the path."""
    pandas = pytest.importorskip("pandas")
    if path.suffix == ".npz":
        np.savez(path, embeddings=np.array(rows, float)[:, None] + [0, 1], labels=["cat"] * len(rows))
        return
    frame = pandas.DataFrame({"text": [f"text {i}" for i in rows], "label": "cat"})
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_a_decision_finds_its_row_after_others_were_deleted_and_never_hits_another(tmp_path: Path, kind: str) -> None:
    path, out = tmp_path / f"t.{kind}", tmp_path / f"out.{kind}"
    write_rows(path, [*range(12)])
    decisions = decisions_file(tmp_path, "".join(f"{i},cat,relabel,dog\n" for i in (2, 5, 9)), of=path)
    write_rows(path, [1, 2, 3, 4, 5, 6, 8, 9, 10, 11])
    clean(path, decisions, out)
    assert [i for i, label in enumerate(open_source(out).labels.texts()) if label == "dog"] == [1, 4, 7]
    write_rows(path, [1, 3, 4, 5, 6, 8, 9, 10, 11])  # without one that was decided on
    out.unlink()
    with pytest.raises(InputError, match="decision on id"):
        clean(path, decisions, out)
    assert not out.exists()


def save_audit(folder: Path, source: str, **summary: object) -> Path:
    """The files of an audit that `clean` reads: two copies of a, one of them with another label, and a bad picture."""
    (folder / "audit").mkdir()
    bad = [{"kind": "unreadable_picture", "ids": ["d"]}]
    (folder / "audit" / "audit.json").write_text(json.dumps({"source": source, "problems": bad, **summary}))
    table = "id,duplicate_of\na,a\nb,a\nc,a\nd,\n"
    (folder / "audit" / "audit.csv").write_text(table)
    return folder / "audit"


def test_copies_with_the_same_label_and_unreadable_pictures_leave_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("id,label\na,cat\nb,dog\nc,cat\nc,cat\nd,dog\n")  # two votes on c
    save_audit(tmp_path, "t")
    monkeypatch.chdir(tmp_path)  # where `audit` is found by itself
    out = tmp_path / "out.csv"
    assert clean("t.csv", None, out, drop_duplicates=True).removed == (2, 3)
    assert clean("t.csv", None, out, drop_unreadable=True).removed == (4,)
    removed = clean("t.csv", decisions_file(tmp_path, "a,cat,remove,\n"), out, drop_duplicates=True).removed
    assert removed == (0,)  # the other cat is then the only one
    decisions = decisions_file(tmp_path, "b,dog,relabel,cat\n")
    clean("t.csv", decisions, out, drop_duplicates=True, drop_unreadable=True)
    assert out.read_text() == "id,label\na,cat\n"
    (tmp_path / "other.csv").write_text("id,label\na,cat\n")
    with pytest.raises(InputError, match=r"other\.csv: no audit of it is at hand"):
        clean("other.csv", None, out, drop_duplicates=True)
    with pytest.raises(InputError, match=r"nowhere: holds no audit\.json"):
        clean("t.csv", None, out, audit="nowhere")


def test_the_audit_knows_which_columns_were_audited(tmp_path: Path) -> None:
    text, out = "key,kind,label\na,cat,1\nb,dog,2\n", tmp_path / "out.csv.gz"
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    folder = save_audit(tmp_path, "t", columns={"label": "kind", "id": "key"})
    decisions = decisions_file(folder, "b,dog,relabel,cat\n")
    assert main(["clean", f"{tmp_path}/t.csv.gz", str(decisions), "--out", str(out)]) == 0
    assert gzip.decompress(out.read_bytes()).decode() == text.replace("dog", "cat")
    (folder / "audit.csv").write_text("id,given,duplicate_of\na,cat,a\nb,cat,a\n")  # its columns have usual names
    assert clean(folder / "audit.csv", None, tmp_path / "out.csv", drop_duplicates=True).removed == (1,)
    decisions = decisions_file(folder, "b,2,relabel,1\n")
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv", label="label")  # what is named counts
    assert (tmp_path / "out.csv").read_text() == "key,kind,label\na,cat,1\nb,dog,1\n"
    names, text = ["a, b", "c"], "x,label\n" + "".join(f"{i % 2},{i % 2}\n" for i in range(20))
    (tmp_path / "t.csv").write_text(text)
    audit(tmp_path / "t.csv", class_names=names, quiet=True).save(folder)
    decisions = decisions_file(folder, '0,"a, b",relabel,c\n', of=tmp_path / "t.csv", class_names=names)
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == text.replace("0,0", "0,1", 1)
