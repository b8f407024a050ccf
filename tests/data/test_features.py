import pytest

from bayesmooth.data import Columns, open_source
from bayesmooth.data.opening import make_ready
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")


def test_categories_become_columns_of_zero_and_one(write, open_data):
    rows = "".join(f"{colour},{i / 7},{'ab'[i % 2]}\n" for i, colour in enumerate(["red", "blue"] * 4))
    train = open_data(write(f"colour,x,label\n{rows}"), features=["colour"])
    assert train.inputs.tolist() == [[0, 1], [1, 0]] * 4
    assert (train.mean, train.std) == ((0, 0), (1, 1))
    assert open_data(write(f"colour,x,label\n{rows}")).inputs.shape == (8, 3)


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
def test_row_numbers_and_ids_are_left_out_and_said(write, name, values, why, open_data):
    rows = "".join(f"{v},{x},{'ab'[i % 2]}\n" for i, (v, x) in enumerate(zip(values, NUMBERS, strict=True)))
    path = write(f"{name},x,label\n{rows}")
    examples = open_data(path)
    assert examples.inputs.flatten().tolist() == NUMBERS
    assert [f"({why})" in note.text for note in examples.notes] == [False, True]
    if name and why != "empty":
        assert open_data(path, features=[name, "x"]).inputs.shape == (10, 2)
        with pytest.raises(InputError, match=r"beside ids and row numbers; .*\(--features\)"):
            open_data(write(f"{name},label\n" + "".join(f"{v},{'ab'[i % 2]}\n" for i, v in enumerate(values))))


def test_a_comma_is_a_decimal_point_where_it_cannot_mean_thousands(write, open_data):
    for mark in ";\t":
        examples = open_data(write("x;y;label\n1,5;-2,25;a\n3;4,0;b\n".replace(";", mark)))
        assert examples.inputs.tolist() == [[1.5, -2.25], [3, 4]]
    assert open_data(write('x,label\n"1,5",a\n"3,25",b\n')).inputs.tolist() == [[1.5], [3.25]]
    with pytest.raises(InputError, match=r"column 'x': 1,234 may be 1\.234 or 1234"):
        open_data(write('x,label\n"1,234",a\n"5,678",b\n'))
    few = open_data(write('x,label\n"1,234",a\n999,b\n850,b\n'))
    assert (few.inputs.flatten().tolist(), few.problems[0].kind) == ([924.5, 999, 850], "not_a_number")


def test_a_gap_among_probabilities_is_an_error_that_names_its_cell_and_their_columns_are_noted(write, open_data):
    rows = "x,a,b,label\n1,.5,.5,a\n2,.4,,b\n2,.7,.3,a\n"
    columns = Columns()
    with pytest.raises(InputError, match=r"row 3, column 'b': '' is no finite number"):
        make_ready(open_source(write(rows), columns, predicted=True), columns, predicted=True)
    whole = make_ready(open_source(write(rows.replace(",,", ",.6,")), columns, predicted=True), columns, predicted=True)
    assert whole.inputs.tolist() == [[0.5, 0.5], [0.4, 0.6], [0.7, 0.3]]
    assert "learned from 'a', 'b'" in map(str, whole.notes)


def test_a_column_of_vectors_is_taken_as_it_is(tmp_path, open_data):
    frame = pandas.DataFrame({"v": [[1.0, 2], [3, 4]], "n": [1, 2], "label": ["a", "b"]})
    frame.to_parquet(tmp_path / "v.parquet")
    examples = open_data(str(tmp_path / "v.parquet"))
    assert examples.inputs.tolist() == [[1, 2], [3, 4]]
    assert examples.mean is None


def test_a_cell_that_is_no_number_is_a_finding_and_the_rest_is_read(write, open_data):
    weights = ["3650", "3700", "n/a", "3650 g", "", "?", "1e300", "10", "20", "30", "40", "50"]
    lines = [f"{w},{i % 7}.5,{'ab'[i % 2]}" for i, w in enumerate(weights)]
    lines.insert(4, "")  # a blank line is a row of the spreadsheet
    source = open_data(write("weight,y,label\n" + "\n".join(lines)))
    mean = (3650 + 3700 + 10 + 20 + 30 + 40 + 50) / 7
    known = [3650, 3700, mean, mean, mean, mean, mean, 10, 20, 30, 40, 50]
    assert source.inputs[:, 0].tolist() == pytest.approx(known)
    (found,) = source.problems
    assert found.kind == "not_a_number"
    assert [id.partition("-")[0] for id in found.ids] == ["5", "8", "9"]
    assert "'3650 g' (row 5), '?' (row 8), '1e300' (row 9)" in found.text
    assert "(--features)" in found.text
    filled = "missing numbers count as the mean of their column: 2 in 'weight'"
    assert filled in map(str, source.notes)


def test_a_column_of_numbers_with_many_gaps_is_learned_from_and_ids_are_not(write, open_data):
    rows = "".join(f"{v},{v if i % 3 == 0 else ''},{'ab'[i % 2]}\n" for i, v in enumerate(NUMBERS))
    assert open_data(write(f"ids,x,label\n{rows}")).reading.names == ("x",)
