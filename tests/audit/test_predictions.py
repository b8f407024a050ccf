"""Leave-one-out from one fit, held against real refits without the example; and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bayesmooth.audit.predictions import (
    check_order,
    check_probabilities,
    leave_one_out,
    predict_left_out,
)
from bayesmooth.data.prepare import check_labels
from bayesmooth.errors import InputError
from bayesmooth.theory.glm import fit_glm

N, D, K, PRIOR = 60, 2, 3, 1.0
SETTINGS: dict[str, Any] = {"prior_precision": PRIOR, "classes": K, "tol": 1e-3}
NAMES = ("a", "b", "c")
LABELS = torch.arange(30) % 3
RIGHT = torch.nn.functional.one_hot(LABELS, 3).float()


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor]:
    """Three overlapping clouds, with two labels that are wrong."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % K
    centres = 1.5 * torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    x = centres[y] + torch.randn(N, D, generator=generator)
    y[:2] = (y[:2] + 1) % K
    return x, y


def test_the_logits_without_an_example_are_near_those_of_a_refit_without_it(
    problem: tuple[Tensor, Tensor],
) -> None:
    x, y = problem
    fit = fit_glm(x, y, **SETTINGS)
    mean, var = fit.logits(x)
    left, _ = leave_one_out(mean, var, fit.predict(x), y)
    chosen = [0, 1, 10, 20, 30, 40]
    refits = []
    for i in chosen:
        keep = torch.arange(N) != i
        refits.append(fit_glm(x[keep], y[keep], **SETTINGS).logits(x[i : i + 1])[0])
    moved = torch.cat(refits) - mean[chosen]
    error = left[chosen] - torch.cat(refits)
    # logits are known up to a constant per example
    moved, error = (v - v.mean(1, keepdim=True) for v in (moved, error))
    assert float(moved.norm()) > 0.5
    assert float(error.norm()) < 0.45 * float(moved.norm())


def test_held_out_labels_are_as_likely_as_labels_left_out(problem: tuple[Tensor, Tensor]) -> None:
    x, y = problem
    fit = fit_glm(x, y, **SETTINGS)
    mean, var = fit.logits(x)
    left = predict_left_out(mean, var, fit.predict(x), y)
    held = torch.empty_like(left)
    for fold in range(6):
        out = torch.arange(N) % 6 == fold
        held[out] = fit_glm(x[~out], y[~out], **SETTINGS).predict(x[out])

    def loss(p: Tensor) -> float:
        return float(-p.gather(1, y[:, None]).log().mean())

    assert loss(fit.predict(x)) < loss(left)
    assert loss(left) == pytest.approx(loss(held), abs=0.2)


def test_without_variance_nothing_depends_on_one_example() -> None:
    logits = torch.randn(5, K)
    left, _ = leave_one_out(logits, torch.zeros(5, K), logits.softmax(-1), torch.zeros(5).long())
    assert left.equal(logits)


def test_however_wide_the_posterior_an_example_has_a_leverage_below_one() -> None:
    p = torch.full((1, 2), 0.5)
    mean, var = leave_one_out(torch.zeros(1, 2), torch.full((1, 2), 1e6), p, torch.tensor([0]))
    assert float(var.max()) * 0.25 < 1
    assert mean.abs().max() < 4


def test_the_label_speaks_less_for_itself_once_it_is_left_out() -> None:
    logits, y = torch.randn(50, K), torch.arange(50) % K
    left, _ = leave_one_out(logits, torch.full((50, K), 0.5), logits.softmax(-1), y)
    before = logits.softmax(-1).gather(1, y[:, None])
    assert (left.softmax(-1).gather(1, y[:, None]) < before).all()


def test_a_rounding_error_is_taken_out_of_probabilities_and_no_more() -> None:
    torch.testing.assert_close(check_probabilities(1.005 * RIGHT, 30, 3), RIGHT)
    for broken in (1.02 * RIGHT, RIGHT - 0.001, RIGHT / 0):
        with pytest.raises(InputError, match=r"probabilities\[0\] = .*sum to one"):
            check_probabilities(broken, 30, 3)


def test_columns_in_another_order_are_refused_with_the_order_that_fits() -> None:
    check_order(RIGHT, LABELS, NAMES)
    with pytest.raises(InputError, match=r"agree with 0 of 30 labels .* 30 in the order c, a, b"):
        check_order(RIGHT.roll(1, 1), LABELS, NAMES)
    check_order(RIGHT.mean(0).expand(30, 3), LABELS, NAMES)  # no order fits


def test_one_class_is_no_audit() -> None:
    check_labels(LABELS, NAMES)
    with pytest.raises(InputError, match="all 30 labels are 'b'"):
        check_labels(torch.ones_like(LABELS), NAMES)
