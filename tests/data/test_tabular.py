import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import load
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
CSV = """id,text,width,label,height,clean_label,split
a,tall one,1.5,dog,2,dog,train
b,NA,3,cat,4,dog,train
c,small,5,cat,6.5,cat,test
"""


def test_a_table_gives_numbers_labels_clean_labels_ids_and_text(write):
    train = load("table", "train", path=write(CSV))
    assert train.class_names == ("cat", "dog")
    assert train.inputs.tolist() == [[1.5, 2], [3, 4]]
    assert train.labels.tolist() == [1, 0]
    assert train.clean_labels.tolist() == [1, 1]
    assert train.ids == ("a", "b")
    assert train.meta["text"][0] == "tall one"
    assert load("table", "test", path=write(CSV)).inputs.tolist() == [[5, 6.5]]


def test_parquet_and_tsv_are_read_as_csv(write, tmp_path):
    csv = load("table", "train", path=write(CSV))
    frame = pandas.read_csv(tmp_path / "pets.csv", keep_default_na=False)
    frame["label"] = frame["label"].astype("category")
    frame.to_parquet(tmp_path / "pets.parquet")
    for path in (tmp_path / "pets.parquet", write(CSV.replace(",", "\t"), "pets.tsv")):
        other = load("table", "train", path=str(path))
        assert torch.equal(other.inputs, csv.inputs)
        assert (other.labels.tolist(), other.ids) == (csv.labels.tolist(), csv.ids)


def test_one_file_a_split_is_numbered_as_the_train_file(write, tmp_path):
    write("x,label\n1,a\n2,b\n", "train.csv")
    write("x,label\n3,b\n", "test.csv")
    test = load("table", "test", path=str(tmp_path / "{split}.csv"))
    assert (test.class_names, test.labels.tolist()) == (("a", "b"), [1])


def test_columns_and_the_order_of_classes_can_be_given(write):
    path = write("x,y,kind\n1,2,b\n3,4,a\n")
    given = load("table", path=path, label="kind", class_names=["b", "a"], features=["y"])
    assert given.inputs.tolist() == [[2], [4]]
    assert given.labels.tolist() == [0, 1]
    named = load("table", path=write("x,label\n1,1\n3,0\n"), class_names=["cat", "dog"])
    assert named.labels.tolist() == [1, 0]


def test_na_is_missing_unless_it_is_named_as_a_class(write):
    path = write("x,label\n1,NA\n3,ok\n")
    with pytest.raises(InputError, match=r"label, row 1: 'NA' is not a class .* class_names"):
        load("table", path=path)
    assert load("table", path=path, class_names=["NA", "ok"]).labels.tolist() == [0, 1]


def test_a_column_of_paths_gives_pictures(picture_dir):
    rows = "path,label\ntrain/cat/0.png,cat\ntrain/dog/0.png,dog\n"
    (picture_dir / "list.csv").write_text(rows)
    pictures = load("table", path=str(picture_dir / "list.csv"), size=8)
    assert pictures.inputs[torch.tensor([1])][0, :, 4, 4].tolist() == [10, 10, 250]
    (picture_dir / "list.csv").write_text("x," + rows.replace("\nt", "\n1,t"))
    both = load("table", path=str(picture_dir / "list.csv"), size=8)
    assert both.inputs.tolist() == [[1], [1]]
    assert both.pictures[torch.tensor([0])].shape == (1, 3, 96, 96)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,label\n1,a\ninf,b\n", "row 2, column 'x': inf"),
        ("x,label\n1,a\n1e300,b\n", r"row 2, column 'x': 1e\+300"),
        ("x,y,label\n1,1,a\n?,2,b\n2,3,b\n", r"row 2, column 'x': \? is not a finite number"),
        ("x,label\n1,a\n2,\n", "label, row 2: '' is not a class"),
        ("x,y\n1,2\n", "no column 'label', only x, y"),
        ("x,label\n1,a,7\n", "row 1 has 3 fields, the header 2"),
        ("x,label\n", "no rows"),
        ("", "empty; its first line must name the columns"),
        (b"x,label\n1,\x81\n", "cannot be read as cp1252 .* name its encoding"),
        ("text,label\nhello,a\n", "nothing to learn from"),
        ('x,label\n1,"a\n', "line 2 has a stray quotation mark"),
    ],
)
def test_a_wrong_table_is_named_with_its_place(write, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load("table", path=write(content))
    assert "pets.csv" in str(caught.value)


def test_features_that_are_no_numbers_or_not_there_are_named(write):
    path = write("x,y,label\n1,2,a\nsmall,3,b\n")
    with pytest.raises(InputError, match="row 2, column 'x': small is not a finite number"):
        load("table", path=path, features=["x"])
    with pytest.raises(InputError, match="no column 'z' among the features"):
        load("table", path=path, features=["z"])


def test_a_split_that_is_not_there_says_how_to_give_one(write):
    with pytest.raises(InputError, match=r"add a column `split`, or put \{split\} in the path"):
        load("table", "test", path=write("x,label\n1,a\n"))
    with pytest.raises(InputError, match="no row whose column `split` is 'test'"):
        load("table", "test", path=write("x,label,split\n1,a,train\n"))


def test_a_parquet_file_that_is_none_is_refused(write):
    for content in (b"", b"PAR1 and more PAR1", b"PAR1" * 20):
        with pytest.raises(InputError, match="not a table that can be read"):
            load("table", path=write(content, "pets.parquet"))


CELLS = st.text('xlabel,12.\n"\r\t\x00é', max_size=30).map(lambda text: f"x,label\n{text}".encode())


@given(CELLS | st.binary(max_size=40))
def test_any_bytes_are_a_table_or_an_input_error(tmp_path_factory, result_or_input_error, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(data)
    result_or_input_error("fuzz.csv", load, "table", path=str(path))


def test_a_column_of_true_labels_that_is_named_must_be_there(write):
    with pytest.raises(InputError, match=r"no column 'truth', only id, text"):
        load("table", "train", path=write(CSV), clean_label="truth")
