import pytest

from bayesmooth.data import load
from bayesmooth.errors import InputError


def test_digits_need_no_files_and_their_splits_are_disjoint(tmp_path):
    pytest.importorskip("sklearn")
    train, test = load("digits", "train", tmp_path), load("digits", "test", tmp_path)
    assert (len(train), len(test)) == (1438, 359)
    assert set(train.ids).isdisjoint(test.ids)
    assert train.inputs.shape[1:] == (1, 8, 8)
    standard = train.as_float(train.inputs)
    assert standard.mean().item() == pytest.approx(0, abs=0.01)
    assert standard.std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("cifar", "train"), {}, "data set 'cifar' is not known; did you mean 'cifar10"),
        (("digits", "valid"), {}, "split 'valid' is not known; there are 'test' and 'train'"),
        (("mnist", "train"), {"verfy": 1}, "option 'verfy' is not known; did you mean 'verify'"),
        (("digits", "train"), {"size": 1}, "option 'size' is not known; there are none"),
        (("source", "train"), {}, "source: give its path with path="),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(arguments, options, message):
    with pytest.raises(InputError, match=message):
        load(*arguments, **options)
