import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.losses import BackwardCorrection, CrossEntropy, ForwardCorrection, estimate_transition
from bayesmooth.losses.base import smoothed_cross_entropy

rates, sizes = st.floats(0, 0.4), st.integers(2, 9)


def symmetric(K, flip):
    """A label flips to one of the other classes with probability `flip`."""
    T = torch.full((K, K), flip / (K - 1), dtype=torch.float64)
    return T.fill_diagonal_(1 - flip)


def batch(K, B=6):
    generator = torch.Generator().manual_seed(K)
    z = torch.randn(B, K, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (B,), generator=generator)


@given(rates, sizes)
def test_backward_correction_of_symmetric_noise_is_smoothing_with_a_negative_rate(flip, K):
    """Lukasik et al. 2020: α′ = −a/(1−a) with a = flip·K/(K−1)."""
    z, y = batch(K)
    a = flip * K / (K - 1)
    if a > 0.95:  # close to K = 2 and a fair coin there is nothing to invert
        return
    smoothed = smoothed_cross_entropy(z.log_softmax(1), y, -a / (1 - a), "uniform")
    corrected = BackwardCorrection(symmetric(K, flip), reduction="none")(z, y)
    torch.testing.assert_close(corrected, smoothed, rtol=1e-4, atol=1e-4)


@given(rates, sizes)
def test_backward_correction_is_unbiased_for_the_clean_loss(flip, K):
    """Σ_j T_yj L(z, j) = CE(z, y)."""
    z, y = batch(K)
    T = symmetric(K, 0.5 * flip)
    loss = BackwardCorrection(T, reduction="none")
    all_labels = torch.stack([loss(z, torch.full_like(y, j)) for j in range(K)], dim=1)
    expected = (T[y] * all_labels).sum(1)
    torch.testing.assert_close(expected, CrossEntropy("none")(z, y), rtol=1e-5, atol=1e-5)


def test_zeros_in_the_transition_leave_extreme_logits_finite():
    z = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    T = [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]
    value = ForwardCorrection(T)(z, torch.tensor([1]))
    value.backward()
    assert value.item() == pytest.approx(2e4)
    torch.testing.assert_close(z.grad, torch.tensor([[1.0, -1.0, 0.0]]))


@given(rates, sizes)
def test_anchor_points_recover_the_transition_of_a_perfect_model(flip, K):
    """A model of the noisy labels gives T_i to an example that is surely of class i."""
    T = symmetric(K, flip)
    doubtful = torch.full((50, K), 1 / K, dtype=torch.float64)
    probs = torch.cat([doubtful @ T, T, doubtful @ T])
    torch.testing.assert_close(estimate_transition(probs, percentile=None), T)


def test_scores_at_or_above_the_percentile_are_left_out_on_a_copy():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4) / 3, size=203)
    rows = []
    for i in range(4):
        column = p[:, i].copy()
        column[column >= np.percentile(column, 97, method="higher")] = 0
        rows.append(p[column.argmax()])
    given = torch.from_numpy(p.copy())
    torch.testing.assert_close(estimate_transition(given), torch.from_numpy(np.stack(rows)))
    assert given.equal(torch.from_numpy(p))


def test_wrong_transitions_are_refused():
    with pytest.raises(InputError, match=r"transition of shape \(2, 3\): must be \(classes, classes\)"):
        ForwardCorrection(torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"row 1 sums to 1.4: rows must be probabilities; .* T.t\(\)"):
        ForwardCorrection([[0.6, 0.4], [0.7, 0.7]])
    with pytest.raises(InputError, match=r"smallest entry -0.2, .* rows must be probabilities"):
        BackwardCorrection([[1.2, -0.2], [0.3, 0.7]])
    with pytest.raises(InputError, match=r"smallest entry nan"):
        BackwardCorrection([[float("nan"), 0.5], [0.3, 0.7]])
    with pytest.raises(InputError, match=r"columns \[1\] are 0: .* mix in the identity"):
        ForwardCorrection([[1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(InputError, match=r"condition number .*: must be below 1e\+06 .* mix in"):
        BackwardCorrection([[0.5, 0.5], [0.5, 0.5]])


def test_wrong_probabilities_are_refused():
    with pytest.raises(InputError, match=r"probs of shape \(3, 2\): must be .* pass logits.softmax"):
        estimate_transition(torch.ones(3, 2))
    with pytest.raises(InputError, match=r"percentile=120: must be in \[0, 100\]"):
        estimate_transition(torch.tensor([[0.5, 0.5]]), percentile=120)
