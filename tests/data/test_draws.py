"""What training draws by a seed."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import AUGMENTATIONS, Augment, Labels, Source, batches, corrupt, split
from bayesmooth.data.draws import data_dependent, draw_labels, pairflip, symmetric
from bayesmooth.errors import InputError

GOLDENS = {
    ("symmetric", 0.2): "0123466786 0123446789 0157456709 0193456780",
    ("symmetric", 0.4): "0122829785 0123421789 0113471789 6150456789",
    ("pairflip", 0.2): "0123456889 0133467789 0124456789 0124456789",
}
RATES = {("symmetric", 0.2): 0.19754, ("symmetric", 0.4): 0.40216, ("pairflip", 0.2): 0.20020}


def ten_classes(count):
    return Source(torch.zeros(count, 1), Labels(torch.arange(count) % 10, tuple("0123456789")))


@pytest.mark.parametrize(("kind", "rate"), GOLDENS)
def test_seed_0_gives_the_noisy_labels_of_the_public_code(kind, rate):
    noisy, _ = corrupt(ten_classes(40), kind, rate=rate, seed=0)
    golden = [int(digit) for digit in GOLDENS[kind, rate].replace(" ", "")]
    assert noisy.labels.numbers.tolist() == golden
    _, corruption = corrupt(ten_classes(50_000), kind, rate=rate, seed=0)
    assert corruption.rate == RATES[kind, rate]


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_the_draws_are_those_of_a_multinomial_per_example(K, seed):
    matrix = np.random.default_rng(seed).dirichlet(np.full(K, 0.5), K) * 0.9 + 0.1 / K
    labels = np.arange(200) % K
    stream = np.random.RandomState(seed)
    theirs = [stream.multinomial(1, matrix[label]).argmax() for label in labels]
    assert draw_labels(labels, matrix, seed).tolist() == theirs


@given(st.integers(2, 12), st.floats(0, 1))
def test_rows_sum_to_one_and_the_diagonal_is_what_is_kept(K, rate):
    for P in (symmetric(K, rate), pairflip(K, rate), data_dependent(K, 0.0, rate / K)):
        np.testing.assert_allclose(P.sum(1), 1)
        assert (P >= 0).all()
    np.testing.assert_allclose(np.diag(symmetric(K, rate)), 1 - rate)
    np.testing.assert_allclose(np.diag(pairflip(K, rate)), 1 - rate)


def test_data_dependent_noise_grows_with_the_class_by_beta():
    P = data_dependent(10, kappa=0.1)
    np.testing.assert_allclose(1 - np.diag(P), 0.1 + 0.05 * np.arange(1, 11))
    np.testing.assert_allclose(1 - np.diag(P).mean(), 0.1 + 0.275)
    np.testing.assert_allclose(P[3, [0, 9]], (0.1 + 0.05 * 4) / 9)
    np.testing.assert_allclose(1 - np.diag(data_dependent(10, 0.1, offset=0)), 0.1 + 0.05 * np.arange(10))


def test_at_kappa_one_half_the_last_class_keeps_no_label():
    noisy, _ = corrupt(ten_classes(5000), "data_dependent", kappa=0.5)
    assert not (noisy.labels[noisy.clean == 9] == 9).any()
    with pytest.raises(InputError, match="lower beta for 100 classes"):
        data_dependent(100, 0.1)


def test_realised_noise_follows_a_given_matrix():
    matrix = [[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.2, 0.2, 0.6]]
    clean = Source(torch.zeros(30_000, 1), Labels(torch.arange(30_000) % 3, ("a", "b", "c")))
    noisy, _ = corrupt(clean, "matrix", matrix=matrix, seed=5)
    counts = torch.zeros(3, 3).index_put_(
        (clean.labels.numbers, noisy.labels.numbers), torch.ones(30_000), accumulate=True
    )
    np.testing.assert_allclose(counts / 10_000, matrix, atol=0.015)


def test_old_labels_become_the_clean_ones_unless_these_are_known():
    clean = ten_classes(1000)
    once, first = corrupt(clean, "symmetric", rate=0.3, seed=0)
    twice, _ = corrupt(once, "symmetric", rate=0.3, seed=1)
    assert torch.equal(once.clean, clean.labels.numbers)
    assert torch.equal(twice.clean, clean.labels.numbers)
    changed = (once.labels.numbers != clean.labels.numbers).nonzero().flatten()
    assert changed.tolist() == first.index.tolist()
    assert clean.clean is None


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("symetric", {"rate": 0.1}, "must be one of 'symmetric'.*did you mean 'symmetric'"),
        ("symmetric", {"rate": 1.5}, "rate=1.5: must be from 0 to 1"),
        ("pairflip", {"rate": -0.1}, "rate=-0.1"),
        ("matrix", {"matrix": [[1.0]]}, "must be 10 × 10"),
        ("matrix", {"matrix": np.full((10, 10), 0.2)}, "row 0"),
        ("matrix", {"matrix": np.full((10, 10), np.nan)}, "row 0"),
        ("symmetric", {"rate": 0.1, "seed": -1}, "seed=-1"),
    ],
)
def test_noise_that_cannot_be_is_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        corrupt(ten_classes(10), kind, **settings)


def test_a_noise_file_says_which_labels_were_changed(tmp_path):
    clean = ten_classes(300)
    noisy, corruption = corrupt(clean, "symmetric", rate=0.4, seed=7)
    corruption.save(tmp_path / "noise.json")
    content = json.loads((tmp_path / "noise.json").read_text())
    changed = (noisy.labels.numbers != clean.labels.numbers).nonzero().flatten().tolist()
    assert (content["index"], content["rate"]) == (changed, corruption.rate)
    assert content["new"] == noisy.labels[content["index"]].tolist()
    assert content["old"] == clean.labels[content["index"]].tolist()


AUGMENT = Augment(pad=2, flip=True)


def same(these, those):
    return len(these) == len(those) and all(
        torch.equal(a, b) for one, two in zip(these, those, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_an_epoch_shows_every_example_once_in_a_new_order(pictures):
    epochs = [torch.cat([index for index, _, _ in batches(pictures, 6, seed=1, epoch=e)]) for e in (0, 1)]
    assert all(sorted(order.tolist()) == list(range(20)) for order in epochs)
    assert not torch.equal(*epochs)


def test_batches_are_a_function_of_seed_and_epoch_and_leave_the_global_generator_alone(pictures):
    before = torch.get_rng_state()
    first = list(batches(pictures, 6, seed=3, epoch=2, augment=AUGMENT))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    assert same(first, list(batches(pictures, 6, seed=3, epoch=2, augment=AUGMENT)))
    assert not same(first, list(batches(pictures, 6, seed=4, epoch=2, augment=AUGMENT)))


@given(st.integers(1, 9), st.integers(0, 22))
def test_starting_at_batch_k_is_the_epoch_without_its_first_k(batch_size, start):
    inputs = torch.arange(20.0)[:, None, None, None].expand(-1, 1, 4, 4)
    examples = Source(inputs, Labels(torch.zeros(20).long(), ("a",)))
    options = {"seed": 0, "epoch": 5, "augment": AUGMENT}
    whole = list(batches(examples, batch_size, **options))
    assert len(whole) == -(-20 // batch_size)
    assert same(whole[start:], list(batches(examples, batch_size, start=start, **options)))


def test_a_late_start_reads_nothing_of_what_it_leaves_out():
    class Counting:
        read = 0

        def __len__(self):
            return 100

        def __getitem__(self, index):
            self.read += len(index)
            return torch.zeros(len(index), 1)

    source = Counting()
    list(batches(Source(source, Labels(torch.zeros(100).long(), ("a",))), 10, seed=0, start=9))
    assert source.read == 10


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"start": -1}, {"epoch": -1}, {"seed": -1}, {"augment": AUGMENT, "seed": None}]
)
def test_settings_out_of_range_are_refused(pictures, options):
    settings = {"batch_size": 4, "seed": 0} | options
    with pytest.raises(InputError, match=next(iter(options))):
        next(batches(pictures, **settings))


def test_split_is_a_partition_that_depends_on_the_seed_alone(pictures):
    train, valid = split(pictures, 0.25, seed=0)
    assert (len(train), len(valid)) == (15, 5)
    assert sorted(train.ids + valid.ids, key=int) == [str(i) for i in range(20)]
    assert split(pictures, 0.25, seed=0)[1].ids == valid.ids
    assert split(pictures, 0.25, seed=1)[1].ids != valid.ids
    for fraction in (0.0, 1.0, 0.01):
        with pytest.raises(InputError, match="valid_fraction"):
            split(pictures, fraction, seed=0)


def slow(augment, pictures, generator):
    """One picture after the other, as one would say it."""
    draw, result = torch.randint(2**31, (len(pictures), 3), generator=generator), []
    for picture, (row, column, mirror) in zip(pictures, draw.tolist(), strict=True):
        padded = torch.nn.functional.pad(picture, (augment.pad,) * 4)
        size = augment.size or picture.shape[-1]
        if augment.flip and mirror % 2:
            padded = padded.flip(-1)
        places = padded.shape[-1] - size + 1
        row, column = row % places, column % places
        result.append(padded[:, row : row + size, column : column + size])
    return torch.stack(result)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    "augment", [Augment(pad=4), Augment(flip=True), Augment(pad=2, flip=True), Augment(size=5, flip=True)]
)
def test_the_batch_is_augmented_as_picture_by_picture(augment, dtype):
    pictures = torch.randint(0, 256, (50, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(dtype)
    result = augment.apply(pictures, torch.Generator().manual_seed(1))
    assert result.dtype == dtype
    assert torch.equal(result, slow(augment, pictures, torch.Generator().manual_seed(1)))


def test_what_cannot_be_cut_is_refused():
    augment = AUGMENTATIONS["crop224_flip"]
    for shape, message in (((2, 3, 32, 32), "must fit"), ((2, 10), "only pictures")):
        with pytest.raises(InputError, match=message):
            augment.apply(torch.zeros(shape), torch.Generator())
