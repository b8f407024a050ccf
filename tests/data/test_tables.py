"""Every format gives the same ids to an audit and to `clean`, and comes back with only the decided labels changed."""

import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit.decisions import clean
from bayesmooth.data import open_source
from bayesmooth.data.formats import read_csv
from bayesmooth.data.tables import guard, unguard
from bayesmooth.errors import InputError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pandas = pytest.importorskip("pandas")


def decide(folder: Path, *rows: tuple[Any, ...], of: Path | None = None) -> Path:
    """A file of decisions; a number stands for the id of that row of the data `of`."""
    path, ids = folder / "decisions.csv", open_source(of).ids if of else ()
    rows = tuple((ids[id] if isinstance(id, int) else id, *rest) for id, *rest in rows)
    guarded = [[guard(cell) for cell in row] for row in rows]
    path.write_bytes(to_csv([["id", "given", "decision", "new_label"], *guarded]).encode())
    return path


def to_csv(rows: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


# One identity of a row.


def test_rows_of_a_shuffled_parquet_are_named_by_their_place(open_data: Any, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"x": range(60), "label": ["cat", "dog"] * 30})
    shuffled = frame.sample(frac=1, random_state=1)
    shuffled.to_parquet(tmp_path / "t.parquet")
    examples = open_data(tmp_path / "t.parquet", features=["x"])
    assert [name.partition("-")[0] for name in examples.ids] == [*map(str, range(60))]
    at = 50
    was = shuffled["label"].iloc[at]
    new = {"cat": "dog", "dog": "cat"}[was]
    decisions = decide(tmp_path, (examples.ids[at], was, "relabel", new))
    clean(tmp_path / "t.parquet", decisions, tmp_path / "o.pq")
    made = pandas.read_parquet(tmp_path / "o.pq")
    assert [i for i in range(60) if made["label"].iloc[i] != shuffled["label"].iloc[i]] == [at]
    assert int(examples.inputs[at, 0]) == made["x"].iloc[at]
    assert made.index.equals(shuffled.index)


