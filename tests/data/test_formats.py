"""What people have: every format is opened, and written again with nothing changed but what was asked."""

import gc
import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from bayesmooth.data import Columns, Labels, open_source
from bayesmooth.data.opening import make_ready
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

LABELS = st.sampled_from(["cat", "dog", "ñandú", "1", "a,b"])
ODD = st.sampled_from(["cat", " cat", "=cmd|x", "1.5", "'s", 'q"q', "a\nb"])  # a spreadsheet would run one
# A spreadsheet holds no control characters, and an apostrophe or a number would change its type.
TEXTS = st.text(st.characters(categories=("L", "Nd", "P", "Zs")), max_size=8).map(lambda t: f"t{t}")


def save(frame: Any, path: Path) -> Path:
    """A frame in the format of the path."""
    rows = frame.to_dict("records")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    elif path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".jsonl":
        path.write_text(lines)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    elif path.suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        frame.to_excel(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        x = np.arange(len(frame))[:, None]
        np.savez(path, labels=frame.label.to_numpy("U"), texts=frame.text.to_numpy("U"), X=x)
    elif path.suffix == ".hf":
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        datasets.Dataset.from_pandas(frame).save_to_disk(path)
    else:
        encoding = path.stem.partition("-")[2] or "utf-8"
        mark = "\t" if path.suffix == ".tsv" else "|" if "|" in path.name else ","
        path.write_bytes(frame.to_csv(sep=mark, index=False).encode(encoding, "replace"))
    return path


KINDS = [".csv", "|.csv", "-utf-16.csv", "-cp1252.csv", ".tsv", ".csv.gz", ".jsonl", ".jsonl.gz", ".json"]
KINDS += [".xlsx", ".parquet", ".npz", ".hf"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_written_differs_in_the_changed_labels_alone(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("formats")
    labels = LABELS if kind == ".xlsx" else LABELS | ODD  # pandas writes formulas
    rows = data.draw(st.lists(st.tuples(labels, TEXTS), min_size=3, max_size=6))
    frame = pandas.DataFrame(rows, columns=["label", "text"]).sample(frac=1, random_state=0)
    if data.draw(st.booleans()) and kind != ".npz":
        frame["id"] = [f"{text} {row}" for row, text in enumerate(frame.text)]
    columns = Columns(encoding="cp1252" if "cp1252" in kind else None)  # no Western words
    source = open_source(save(frame, folder / f"t{kind}"), columns)
    name = "texts" if kind == ".npz" else "text"
    labels, texts = source.labels.texts(), source.column(name)
    assert labels == [label.strip() for label in frame.label]
    assert kind == "-cp1252.csv" or texts == frame.text.tolist()
    at, gone = data.draw(st.permutations(range(len(rows))))[:2]
    new = data.draw(st.sampled_from(["cat", "dog", "7"]))
    source.write(folder / f"o{kind}", {source.ids[at]: new, source.ids[gone]: None})
    again = open_source(folder / f"o{kind}", columns)
    labels[at] = new
    del labels[gone], texts[gone]
    assert (again.labels.texts(), again.column(name)) == (labels, texts)
    assert "id" not in frame or again.ids == (*source.ids[:gone], *source.ids[gone + 1 :])


@pytest.mark.parametrize("form", ["\n{}\r\n{}\r\n\r\n{}", "{}\n{}\n{}\n", "[{},{},\n {}]"])
def test_objects_of_json_that_do_not_change_stay_to_the_byte(tmp_path: Path, form: str) -> None:
    first, last = '{"label": 0, "x":1.50}', '{"label":1, "more": [1, {"a": 2}]}'
    (tmp_path / "t.json").write_bytes(form.format(first, '{"x": 2e0,"label":1}', last).encode())
    source, out, new = open_source(tmp_path / "t.json"), tmp_path / "o.json", '{"x": 2.0, "label": 0}'
    source.write(str(out), {source.ids[1]: "0"})
    assert out.read_bytes().decode() == form.format(first, new, last)
    source.write(out, dict.fromkeys(source.ids[:2]))
    assert out.read_bytes().decode() == form[: form.find("{")] + last + form[form.rfind("}") + 1 :]
    with pytest.raises(InputError, match="its labels are numbers; 'cat' is not one"):
        source.write(out, {source.ids[1]: "cat"})


def test_a_sheet_of_excel_is_written_again_by_its_values_and_gets_no_formula(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book, day = openpyxl.Workbook(), datetime(2026, 11, 18)
    rows = [("label", "x", 2020, None), ("a", 1.5, day, "hidden"), (), ("b", 2, None, None), ("a", 3, "t", None)]
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes")
    book.save(tmp_path / "t.xlsx")
    source = open_source(tmp_path / "t.xlsx")
    assert [name.partition("-")[0] for name in source.ids] == ["2", "4", "5"]
    assert (source.labels.texts(), source.column("2020")[2]) == (["a", "b", "a"], "t")
    source.write(tmp_path / "o.xlsx", {source.ids[1]: "=1+1", source.ids[2]: None})
    sheet = openpyxl.load_workbook(tmp_path / "o.xlsx").active
    assert [*sheet.values] == [rows[0], rows[1], ("=1+1", 2, None, None)]
    assert sheet["A3"].data_type == "s"


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_lists_are_sets_of_tags_and_stay_lists(tmp_path: Path, kind: str) -> None:
    frame = pandas.DataFrame({"labels": [["dog", "beach"], [], ["dog"]], "t": list("abc")})
    source = open_source(save(frame, tmp_path / f"t.{kind}"))
    assert source.labels.texts() == ["beach; dog", "(no tags)", "dog"]
    source.write(tmp_path / f"o.{kind}", {source.ids[1]: "beach", source.ids[2]: "(no tags)"})
    again = open_source(tmp_path / f"o.{kind}")
    assert again.column("labels") == [["dog", "beach"], ["beach"], []]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", b"{", "not a list of objects"),
        ("t.json", b"[1]", "row 0 is '1'; must be an object"),
        ("t.jsonl", b'{"a": 1}\n[', "not a list of objects"),
        ("t.jsonl", b"", "no rows"),
        ("t.json", b'{"label": ["a", "b"], "x": {"0": 1}}', "one object .*orient='records'"),
        ("t.xlsx", b"PK", "not a workbook"),
        ("t.csv.gz", gzip.compress(b"label,x\na,1\n", mtime=0)[:-9], "not a file that can be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        open_source(tmp_path / name)
    assert gc.isenabled()  # it was off while the file was read


COUNT = 20
X = torch.randn(COUNT, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % 2


def test_rows_with_their_labels_are_one_data_set_however_they_are_held() -> None:
    polars = pytest.importorskip("polars")
    rows = [{"x": float(x[0]), "y": float(x[1]), "label": int(y)} for x, y in zip(X, Y, strict=True)]
    frame = pandas.DataFrame(rows)
    lazy = polars.from_pandas(frame).lazy().filter(polars.col("label") >= 0)
    for what in (rows, tuple(rows), frame, polars.from_pandas(frame), lazy):
        source = make_ready(open_source(what), Columns())
        torch.testing.assert_close(source.inputs, X[:, :2].double())
        assert source.ids == tuple(map(str, range(COUNT)))
        assert source.labels.texts() == frame.label.astype(str).tolist()
    assert len(open_source(frame.set_index("x", drop=False))) == COUNT  # the index is a column already


def test_a_data_set_of_torch_and_its_loader_keep_the_order_of_the_data() -> None:
    data = TensorDataset(X, Y)

    class Stream(IterableDataset):
        def __iter__(self):
            return zip(X, Y, strict=True)

    for what in (data, DataLoader(data, 6, shuffle=True), Stream(), DataLoader(Stream(), 6)):
        source = open_source(what)
        assert torch.equal(source.inputs, X)
        assert torch.equal(source.labels.numbers, Y)
    named = TensorDataset((255 * X.abs().clamp(0, 1))[:, :, None, None].expand(-1, -1, 9, 9).byte(), Y)
    named.classes = ["cat", "dog"]
    source = open_source(named)
    assert (source.class_names, source.pictures.shape) == (("cat", "dog"), (COUNT, 3, 9, 9))
    data.classes = 2  # a number of classes is no list of names
    assert open_source(data).class_names == ("0", "1")
    with pytest.raises(InputError, match="list: its inputs have several shapes"):
        open_source(DataLoader([(X[0], 0), (X[0, :1], 1)]))
    for odd in (TensorDataset(X), TensorDataset(X[:0], Y[:0])):
        with pytest.raises(InputError, match="must be pairs"):
            open_source(odd)


def test_texts_pictures_and_mixed_frames_go_with_labels_beside_them(tmp_path: Path) -> None:
    polars, words = pytest.importorskip("polars"), [f"text {i}" for i in range(COUNT)]
    for held in (words, np.array(words), np.array([None, *words[1:]]), pandas.Series(words), polars.Series(words)):
        assert open_source(held, labels=Y.tolist()).texts[3] == "text 3"
    pixels = np.zeros((COUNT, 8, 9, 3), np.uint8)
    assert open_source(pixels, labels=Y).pictures.shape == (COUNT, 3, 8, 9)
    frame = pandas.DataFrame({"x": X[:, 0].numpy(), "colour": ["red", "blue"] * 10})
    for held in (frame, polars.from_pandas(frame)):
        mixed = make_ready(open_source(held, labels=Y), Columns())
        assert (mixed.reading.names, mixed.class_names) == (("x", "colour=blue", "colour=red"), ("0", "1"))
        assert open_source(held, labels=torch.eye(2)[Y].long()).labels.texts()[:2] == ["0", "1"]  # one tag each
        assert open_source(held, labels=Labels(Y, ("a", "b"), votes=((0, "ann", "a"),))).labels.kind == "votes"
    pil = pytest.importorskip("PIL.Image")
    pil.new("RGB", (9, 9)).save(tmp_path / "a.png")
    for held in (pil.new("RGB", (9, 9)), tmp_path / "a.png"):
        shown = open_source([held] * COUNT, labels=Y)
        assert shown.pictures[torch.tensor([0])].shape == (1, 3, 96, 96)
    deep = [pil.fromarray(np.full((9, 9), 2**15, np.uint16))] * 2  # of 16 bits
    assert open_source(deep, labels=[0, 1]).pictures[torch.tensor([1])].unique().tolist() == [128]
    with pytest.raises(InputError, match="has its own labels"):
        open_source("t.csv", labels=Y)


def test_of_several_splits_the_training_split_is_opened(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    part = lambda word: datasets.Dataset.from_dict({"text": [word] * 3, "label": [0, 1, 1]})  # noqa: E731
    whole = datasets.DatasetDict({"test": part("t"), "train": part("a"), "valid": part("v")})
    whole.save_to_disk(tmp_path / "set")
    for what in (whole, tmp_path / "set"):
        assert open_source(what).column("text") == ["a"] * 3
    streamed = part("x").to_iterable_dataset()
    for what in (streamed, datasets.IterableDatasetDict({"train": streamed})):
        assert open_source(what).column("text") == ["x"] * 3
