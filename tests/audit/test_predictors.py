"""The regression on principal components and the neighbours."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesmooth.audit import audit
from bayesmooth.audit.predictors import Projection, assign_folds
from bayesmooth.data import Source
from bayesmooth.errors import InputError


def test_the_weights_of_the_predictors_are_in_the_summary(
    noisy_clouds: Callable[..., Source],
) -> None:
    summary = audit(noisy_clouds(0.1, count=300), quiet=True).summary
    weights = summary["weight_of_posterior"], summary["weight_of_neighbours"]
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= 0.25
    assert "50 neighbours" in summary["method"]


def test_folds_spread_every_class_evenly() -> None:
    labels = torch.arange(100) % 7
    member = assign_folds(labels, 5, seed=3)
    for k in range(7):
        counts = torch.bincount(member[labels == k], minlength=5)
        assert int(counts.max() - counts.min()) <= 1


def sparse_rows(dims: int, share: float, count: int = 60, seed: int = 0) -> Tensor:
    """Rows of which a share of the columns is constant, as ReLU features are."""
    generator = torch.Generator().manual_seed(seed)
    used = torch.randperm(dims, generator=generator)[: max(round(dims * (1 - share)), 2)]
    rows = torch.zeros(count, dims)
    rows[:, used] = torch.randn(count, len(used), generator=generator)
    return rows


@pytest.mark.parametrize("share", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("dims", [8, 64, 512])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e12])
def test_constant_columns_never_stop_the_decomposition(
    dims: int, share: float, scale: float
) -> None:
    for seed in range(2):
        rows = scale * sparse_rows(dims, share, seed=seed)
        features = Projection.of(rows).features(rows)
        assert features.isfinite().all()
        assert float(features[:, :-1].square().sum(1).mean()) == pytest.approx(1, rel=1e-3)


def test_an_audit_of_features_that_are_mostly_zero_runs() -> None:
    rows = torch.zeros(60, 512)
    rows[:, ::5] = torch.randn(60, 103, generator=torch.Generator().manual_seed(0))
    assert len(audit(embeddings=rows, labels=torch.arange(60) % 2, quiet=True)) == 60


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1.0, 1e12])
def test_as_many_axes_are_kept_at_any_scale(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 19, generator=generator) @ torch.randn(19, 182, generator=generator)
    assert Projection.of(scale * rows).axes.shape == (182, 19)


def test_rounding_far_from_zero_is_no_axis() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 3, generator=generator) @ torch.randn(3, 40, generator=generator)
    assert Projection.of(rows + 1e5).axes.shape[1] == 3


def test_rows_that_are_all_the_same_are_refused_whatever_their_value() -> None:
    for value in (0.0, 0.1, 1e-30, 3e14):
        with pytest.raises(InputError, match="all embeddings are the same"):
            Projection.of(torch.full((90, 3), value))


def test_a_turn_of_the_embeddings_changes_nothing(noisy_clouds: Callable[..., Source]) -> None:
    examples = noisy_clouds(0.1, count=300)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q
    turned = Source(examples.batch(torch.arange(300)) @ turn, examples.labels)
    one, two = audit(examples, quiet=True), audit(turned, quiet=True)
    np.testing.assert_allclose(one.disagreement, two.disagreement, atol=2e-3)


def test_prepared_features_have_unit_mean_square_norm_and_a_column_of_ones(
    noisy_clouds: Callable[..., Source],
) -> None:
    rows = noisy_clouds(0.1, count=300).batch(torch.arange(300))
    features = Projection.of(rows).features(rows)
    assert features[:, -1].eq(1).all()
    assert float(features[:, :-1].square().sum(1).mean()) == pytest.approx(1, rel=1e-4)