IDS = {
    "csv": ["0007", "7e3", "7.50", "NA", "-1", " x "],
    "floats": [7.0, 7.5, 1e6, 0.1, None, -0.0],
    "bytes": [b"a", b"\xff", b"7", b"", b"\\xff!", b"NA"],
    "whole": [2**60 + 1, None, 3, 4, 5, 6],
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_are_text_from_the_first_reading_on(open_data: Any, tmp_path: Path, kind: str) -> None:
    rows = {"id": IDS[kind], "x": range(6), "label": ["cat", "dog"] * 3}
    path = tmp_path / ("t.csv" if kind == "csv" else "t.parquet")
    if kind == "csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        parquet.write_table(arrow.table(rows), path)
    ids = open_data(path).ids
    assert kind != "csv" or list(ids) == IDS["csv"]
    assert kind != "whole" or ids[0] == str(2**60 + 1)
    out = tmp_path / f"out{path.suffix}"
    clean(path, decide(tmp_path, (ids[1], "dog", "relabel", "cat")), out)
    assert open_source(out).labels.texts() == ["cat", "cat", "cat", "dog", "cat", "dog"]


@pytest.mark.parametrize("names", [["1", "2", "3", "4", "5"], ["1", "0"]])
@pytest.mark.parametrize("split", [False, True])
def test_a_hugging_face_set_is_read_and_written_by_its_library(
    open_data: Any, tmp_path: Path, names: list[str], split: bool
) -> None:
    datasets = pytest.importorskip("datasets")
    numbers = [0, 1, 1, 0] if len(names) == 2 else [1, 2, 4, 0]
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    rows = {"text": ["a", "b", "c", "d", "e"], "label": [*numbers, -1]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    whole = datasets.DatasetDict({"test": made, "train": made}) if split else made
    whole.save_to_disk(tmp_path / "set", **({} if split else {"num_shards": 2}))
    source = open_data(tmp_path / "set", text="text")
    assert source.labels.texts() == [names[k] for k in numbers]
    assert [note.kind for note in source.problems] == ["missing_label"]
    assert any("this is the split 'train', of test, train" in str(n) for n in source.notes) == split
    decisions = decide(tmp_path, (source.ids[0], names[numbers[0]], "relabel", names[numbers[1]]))
    clean(tmp_path / "set", decisions, tmp_path / "out")
    again = datasets.load_from_disk(str(tmp_path / "out"))
    again, kept = (again["train"], again["test"]) if split else (again, made)
    assert again["label"][:] == [numbers[1], *numbers[1:], -1]
    assert (again.features, kept["label"][:]) == (made.features, rows["label"])


def test_labels_that_are_whole_numbers_are_one_class_with_and_without_a_point(open_data: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n1,0\n2,0.0\n3,1\n4,1.0\n")
    examples = open_data(tmp_path / "t.csv")
    assert (examples.class_names, examples.labels.numbers.tolist()) == (("0", "1"), [0, 0, 1, 1])
    ids = examples.ids
    decisions = decide(tmp_path, (ids[1], "0", "relabel", "1"), (ids[2], "1", "relabel", "1"))
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "x,label\n1,0\n2,1\n3,1\n4,1.0\n"


# Everything else stays as it was.


@pytest.mark.parametrize("new", ["high", "unheard"])
def test_ordered_categories_keep_their_order(tmp_path: Path, new: str) -> None:
    kinds = pandas.CategoricalDtype(["low", "middle", "high"], ordered=True)
    frame = pandas.DataFrame({"label": pandas.Series(["middle", "low", "low"], dtype=kinds)})
    frame.to_parquet(tmp_path / "t.parquet")
    decisions = decide(tmp_path, (0, "middle", "relabel", new), of=tmp_path / "t.parquet")
    names = ["low", "middle", "high", "unheard"]
    clean(tmp_path / "t.parquet", decisions, tmp_path / "o.parquet", class_names=names)
    made = pandas.read_parquet(tmp_path / "o.parquet")["label"]
    assert made.tolist() == [new, "low", "low"]
    assert made.cat.ordered
    assert made.cat.categories.tolist()[:3] == ["low", "middle", "high"]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0.0, 1.0, 1.0]),
        np.array([False, True, True]),
        np.array([b"cat", b"\xc3\xa9mu", b"\xc3\xa9mu"]),
        np.array([0, 1, 1], ">i2"),
        np.array([0, 7, 7], np.uint8),
    ],
)
def test_labels_of_an_npz_keep_their_type(open_data: Any, tmp_path: Path, labels: np.ndarray) -> None:
    np.savez(tmp_path / "t.npz", embeddings=np.eye(3), labels=labels)
    examples = open_data(tmp_path / "t.npz")
    was, new = (examples.class_names[int(examples.labels[i])] for i in (0, 1))
    decisions = decide(tmp_path, (0, was, "relabel", new), of=tmp_path / "t.npz")
    clean(tmp_path / "t.npz", decisions, tmp_path / "o.npz")
    made = np.load(tmp_path / "o.npz")["labels"]
    assert (made.dtype, made.tolist()) == (labels.dtype, labels[[1, 1, 2]].tolist())


def test_a_class_that_does_not_occur_is_made_in_the_type_of_the_labels(tmp_path: Path) -> None:
    for labels, new in ((np.array([0, 1]), "7"), (np.array([b"a", b"b"]), "longer")):
        np.savez(tmp_path / "t.npz", embeddings=np.eye(2), labels=labels)
        decisions = decide(tmp_path, (0, str(labels.astype("U")[0]), "relabel", new), of=tmp_path / "t.npz")
        names = [*labels.astype("U"), new]
        clean(tmp_path / "t.npz", decisions, tmp_path / "o.npz", class_names=names)
        made = np.load(tmp_path / "o.npz")["labels"]
        assert made.dtype.kind == labels.dtype.kind
        assert made.astype("U").tolist() == [new, str(labels.astype("U")[1])]
    np.savez(tmp_path / "t.npz", embeddings=np.eye(2), labels=np.array([0, 1], np.uint8))
    decisions = decide(tmp_path, (0, "0", "relabel", "300"), of=tmp_path / "t.npz")
    with pytest.raises(InputError, match="labels are uint8; '300' is not one"):
        clean(tmp_path / "t.npz", decisions, tmp_path / "n.npz", class_names=["0", "1", "300"])
    assert not (tmp_path / "n.npz").exists()


def test_what_is_no_array_stays_in_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", embeddings=np.eye(2), labels=["a", "b"], more=np.arange(3))
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive:
        archive.writestr("README.md", "mine")
    decisions = decide(tmp_path, (0, "a", "relabel", "b"), of=tmp_path / "t.npz")
    clean(tmp_path / "t.npz", decisions, tmp_path / "o.npz")
    with zipfile.ZipFile(tmp_path / "o.npz") as made, zipfile.ZipFile(tmp_path / "t.npz") as old:
        assert made.namelist() == old.namelist()
        for name in set(old.namelist()) - {"labels.npy"}:
            assert made.read(name) == old.read(name)


