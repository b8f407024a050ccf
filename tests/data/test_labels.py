import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data.labels import encode, name_classes, read_labels
from bayesmooth.errors import InputError


@given(st.lists(st.integers(0, 99) | st.text("abc", min_size=1, max_size=2), min_size=1))
def test_the_name_at_the_number_is_the_label(values):
    labels = read_labels(values, "labels")
    names = name_classes(labels)
    assert [names[k] for k in encode(labels, names, "labels").tolist()] == labels


def test_numbers_are_sorted_as_numbers():
    assert name_classes(["10", "2", "1"]) == ("1", "2", "10")
    assert name_classes(["10", "2", "x"]) == ("10", "2", "x")


def test_numbers_index_the_given_names_and_words_do_not():
    assert encode(["1", "0"], ("cat", "dog"), "y").tolist() == [1, 0]
    assert torch.equal(encode(["2", "1"], ("1", "2"), "y"), torch.tensor([1, 0]))


@pytest.mark.parametrize("value", [1.5, math.inf, math.nan])
def test_what_is_no_class_is_named_with_its_row(value):
    with pytest.raises(InputError, match=r"y, row 1: .* is not a class"):
        read_labels(["a", value], "y")


def test_labels_outside_the_given_names_are_named_with_their_row():
    with pytest.raises(InputError, match="y, row 1: 'emu' is not one of the classes cat, dog"):
        encode(["cat", "emu"], ("cat", "dog"), "y")
    with pytest.raises(InputError, match="y, row 0: '2'"):
        encode(["2"], ("cat", "dog"), "y")
    with pytest.raises(InputError, match="appears twice"):
        encode(["cat"], ("cat", "cat"), "y")
