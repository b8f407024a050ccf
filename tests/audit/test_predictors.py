"""The regression and the neighbours."""

from collections.abc import Callable

import pytest
import torch

from bayesmooth.audit import audit
from bayesmooth.audit.predictors import assign_folds
from bayesmooth.data import Examples


def test_the_weights_of_the_predictors_are_in_the_summary(
    noisy_clouds: Callable[..., Examples],
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
