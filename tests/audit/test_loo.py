"""Leave-one-out from one fit, held against real refits without the example."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bayesmooth.audit.embeddings import response
from bayesmooth.audit.loo import MAX_LEVERAGE, leave_one_out
from bayesmooth.labelnoise import exact_label_noise
from bayesmooth.theory.glm import fit_glm

N, D, K, PRIOR = 60, 2, 3, 1.0
SETTINGS: dict[str, Any] = {"prior_precision": PRIOR, "classes": K, "tol": 1e-4}


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor]:
    """Three overlapping clouds, with two labels that are wrong."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % K
    centres = 1.5 * torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    x = centres[y] + torch.randn(N, D, generator=generator)
    y[:2] = (y[:2] + 1) % K
    return x, y


def test_the_logits_without_an_example_are_those_of_a_refit_without_it(
    problem: tuple[Tensor, Tensor],
) -> None:
    x, y = problem
    fit = fit_glm(x, y, **SETTINGS)
    noise = exact_label_noise(*fit.logits(x))
    mean = noise.logits
    features = torch.cat([x, torch.ones(N, 1)], 1).double()
    curvature, spread = response(features, noise, PRIOR)
    left = leave_one_out(mean, spread, noise.averaged, y, curvature)
    chosen = [0, 1, 10, 20, 30, 40]
    refits = []
    for i in chosen:
        keep = torch.arange(N) != i
        refits.append(fit_glm(x[keep], y[keep], **SETTINGS).logits(x[i : i + 1])[0])
    moved = torch.cat(refits) - mean[chosen]
    error = left.logits[chosen] - torch.cat(refits)
    # logits are known up to a constant an example
    moved, error = (v - v.mean(1, keepdim=True) for v in (moved, error))
    assert float(moved.norm()) > 0.5
    assert float(error.norm()) < 0.2 * float(moved.norm())


def test_matrix_and_diagonal_form_agree_on_one_logit_that_moves() -> None:
    # with one moving logit VA″ is one number, and both forms read V/(1 − Vh)
    p = torch.tensor([[0.3, 0.7]])
    v = torch.tensor([[0.8, 0.0]])
    y = torch.tensor([1])
    diagonal = leave_one_out(torch.zeros(1, 2), v, p, y)
    matrix = leave_one_out(torch.zeros(1, 2), torch.diag_embed(v), p, y)
    torch.testing.assert_close(diagonal.logits, matrix.logits)
    torch.testing.assert_close(torch.diag_embed(diagonal.cov), matrix.cov)


def test_without_variance_nothing_depends_on_one_example() -> None:
    logits = torch.randn(5, K)
    left = leave_one_out(logits, torch.zeros(5, K), logits.softmax(-1), torch.zeros(5).long())
    assert left.logits.equal(logits)


def test_an_impossible_leverage_is_held_below_one() -> None:
    logits = torch.zeros(1, 2)
    for cov in (torch.full((1, 2), 100.0), 100.0 * torch.eye(2)[None]):
        left = leave_one_out(logits, cov, logits.softmax(-1), torch.tensor([0]))
        assert left.logits.isfinite().all()
        assert float(left.cov.max()) <= 100 / (1 - MAX_LEVERAGE) + 1e-3


def test_the_label_speaks_less_for_itself_once_it_is_left_out() -> None:
    logits, y = torch.randn(50, K), torch.arange(50) % K
    left = leave_one_out(logits, torch.full((50, K), 0.5), logits.softmax(-1), y)
    before = logits.softmax(-1).gather(1, y[:, None])
    assert (left.logits.softmax(-1).gather(1, y[:, None]) < before).all()