def test_only_arrays_that_belong_to_the_examples_are_cut(tmp_path: Path) -> None:
    arrays = {"embeddings": np.arange(9.0).reshape(3, 3), "labels": ["a", "b", "b"]}
    np.savez(tmp_path / "t.npz", **arrays, class_names=["a", "b", "c"])
    decisions = decide(tmp_path, (1, "b", "remove", ""), of=tmp_path / "t.npz")
    clean(tmp_path / "t.npz", decisions, tmp_path / "o.npz")
    made = np.load(tmp_path / "o.npz")
    assert {name: len(made[name]) for name in made} == {"embeddings": 2, "labels": 2, "class_names": 3}  # fmt: skip
    np.savez(tmp_path / "t.npz", **arrays, pca=np.eye(3))
    with pytest.raises(InputError, match=r"pca has as many rows as there are examples \(3\)"):
        clean(tmp_path / "t.npz", decisions, tmp_path / "n.npz")
    assert not (tmp_path / "n.npz").exists()


# Folders.


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/cat-1.png"):
        place = tmp_path / "photos" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    return tmp_path / "photos"


def files_in(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_no_picture_takes_the_name_of_another(photos: Path, tmp_path: Path) -> None:
    rows = [("cat/1.png", "cat", "relabel", "dog"), ("dog/1.png", "dog", "relabel", "cat")]
    clean(photos, decide(tmp_path, *rows), tmp_path / "out")
    made = files_in(tmp_path / "out")
    assert sorted(made.values()) == sorted(files_in(photos).values())
    assert made["dog/cat-2-1.png"] == "cat/1.png"
    assert made["cat/dog-1.png"] == "dog/1.png"


def test_a_copy_that_would_land_in_its_source_is_refused(photos: Path, tmp_path: Path) -> None:
    decisions = decide(tmp_path, ("cat/1.png", "cat", "relabel", "dog"))
    (tmp_path / "link").symlink_to(photos)
    (tmp_path / "inside").symlink_to(photos / "new")
    before = files_in(photos)
    for out in (photos / "new", tmp_path / "link" / "new", tmp_path / "inside"):
        with pytest.raises(InputError, match="lies in the folder that is read"):
            clean(photos, decisions, out)
    assert files_in(photos) == before


def test_links_that_lead_up_or_nowhere_stay_links(photos: Path, tmp_path: Path) -> None:
    (photos / "loop").symlink_to(photos)
    (photos / "cat" / "again").symlink_to("..")
    (photos / "cat" / "gone.png").symlink_to("nowhere.png")
    (photos / "cat" / "self.png").symlink_to("self.png")
    (photos / "dog" / "linked.png").symlink_to("../cat/2.png")
    decisions = decide(tmp_path, ("dog/linked.png", "dog", "relabel", "cat"))
    clean(photos, decisions, tmp_path / "out")
    made = tmp_path / "out"
    assert {p.name for p in made.rglob("*") if p.is_symlink()} == {"loop", "again", "gone.png", "self.png"}  # fmt: skip
    assert (made / "cat" / "linked.png").read_text() == "cat/2.png"
    assert not (made / "dog" / "linked.png").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_copy_that_fails_half_way_leaves_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stop(source: Path, out: Path) -> None:
        if source.name == "2.png":
            raise error
        Path(out).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr("shutil.copy2", stop)
    decisions = decide(tmp_path, ("cat/1.png", "cat", "relabel", "dog"))
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        clean(photos, decisions, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decisions.csv", "photos"]
    assert "run" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../evil", "a/b", "..", "a\\b"])
def test_a_class_is_no_path(photos: Path, tmp_path: Path, name: str) -> None:
    decisions = decide(tmp_path, ("cat/1.png", "cat", "relabel", name))
    with pytest.raises(InputError, match="cannot be a folder's name"):
        clean(photos, decisions, tmp_path / "out", class_names=["cat", "dog", name])
    assert not (tmp_path / "out").exists()


def test_a_column_that_stands_twice_is_named(open_data: Any, tmp_path: Path) -> None:
    table = arrow.Table.from_arrays([arrow.array(["a"])] * 3, ["label", "x", "x"])
    parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("label,x,x\na,1,2\n")
    frame = pandas.DataFrame([["a", 1, 2]], columns=["label", "x", "x"])
    for source in (tmp_path / "t.parquet", tmp_path / "t.csv", frame):
        with pytest.raises(InputError, match="the column 'x' appears twice; rename one"):
            open_data(source)


# Encodings and spreadsheets.


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_csv_is_read_and_written_in_its_own_encoding(open_data: Any, tmp_path: Path, encoding: str) -> None:
    text = " label ;name\r\ncafé;Müller–Lüdenscheidt\r\nthé;“quoted”\r\n"
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    examples = open_data(tmp_path / "t.csv", text="name")
    assert examples.class_names == ("café", "thé")
    assert examples.meta["text"] == ["Müller–Lüdenscheidt", "“quoted”"]
    decisions = decide(tmp_path, (0, "café", "relabel", "thé"), of=tmp_path / "t.csv")
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv")
    expected = text.replace("café;", "thé;").encode(encoding)
    assert (tmp_path / "out.csv").read_bytes() == expected


def test_an_encoding_may_be_named(open_data: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("label,x\nŻółw,1\nkot,2\n".encode("cp1250"))
    with pytest.raises(InputError, match=r"cannot be read as utf-8 .*; name its encoding .*\(--encoding\)"):
        open_data(tmp_path / "t.csv")
    examples = open_data(tmp_path / "t.csv", encoding="cp1250")
    assert examples.class_names == ("kot", "Żółw")
    decisions = decide(tmp_path, (examples.ids[1], "kot", "relabel", "Żółw"))
    clean(tmp_path / "t.csv", decisions, tmp_path / "out.csv", encoding="cp1250")
    assert (tmp_path / "out.csv").read_bytes() == "label,x\nŻółw,1\nŻółw,2\n".encode("cp1250")
    for wrong in ("none", "ascii", "hex"):
        with pytest.raises(InputError, match=f"cannot be read as {wrong}"):
            open_data(tmp_path / "t.csv", encoding=wrong)


def test_a_class_that_the_encoding_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("label,id\ncafé,a\n".encode("cp1252"))
    decisions = decide(tmp_path, ("a", "café", "relabel", "猫"))
    with pytest.raises(InputError, match="its encoding cp1252 has no '猫'"):
        clean(tmp_path / "t.csv", decisions, tmp_path / "o.csv", class_names=["café", "猫"], encoding="cp1252")


def test_formulas_in_the_table_of_an_audit_are_read_as_what_they_were(tmp_path: Path) -> None:
    text = "id,rank,given\n'=1+1,1,'@sum\nb,2,dog\n"
    (tmp_path / "audit.csv").write_text(text)
    decisions = decide(tmp_path, ("b", "dog", "relabel", "@sum"), ("=1+1", "@sum", "keep", ""))
    clean(tmp_path / "audit.csv", decisions, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == text.replace("2,dog", "2,'@sum")


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('ab,;"\n\r \t'), max_size=30))
def test_a_csv_is_written_as_it_was_but_for_what_changed(tmp_path_factory, body: str) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_bytes(f"label,x\na,1\n{body}".encode())
    try:
        table = read_csv(path)
    except InputError:
        return
    every, out = list(range(table.count)), path.with_name("out.csv")
    table.write(out, {}, every)
    assert out.read_bytes() == path.read_bytes()
    table.write(out, {"label": dict.fromkeys(every, 'b"')}, every)
    again = read_csv(out)
    assert again.values("label") == ['b"'] * table.count
    assert [again.values(name) for name in again.names[1:]] == [table.values(name) for name in table.names[1:]]


@given(st.text(max_size=8))
def test_no_guarded_text_is_a_formula_and_all_come_back(text: str) -> None:
    guarded = guard(text)
    assert unguard(guarded) == text
    assert not guarded.startswith(("=", "@", "\t", "\r"))
    assert not guarded.startswith(("+", "-")) or guarded[1:2] in "0123456789.,"


def test_a_row_may_be_short_and_have_line_breaks_between_quotation_marks(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'\r\n"a\n";b;c\r\n1;"x\r\n""y"";z"\r\n\r\n5" disk;2;3')
    table = read_csv(tmp_path / "t.csv")
    columns = {"a\n": ["1", '5" disk'], "b": ['x\r\n"y";z', "2"], "c": ["", "3"]}
    assert {name: table.values(name) for name in table.names} == columns
    assert [table.place(row) for row in range(2)] == ["row 3", "row 5"]  # as a spreadsheet counts
    table.write(tmp_path / "o.csv", {"c": {0: "new"}}, [0])
    assert (tmp_path / "o.csv").read_bytes() == b'\r\n"a\n";b;c\r\n1;"x\r\n""y"";z";new\r\n\r\n'
