import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from bayesmooth.errors import InputError
from bayesmooth.optim import SAM
from bayesmooth.theory.links import Bernoulli, Categorical
from bayesmooth.theory.noise import (
    effective_labels,
    effective_noise,
    expected_noise,
    gaussian_draw,
    linearised_noise,
    linearised_std,
    sam_noise,
    sampled_noise,
)
from tests.conftest import make_closure

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [-1.0, 0.5, 3.0]])
LABELS = torch.tensor([0, 1])


class Counting(nn.Module):
    """A loss with every kind of state that a forward pass may change."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction
        self.weight = nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.5)
        self.seen = 0
        self.register_buffer("total", torch.zeros(3))

    def forward(self, logits, labels, scale=1.0):
        self.seen += len(logits)
        self.total += torch.softmax(logits.detach(), -1).sum(0)  # in place
        self.mean = self.total / self.seen
        values = scale * F.cross_entropy(logits + 0 * self.drop(self.weight), labels, reduction="none")
        return values if self.reduction == "none" else getattr(values, self.reduction)()


# ---- noise of Gaussian logits ----


@given(st.floats(-1e4, 1e4), st.floats(0, 25))
def test_bernoulli_noise_is_odd_bounded_and_has_the_sign_of_the_logit(mean, var):
    m, v = torch.tensor([mean]).double(), torch.tensor([var]).double()
    noise = expected_noise(m, v, Bernoulli())
    torch.testing.assert_close(expected_noise(-m, v, Bernoulli()), -noise, rtol=0, atol=1e-15)
    assert noise.abs() < 0.5
    assert noise * m.sign() >= -1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tail_of_the_noise_has_its_digits(dtype):
    """Far out σ(m) = e^m, so ε = −(e^{v/2} − 1) e^m on the left, and its mirror image on the right."""
    m, v = torch.tensor([-20.0, 20.0], dtype=dtype), torch.ones(2, dtype=dtype)
    size = torch.expm1(torch.tensor(0.5)) * torch.exp(torch.tensor(-20.0))
    torch.testing.assert_close(
        expected_noise(m, v, Bernoulli()), size * torch.tensor([-1.0, 1.0], dtype=dtype), rtol=1e-4, atol=0
    )


def test_sampled_and_linearised_noise_of_one_seed_share_the_draw_and_agree_for_small_variance():
    mean = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double()
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
    cov = (1e-8 * root @ root.T).expand(50, 4, 4)
    sampled, linear = (noise(mean, cov, Categorical(), 5) for noise in (sampled_noise, linearised_noise))
    torch.testing.assert_close(sampled, linear, rtol=1e-2, atol=1e-9)


def test_draws_have_the_covariance_and_independent_entries_where_it_is_a_diagonal():
    mean = torch.zeros(20_000, 2, dtype=torch.float64)
    for cov in (torch.tensor([0.2, 0.5]), torch.tensor([[0.2, 0.1], [0.1, 0.5]])):
        draws = gaussian_draw(mean, cov.double().expand(len(mean), *cov.shape), 7)
        expected = torch.diag(cov) if cov.ndim == 1 else cov
        torch.testing.assert_close(draws.T @ draws / len(draws), expected.double(), atol=0.02, rtol=0)


def test_linearised_std_of_correlated_logits_is_that_of_its_draws():
    mean, cov = (torch.tensor([0.5, -1.0, 0.0]), torch.tensor([[1.0, 0.5, 0], [0.5, 1, 0], [0, 0, 2]]))
    many = mean.expand(100_000, 3)
    draws = linearised_noise(many, cov.expand(100_000, 3, 3), Categorical(), 0)
    torch.testing.assert_close(draws.std(0), linearised_std(mean, cov, Categorical()), rtol=0.02, atol=0)


# ---- effective labels ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.7])
def test_label_smoothing_mixes_the_label_with_the_uniform_whatever_the_reduction(alpha, reduction):
    loss = nn.CrossEntropyLoss(label_smoothing=alpha, reduction=reduction)
    mixed = (1 - alpha) * F.one_hot(LABELS, 3) + alpha / 3
    torch.testing.assert_close(effective_labels(loss, LOGITS, LABELS), mixed)
    noise = effective_noise(loss, LOGITS, LABELS)
    torch.testing.assert_close(noise, alpha * (1 / 3 - F.one_hot(LABELS, 3)))


def test_cross_entropy_with_the_effective_labels_has_the_gradient_of_the_loss():
    def penalised(logits, labels):
        p = torch.softmax(logits, -1)
        return F.cross_entropy(logits, labels, reduction="none") + (p * p.log()).sum(1) / 2

    z = LOGITS.clone().requires_grad_()
    (theirs,) = torch.autograd.grad(penalised(z, LABELS).sum(), z)
    t = effective_labels(penalised, LOGITS, LABELS)
    ours = torch.softmax(LOGITS, -1) * t.sum(1, keepdim=True) - t  # ∂/∂z of −Σ t log p
    torch.testing.assert_close(ours, theirs)


def test_neither_state_nor_gradients_nor_graph_nor_random_numbers_feel_it():
    loss, logits = Counting(), (LOGITS.clone().requires_grad_() * 1.0)
    logits.retain_grad()
    before, version = copy.deepcopy(loss.state_dict()), logits._version
    random = torch.get_rng_state()
    effective_labels(loss, logits, LABELS, scale=2.0)
    assert all(torch.equal(v, before[k]) for k, v in loss.state_dict().items())
    assert loss.seen == 0
    assert not hasattr(loss, "mean")
    assert loss.reduction == "mean"
    assert loss.weight.grad is None
    assert logits.grad is None
    assert logits._version == version
    assert torch.equal(torch.get_rng_state(), random)
    logits.sum().backward()  # the graph is whole


def test_a_loss_that_hides_its_examples_is_refused():
    with pytest.raises(InputError, match="1 values for 2 examples"):
        effective_labels(F.cross_entropy, LOGITS, LABELS)
    with pytest.raises(InputError, match="must be \\(examples, classes\\)"):
        effective_labels(F.cross_entropy, LOGITS[0], LABELS)


@pytest.mark.parametrize("rho", [0.0, 0.05, 1.0])
def test_sams_gradient_of_a_linear_model_is_the_plain_one_with_its_noisy_labels(rho):
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3).double(), torch.randn(9, 4).double(), torch.arange(9) % 3
    noise = sam_noise(model, x, y, rho)
    optimizer = SAM(model.parameters(), rho=rho, lr=0.0)
    F.cross_entropy(model(x), F.one_hot(y, 3) + noise).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    optimizer.step(make_closure(optimizer, lambda: F.cross_entropy(model(x), y)))
    torch.testing.assert_close([p.grad for p in model.parameters()], plain)


def test_sams_noise_leaves_the_model_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    noise = sam_noise(model, torch.randn(5, 4, generator=torch.Generator()), torch.arange(5) % 3)
    torch.testing.assert_close(noise.sum(1), torch.zeros(5), rtol=0, atol=1e-6)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
