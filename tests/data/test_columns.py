import pytest
import torch

from bayesmooth.data import load
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")


def test_columns_called_as_the_classes_come_in_their_order(write):
    path = write("dog,cat,fish,label\n.7,.2,.1,dog\n.1,.8,.1,cat\n.2,.2,.6,fish\n")
    examples = load("table", "train", path=path)
    assert examples.class_names == ("cat", "dog", "fish")
    assert torch.equal(examples.inputs.argmax(1), examples.labels)


def test_numbers_are_standardised_by_the_training_rows_alone(write):
    rows = "1,10,a,train\n3,10,b,train\n100,10,b,test\n"
    path = write(f"x,constant,label,split\n{rows}")
    train, test = (load("table", split, path=path) for split in ("train", "test"))
    assert (train.mean, train.std) == ((2, 10), (1, 1))
    assert train.batch(torch.tensor([0, 1])).tolist() == [[-1, 0], [1, 0]]
    assert test.batch(torch.tensor([0])).tolist() == [[98, 0]]
    raw = load("table", "test", path=path, standardize=False)
    assert raw.batch(torch.tensor([0])).tolist() == [[100, 10]]


def test_one_file_per_split_is_standardised_by_the_train_file(write, tmp_path):
    write("x,label\n1,a\n3,b\n", "train.csv")
    write("x,label\n7,b\n", "test.csv")
    test = load("table", "test", path=str(tmp_path / "{split}.csv"))
    assert test.batch(torch.tensor([0])).tolist() == [[5]]


def test_categories_become_columns_of_zero_and_one(write):
    rows = "".join(
        f"{colour},{i / 7},{'ab'[i % 2]}\n" for i, colour in enumerate(["red", "blue"] * 4)
    )
    train = load("table", path=write(f"colour,x,label\n{rows}"), features=["colour"])
    assert train.inputs.tolist() == [[0, 1], [1, 0]] * 4
    assert (train.mean, train.std) == ((0, 0), (1, 1))
    assert load("table", path=write(f"colour,x,label\n{rows}")).inputs.shape == (8, 3)


def test_a_category_is_numbered_as_in_the_training_rows(write):
    rows = "".join(f"{c},a,train\n" for c in ["red", "blue"] * 4) + "green,a,test\nred,a,test\n"
    test = load("table", "test", path=write(f"colour,label,split\n{rows}"))
    assert test.inputs.tolist() == [[0, 0], [0, 1]]


def test_a_missing_number_counts_as_the_mean_of_the_training_rows_in_every_split(write):
    rows = "1,a,train\n,b,train\n3,b,train\n100,a,test\n,b,test\n"
    train, test = (
        load("table", split, path=write(f"x,label,split\n{rows}")) for split in ("train", "test")
    )
    assert train.inputs.flatten().tolist() == [1, 2, 3]
    assert test.inputs.flatten().tolist() == [100, 2]
    assert train.notes == ("missing numbers count as the mean of their column: 1 in 'x'",)


NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("Unnamed: 0", range(10), "row numbers"),
        ("", range(10), "row numbers"),
        ("customer_id", NUMBERS, "an id"),
        ("userId", NUMBERS, "an id"),
        ("n", range(5, 15), "row numbers"),
        ("kept", [3, 7, 8, 12, 13, 20, 21, 22, 40, 41], "row numbers"),
        ("shuffled", [4, 2, 0, 1, 3, 9, 8, 6, 7, 5], "row numbers"),
        ("nothing", [""] * 10, "empty"),
    ],
)
def test_row_numbers_and_ids_are_left_out_and_said(write, name, values, why):
    rows = "".join(
        f"{v},{x},{'ab'[i % 2]}\n" for i, (v, x) in enumerate(zip(values, NUMBERS, strict=True))
    )
    path = write(f"{name},x,label\n{rows}")
    examples = load("table", path=path)
    assert examples.inputs.flatten().tolist() == NUMBERS
    assert len(examples.notes) == 1
    assert f"({why})" in examples.notes[0]
    if name and why != "empty":
        assert load("table", path=path, features=[name, "x"]).inputs.shape == (10, 2)


def test_decimal_commas_and_semicolons_are_understood(write):
    examples = load("table", path=write("x;y;label\n1,5;-2,25;a\n3;4,0;b\n"))
    assert examples.inputs.tolist() == [[1.5, -2.25], [3, 4]]
    quoted = load("table", path=write('x,label\n"1,5",a\n"3,25",b\n'))
    assert quoted.inputs.tolist() == [[1.5], [3.25]]
    with pytest.raises(InputError, match=r"column 'x': 1,234 may be 1\.234 or 1234"):
        load("table", path=write('x,label\n"1,234",a\n"5,678",b\n'))


def test_a_column_of_vectors_is_taken_as_it_is(tmp_path):
    frame = pandas.DataFrame({"v": [[1.0, 2], [3, 4]], "n": [1, 2], "label": ["a", "b"]})
    frame.to_parquet(tmp_path / "v.parquet")
    examples = load("table", path=str(tmp_path / "v.parquet"))
    assert examples.inputs.tolist() == [[1, 2], [3, 4]]
    assert examples.mean is None
    frame["v"] = [[1.0], [3, 4]]
    frame.to_parquet(tmp_path / "v.parquet")
    with pytest.raises(
        InputError, match="column 'v': its vectors must be numbers, all of one length"
    ):
        load("table", path=str(tmp_path / "v.parquet"))
