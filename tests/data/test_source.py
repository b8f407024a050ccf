import numpy as np
import pytest
import torch

from bayesmooth.data import Labels, Source, open_source
from bayesmooth.data.source import Mapped
from bayesmooth.errors import InputError


def test_bytes_become_standardised_floats_only_in_a_batch(pictures):
    examples = Source(pictures.inputs, pictures.labels, mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
    index = torch.tensor([3, 1])
    batch = examples.batch(index)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (examples.mean, examples.std))
    assert examples.inputs.dtype == torch.uint8
    torch.testing.assert_close(batch, (examples.inputs[index] / 255 - mean) / std)


def test_a_subset_of_a_subset_keeps_the_positions_of_the_whole_as_ids(pictures):
    twice = pictures.subset(torch.tensor([5, 9, 2])).subset([2, 0])
    assert twice.ids == ("2", "5")
    assert torch.equal(twice.inputs, pictures.inputs[[2, 5]])
    assert twice.labels.numbers.tolist() == [2, 1]


def test_a_subset_takes_every_column_along():
    examples = Source(
        Mapped(np.arange(6)[:, None].repeat(2, 1)),
        Labels(torch.arange(6) % 2, ("a", "b")),
        clean=torch.zeros(6, dtype=torch.int64),
        ids=tuple("uvwxyz"),
        meta={"text": list("UVWXYZ")},
        pictures=torch.arange(6),
    )
    part = examples.subset(examples.labels.numbers == 1)
    assert (part.ids, part.meta["text"]) == (("v", "x", "z"), ["V", "X", "Z"])
    assert part.pictures.tolist() == [1, 3, 5]
    assert part.clean.tolist() == [0, 0, 0]
    assert part.batch(torch.tensor([2, 0])).tolist() == [[5, 5], [1, 1]]
    assert part.input_shape == (2,)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 2]), r"labels\[2\]=2: must be from 0 to 1"),
        (torch.tensor([0, -1, 0]), r"labels\[1\]=-1"),
        (torch.tensor([0, 1]), "2 (clean )?labels for 3 inputs"),
        (torch.tensor([0.0, 1.0, 0.0]), "must be integers"),
        (torch.tensor([True, False, True]), "must be integers"),
    ],
)
def test_labels_that_are_none_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        Source(torch.zeros(3, 1), Labels(labels, ("a", "b")))
    with pytest.raises(InputError, match=message):
        Source(torch.zeros(3, 1), Labels(torch.zeros(3).long(), ("a", "b")), clean=labels)


def test_columns_of_another_length_and_positions_outside_are_refused(pictures):
    with pytest.raises(InputError, match="2 ids for 20 inputs"):
        Source(pictures.inputs, pictures.labels, ids=("a", "b"))
    with pytest.raises(InputError, match="1 text for 20 inputs"):
        Source(pictures.inputs, pictures.labels, meta={"text": ["a"]})
    for outside in ([20], [-1]):
        with pytest.raises(InputError, match="positions must be from 0 to 19"):
            pictures.subset(outside)


def test_a_column_far_from_zero_keeps_its_digits():
    """1.7 billion seconds apart by one: float32 could not tell them apart before the mean is taken off."""
    seconds = torch.tensor([[1.7e9], [1.7e9 + 1]], dtype=torch.float64)
    rows = Source(seconds, Labels(torch.tensor([0, 1]), ("a", "b")), mean=(1.7e9,), std=(0.5,))
    assert rows.batch(torch.tensor([0, 1])).tolist() == [[0.0], [2.0]]


def test_an_id_of_ones_own_is_never_found_by_a_part_of_it(tmp_path):
    (tmp_path / "t.csv").write_text("id,label\na-1,x\nb-2,y\n")
    assert open_source(tmp_path / "t.csv").find(["c-2", "b-2"]) == {"b-2": 1}


def test_a_table_in_another_order_is_read_in_that_order(write, open_data):
    source = open_source(write("id,x,label\na,1,u\nb,2,v\nc,3,u\n")).subset([2, 0, 1])
    assert (open_data(source).inputs.flatten().tolist(), source.ids) == ([3, 1, 2], ("c", "a", "b"))
