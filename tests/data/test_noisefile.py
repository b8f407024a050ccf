import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import Corruption, Examples, corrupt
from bayesmooth.errors import InputError


@pytest.fixture
def clean():
    return Examples(torch.zeros(300, 1), torch.arange(300) % 3, ("a", "b", "c"), name="three")


def test_a_noise_file_gives_the_same_noisy_labels(clean, tmp_path):
    noisy, corruption = corrupt(clean, "symmetric", rate=0.4, seed=7)
    corruption.save(tmp_path / "noise.json")
    again = Corruption.load(tmp_path / "noise.json")
    assert torch.equal(again.apply(clean).labels, noisy.labels)
    assert torch.equal(again.apply(clean).clean_labels, clean.labels)
    assert (again.kind, again.seed, again.rate, again.hash) == (
        "symmetric", 7, corruption.rate, corruption.hash,
    )  # fmt: skip
    assert (again.matrix == corruption.matrix).all()
    assert (again.old == clean.labels.numpy()[again.index]).all()


def test_noise_is_refused_by_other_labels_or_another_order(clean, tmp_path):
    noisy, corruption = corrupt(clean, "symmetric", rate=0.4)
    four = Examples(clean.inputs, clean.labels, ("a", "b", "c", "d"))
    for other in (noisy, clean.subset(range(299, -1, -1)), clean.subset(range(299)), four):
        with pytest.raises(InputError, match="are not those the noise was drawn for"):
            corruption.apply(other)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("index", [0, 300], r"index\[1\]=300: must be from 0 to 299"),
        ("new", [0, 3], r"new\[1\]=3: must be from 0 to 2"),
        ("new", [0], "must be as many"),
        ("new", [0, 1.5], "whole numbers"),
        ("new", [0, 10**30], "not a noise file"),
        ("matrix", [[1, 0]], "must be K × K"),
        ("matrix", [["x"]], "not a noise file"),
        ("hash", None, "hash strings"),
        ("seed", "0", "whole numbers"),
        ("kind", ..., "KeyError: 'kind'"),
    ],
)
def test_a_broken_noise_file_is_said_to_be_one(clean, tmp_path, key, value, message):
    path = tmp_path / "noise.json"
    corrupt(clean, "symmetric", rate=0.1)[1].save(path)
    content = json.loads(path.read_text()) | {"index": [0, 1], "old": [0, 1], "new": [1, 2]}
    content[key] = value
    if value is ...:
        del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        Corruption.load(path)


@given(st.binary(max_size=60) | st.text('{}[]",:0123abc', max_size=60).map(str.encode))
def test_any_bytes_are_a_noise_file_or_an_input_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "noise.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"noise\.json"):
        Corruption.load(path)
