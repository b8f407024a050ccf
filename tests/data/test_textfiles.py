import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data.textfiles import Csv, guard, unguard
from bayesmooth.errors import InputError


@given(st.text(max_size=8))
def test_no_guarded_text_is_a_formula_and_all_come_back(text: str) -> None:
    guarded = guard(text)
    assert unguard(guarded) == text
    assert not guarded.startswith(("=", "@", "\t", "\r"))
    assert not guarded.startswith(("+", "-")) or guarded[1:2] in "0123456789.,"


def test_a_row_may_be_short_and_have_line_breaks_between_quotation_marks(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a;b;c\r\n1;"x\r\n""y"";z"\r\n   \r\n5" disk;2;3')
    table = Csv(tmp_path / "t.csv")
    assert (table.mark, table.header) == (";", ["a", "b", "c"])
    assert table.rows == [("1", 'x\r\n"y";z', ""), ('5" disk', "2", "3")]
    assert table.values("c") == ["", "3"]
    assert [table.place(row) for row in range(2)] == ["row 2", "row 4"]  # as a spreadsheet counts


def test_a_row_that_is_too_long_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(InputError, match="row 3 has 3 fields, the header 2; quote the field"):
        Csv(tmp_path / "t.csv")
