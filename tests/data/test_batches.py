import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import AUGMENTATIONS, Augment, Labels, Source, batches, count_batches, split
from bayesmooth.errors import InputError

AUGMENT = Augment(pad=2, flip=True)


def same(these, those):
    return len(these) == len(those) and all(
        torch.equal(a, b)
        for one, two in zip(these, those, strict=True)
        for a, b in zip(one, two, strict=True)
    )


def test_an_epoch_shows_every_example_once_in_a_new_order(pictures):
    epochs = [
        torch.cat([index for index, _, _ in batches(pictures, 6, seed=1, epoch=e)]) for e in (0, 1)
    ]
    assert all(sorted(order.tolist()) == list(range(20)) for order in epochs)
    assert not torch.equal(*epochs)


def test_without_a_seed_the_order_is_that_of_the_set(pictures):
    index, inputs, labels = next(batches(pictures, 20))
    assert torch.equal(index, torch.arange(20))
    torch.testing.assert_close(inputs, pictures.inputs / 255)
    assert torch.equal(labels, pictures.labels.numbers)


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
    assert len(whole) == count_batches(20, batch_size)
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


@given(st.integers(1, 5), st.integers(1, 9))
def test_the_slices_of_all_ranks_joined_are_the_batch_of_one_process(world_size, batch_size):
    inputs = torch.arange(23.0)[:, None, None, None] + torch.rand(23, 1, 4, 4)
    examples = Source(inputs, Labels(torch.arange(23) % 3, ("a", "b", "c")))
    options = {"seed": 1, "epoch": 0, "augment": AUGMENT}
    ranks = [
        list(batches(examples, batch_size, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]
    joined = [
        tuple(torch.cat(parts) for parts in zip(*slices, strict=True))
        for slices in zip(*ranks, strict=True)
    ]
    assert same(joined, list(batches(examples, batch_size, **options)))


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"rank": 2}, {"start": -1}, {"epoch": -1}, {"seed": -1}]
)
def test_settings_out_of_range_are_refused(pictures, options):
    settings = {"batch_size": 4, "seed": 0, "world_size": 2} | options
    with pytest.raises(InputError, match=next(iter(options))):
        next(batches(pictures, **settings))


def test_augmenting_in_the_order_of_the_set_is_refused(pictures):
    with pytest.raises(InputError, match="augment without a seed"):
        next(batches(pictures, 4, augment=AUGMENT))


def test_split_is_a_partition_that_depends_on_the_seed_alone(pictures):
    train, valid = split(pictures, 0.25, seed=0)
    assert (len(train), len(valid)) == (15, 5)
    assert sorted(train.ids + valid.ids, key=int) == [str(i) for i in range(20)]
    assert split(pictures, 0.25, seed=0)[1].ids == valid.ids
    assert split(pictures, 0.25, seed=1)[1].ids != valid.ids
    for fraction in (0.0, 1.0, 0.01):
        with pytest.raises(InputError, match="valid_fraction"):
            split(pictures, fraction, seed=0)


def slow(augment, pictures, draw):
    """One picture after the other, as one would say it."""
    result = []
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
    "augment",
    [Augment(pad=4), Augment(flip=True), Augment(pad=2, flip=True), Augment(size=5, flip=True)],
)
def test_the_batch_is_augmented_as_picture_by_picture(augment, dtype):
    pictures = torch.randint(0, 256, (50, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    draw = augment.draw(50, torch.Generator().manual_seed(1))
    result = augment.apply(pictures, draw)
    assert result.dtype == dtype
    assert torch.equal(result, slow(augment, pictures, draw))


def test_every_place_and_both_mirror_images_occur():
    augment = Augment(pad=1, flip=True)
    draw = augment.draw(2000, torch.Generator().manual_seed(0))
    picture = torch.arange(1.0, 10.0).view(1, 1, 3, 3).expand(2000, -1, -1, -1)
    assert len(augment.apply(picture, draw).unique(dim=0)) == 9 * 2


def test_what_cannot_be_cut_is_refused():
    augment = AUGMENTATIONS["crop224_flip"]
    for shape, message in (((2, 3, 32, 32), "must fit"), ((2, 10), "only pictures")):
        with pytest.raises(InputError, match=message):
            augment.apply(torch.zeros(shape), augment.draw(2, torch.Generator()))
