import numpy as np
import pytest
import torch
from torch import Tensor

from bayesmooth.audit.findings import Findings, OtherSplit, find, rare_classes


def clusters(dims: int, count: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten Gaussian clouds, the class of each example the cloud it is from."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(10, dims, generator=generator)
    labels = torch.arange(count) % 10
    return centres[labels] + torch.randn(count, dims, generator=generator), labels


def copies(x: Tensor, rows: list[int], noise: float = 0.02) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return x[rows] + noise * x.std(0) * torch.randn(len(rows), x.shape[1], generator=generator)


def duplicates(found: Findings) -> dict[int, int]:
    """Each example with near duplicates, and the first of them."""
    assert found.duplicate_of is not None
    return {int(i): int(found.duplicate_of[i]) for i in np.flatnonzero(found.duplicate_of >= 0)}


@pytest.mark.parametrize("dims", [2, 3, 5, 10, 50, 384])
def test_clean_data_raises_few_alarms(dims: int) -> None:
    x, labels = clusters(dims)
    found = find(labels, 10, x, against=OtherSplit(*other_half(dims)), quiet=True).counts()
    assert found["near_duplicates"] <= 4  # two pairs in a thousand
    assert found["in_other_split"] <= 4
    assert found["in_rare_classes"] == 0
    if dims > 3:  # on a circle or a sphere, directions have no outside
        assert found["outliers"] <= 30


def other_half(dims: int) -> tuple[Tensor, list[str], list[str]]:
    x, labels = clusters(dims, 2000)
    return x[1000:], [f"test-{i}" for i in range(1000)], [str(k) for k in labels[1000:].tolist()]


@pytest.mark.parametrize("dims", [10, 50, 384])
def test_planted_duplicates_are_found_and_nothing_else(dims: int) -> None:
    x, labels = clusters(dims)
    originals = list(range(0, 1000, 50))
    both = torch.cat([x, copies(x, originals)])
    found = find(torch.cat([labels, labels[originals]]), 10, both, quiet=True)
    expected = {1000 + n: i for n, i in enumerate(originals)} | {i: i for i in originals}
    assert duplicates(found) == expected
    assert found.counts()["near_duplicates_with_different_labels"] == 0


def test_duplicates_with_different_labels_are_told_apart() -> None:
    x, labels = clusters(20)
    found = find(
        torch.cat([labels, (labels[:3] + torch.tensor([0, 1, 0])) % 10]),
        10,
        torch.cat([x, x[:3]]),
        quiet=True,
    )
    assert found.conflicting is not None
    assert np.flatnonzero(found.conflicting).tolist() == [1, 1001]


def test_many_copies_of_one_example_are_one_group() -> None:
    x, labels = clusters(20)
    many = [7] * 40  # more than there are neighbours to look at
    found = find(torch.cat([labels, labels[many]]), 10, torch.cat([x, x[many]]), quiet=True)
    assert duplicates(found) == dict.fromkeys([7, *range(1000, 1040)], 7)


def test_duplicates_are_found_where_most_examples_have_one() -> None:
    x, labels = clusters(20, 500)
    found = find(torch.cat([labels] * 3), 10, torch.cat([x] * 3), quiet=True)
    assert duplicates(found) == {i: i % 500 for i in range(1500)}


def test_a_longer_vector_of_the_same_direction_is_no_copy() -> None:
    x = torch.arange(1.0, 101.0)[:, None].repeat(1, 3)
    found = find(torch.arange(100) % 2, 2, x, quiet=True)
    assert duplicates(found) == {}


def test_planted_outliers_are_found() -> None:
    x, labels = clusters(50)
    strange = 3 * torch.randn(10, 50, generator=torch.Generator().manual_seed(5))
    found = find(torch.cat([labels, labels[:10]]), 10, torch.cat([x, strange]), quiet=True)
    assert found.outlier_score is not None
    assert (found.outlier_score[1000:] > 1).all()
    assert (found.outlier_score[:1000] > 1).mean() < 0.02
    assert found.outlier_score[1000:].min() > np.quantile(found.outlier_score[:1000], 0.99)


def test_leaks_are_found_with_the_id_and_label_they_have_there() -> None:
    x, labels = clusters(50)
    there, ids, names = other_half(50)
    leaked = list(range(100, 110))
    other = OtherSplit(
        torch.cat([there, copies(x, leaked)]),
        [*ids, *(f"copy of {i}" for i in leaked)],
        [*names, *["cat"] * 10],
    )
    found = find(labels, 10, x, against=other, quiet=True)
    assert found.in_other_split is not None
    assert found.label_in_other_split is not None
    assert np.flatnonzero(found.in_other_split != "").tolist() == leaked
    assert found.in_other_split[105] == "copy of 105"
    assert found.label_in_other_split[105] == "cat"
    assert found.counts()["in_other_split"] == 10


def test_classes_with_less_than_a_tenth_of_an_even_share_are_rare() -> None:
    labels = np.repeat(np.arange(4), [300, 300, 22, 23])  # an even share is 161.25 of 645
    assert rare_classes(labels, 4).tolist() == [False] * 4
    labels = np.repeat(np.arange(5), [300, 300, 14, 15, 0])  # of 629, without the empty class 157
    assert rare_classes(labels, 5).tolist() == [False, False, True, True, False]


def test_columns_carry_ids_and_only_what_could_be_computed() -> None:
    x, labels = clusters(20, 100)
    ids = [f"image-{i}" for i in range(101)]
    found = find(torch.cat([labels, labels[:1]]), 10, torch.cat([x, x[:1]]), quiet=True)
    table = found.columns(ids)
    assert table["duplicate_of"][100] == "image-0"
    assert table["duplicate_of"][1] == ""
    assert list(table) == ["duplicate_of", "outlier_score", "rare_class"]
    assert list(find(labels, 10).columns(ids)) == ["rare_class"]
    assert find(labels, 10).counts() == {"in_rare_classes": 0}
