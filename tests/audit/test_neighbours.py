import numpy as np
import pytest
import torch

from bayesmooth.audit import neighbours
from bayesmooth.audit.neighbours import EACH, Keys, find_similar, group_copies, hash_rows, unit_rows


def nearest(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    unit = unit_rows(x)
    return Keys(unit).search(unit, k, own=torch.arange(len(x)))


def rows(count: int = 300, dim: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def test_neighbours_are_those_of_all_pairs_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows()
    pairs = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=2)
    expected = pairs.fill_diagonal_(-2).topk(7)
    for row_block, column_block in ((1024, 1 << 14), (64, 50), (7, 3)):
        monkeypatch.setattr(neighbours, "ROWS", row_block)
        monkeypatch.setattr(neighbours, "COLUMNS", column_block)
        index, similarity = nearest(x, 7)
        assert index.equal(expected.indices)
        torch.testing.assert_close(similarity, expected.values)


def test_no_row_is_its_own_neighbour_even_among_copies() -> None:
    x = rows(5).repeat(40, 1)
    index, similarity = nearest(x, 10)
    assert not (index == torch.arange(200)[:, None]).any()
    torch.testing.assert_close(similarity, torch.ones(200, 10))
    assert (index % 5 == torch.arange(200)[:, None] % 5).all()


def test_against_other_rows_the_copy_of_a_row_is_its_nearest() -> None:
    x = rows()
    index, similarity = Keys(unit_rows(x)).search(unit_rows(3 * x[:20]), 2)
    assert index[:, 0].equal(torch.arange(20))
    torch.testing.assert_close(similarity[:, 0], torch.ones(20))


def test_searching_the_nearest_cells_finds_nearly_all_of_the_true_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    centres = rows(40, 16, seed=1)
    x = centres.repeat_interleave(100, 0) + 0.5 * rows(4000, 16)  # 62 cells
    true, _ = nearest(x, 10)
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 0)
    found, similarity = nearest(x, 10)
    shared = (true[:, :, None] == found[:, None]).any(2).double().mean()
    assert shared > 0.95
    assert not (found == torch.arange(4000)[:, None]).any()
    assert (similarity.diff(dim=1) <= 1e-6).all()


def test_sizes_at_the_edge_of_float32_do_not_overflow_and_zeros_are_near_to_none() -> None:
    x = torch.cat([rows(10) * 1e37, rows(10) * 1e-37, torch.zeros(1, 8)])
    _, similarity = nearest(x, 3)
    assert similarity.isfinite().all()
    assert (similarity[-1] == 0).all()
    torch.testing.assert_close(similarity[:10, 0], torch.ones(10))


def test_equal_rows_are_one_group_and_a_row_without_its_last_bit_is_no_copy() -> None:
    x = torch.ones(4, 5)
    x[1, 4] = 1 + torch.finfo(torch.float32).eps
    x[3, 0] = -0.0
    x = torch.cat([x, x[3:].abs()])  # 0 is −0
    group, first = group_copies(hash_rows(x))
    assert [(group == group[i]).nonzero().flatten().tolist() for i in first.sort().values] == [[0, 2], [1], [3, 4]]
    mixed = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    assert group_copies(hash_rows(x[mixed]))[0].equal(group[mixed])


def test_nearest_with_each_label_are_those_of_a_plain_search() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 5)), rng.integers(0, 4, 60)
    suggested = (labels + 1) % 4
    found = find_similar(torch.from_numpy(x), labels, suggested, np.arange(60))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for i in range(60):
        order = [j for j in np.argsort(-(unit @ unit[i])) if j != i]
        assert found.given[i].tolist() == [j for j in order if labels[j] == labels[i]][:EACH]
        wanted = [j for j in order if labels[j] == suggested[i]][:EACH]
        assert found.suggested[i].tolist() == wanted
