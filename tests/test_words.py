import pytest

from bayesmooth.words import WIDTH, format_epoch


@pytest.mark.parametrize("averaged", [False, True])
def test_the_line_of_an_epoch_fits_a_terminal(averaged):
    figures = ["validation.accuracy", "test.accuracy", "memorised", "train.accuracy", "train.loss"]
    record = dict.fromkeys([*figures, *["averaged.accuracy"] * averaged], 0.123)
    line = format_epoch({"epoch": 100, **record}, 200)
    assert len(line) <= WIDTH == 80
    assert "memorised 12.3 %" in line
    assert ("averaged" in line) == averaged
