"""A linear softmax model under a Gaussian prior. Left-out given labels choose its strength, and the rows to learn.

Where features are many and examples few, this is hard to beat: a network learns the wrong labels there. It learns from
all rows, or from those alone whose labels the audit does not contradict.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth.fitting.predicted import find_contradicted
from bayesmooth.fitting.trial import standard_error
from bayesmooth.posterior import Posterior

PRECISIONS = tuple(float(10 ** (k / 2)) for k in range(-2, 11))  # of the prior: 0.1 to 100,000
SHARES = tuple(10 ** (-k / 2) for k in range(9))  # of the posterior's variance
FOLDS = 5  # each of them is left out once
STEPS = 100  # of L-BFGS
RATE = 0.3  # of IVON
STABLE, POWER_STEPS = 10.0, 20


class Linear(NamedTuple):
    """The result of `fit_linear`."""

    model: nn.Linear
    posterior: Posterior
    precision: float
    accuracy: float
    """On the held-out labels, each of them left out."""
    nll: float
    held: int
    """The number of these."""
    kept: Tensor
    """True (N,) for the rows that it has learned."""

    def is_level_with(self, accuracy: float) -> bool:
        """Whether a network that has this accuracy on the same labels is better by less than a standard error.

        It is measured at its best of many looks, and does not learn from these labels; the linear model does.
        """
        return self.accuracy >= accuracy - standard_error(accuracy, self.held)


def fit_linear(inputs: Tensor, labels: Tensor, held: Tensor, classes: int) -> Linear:
    """The prior precision that predicts left-out labels best, then the fit to all rows, or to those not contradicted.

    Each fifth of the rows is left out in turn, and the audit sees no more than the others. Contradicted labels are
    dropped if left-out ones, which nobody drops, are predicted better by a standard error. Accuracy and NLL are those
    of the rows `held`. Inputs are standardised rows. The posterior is Laplace's, with a diagonal covariance: of its
    variance the share under which left-out labels are likeliest.

    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]] * 9)
    >>> fit = fit_linear(x, (x[:, 0] > 0).long(), torch.arange(36) < 8, 2)
    >>> fit.accuracy
    1.0
    """
    rows = add_bias(inputs)
    tried = leave_out(inputs, labels, classes)
    best = [max(range(len(PRECISIONS)), key=lambda i: measure(each[i], labels)) for each in tried]
    all_right, some_right = (each[i].argmax(1) == labels for each, i in zip(tried, best, strict=True))
    gained, lost = int((some_right & ~all_right).sum()), int((all_right & ~some_right).sum())
    drop = gained - lost > math.sqrt(gained + lost)
    precision, logits = PRECISIONS[best[drop]], tried[int(drop), best[drop]]
    kept = ~find_contradicted(inputs, labels, classes) if drop else torch.ones_like(labels, dtype=torch.bool)
    accuracy, gain = measure(logits[held], labels[held])
    weights = minimise(rows[kept], labels[kept], precision, rows.new_zeros(rows.shape[1], classes))
    spread = (rows[kept] @ weights).softmax(1)
    curvature = rows[kept].square().T @ (spread * (1 - spread))
    variance = 1 / (curvature + precision)
    shrink = math.pi / 8 * rows.square() @ variance  # E[softmax(f)] is roughly the softmax of mean/√(1 + πv/8)
    share = max(SHARES, key=lambda share: measure(logits / (1 + share * shrink).sqrt(), labels)[1])
    both = (weights, (share * variance).sqrt())
    mean, std = ({"weight": part[:-1].T.contiguous(), "bias": part[-1].clone()} for part in both)
    model = nn.Linear(inputs.shape[1], classes)
    model.load_state_dict(mean)
    return Linear(model, Posterior(mean, std), precision, accuracy, -gain, int(held.sum()), kept)


def leave_out(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Logits (2, P, N, K) of left-out rows, by precision: of models of all labels, and of those not contradicted."""
    rows = add_bias(inputs)
    tried = rows.new_zeros(2, len(PRECISIONS), len(rows), classes)
    fold = torch.arange(len(rows), device=rows.device) % FOLDS
    for part in range(FOLDS):
        out, learned = fold == part, (fold != part).nonzero().flatten()
        right = learned[~find_contradicted(inputs[learned], labels[learned], classes)]
        for logits, index in zip(tried, (learned, right), strict=True):
            weights = rows.new_zeros(rows.shape[1], classes)
            for i in reversed(range(len(PRECISIONS))):  # each starts at the weights of a stronger prior
                weights = minimise(rows[index], labels[index], PRECISIONS[i], weights)
                logits[i, out] = rows[out] @ weights
    return tried


def measure(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy and, for those that are level, log-likelihood."""
    return float((logits.argmax(1) == labels).double().mean()), -float(cross_entropy(logits, labels))


def minimise(rows: Tensor, labels: Tensor, precision: float, start: Tensor) -> Tensor:
    """argmin of Σ −log p(y | x, w) + ½ precision ‖w‖², the bias in the last row and free."""
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        prior = 0.5 * precision * weights[:-1].square().sum() / len(labels)
        loss = cross_entropy(rows @ weights, labels) + prior
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def choose_rate(inputs: Tensor, decay: float) -> float:
    """IVON's rate for such rows: RATE, or less where the run would diverge.

    Averaged momentum is stable while lr λ/4 < 2(1 + β₁)/(1 − β₁) = 38, with λ the largest eigenvalue of RᵀR/N, and
    decay, which has no momentum, while lr δ < 2. A quarter and a half of that leave room for the noise.

    >>> choose_rate(torch.eye(3), 0.0), choose_rate(torch.eye(3), 20.0)
    (0.3, 0.05)
    """
    rows = add_bias(inputs)
    direction, steepest = torch.ones_like(rows[0]), 0.0
    for _ in range(POWER_STEPS):
        direction = rows.T @ (rows @ (direction / direction.norm())) / len(rows)
        steepest = float(direction.norm())
    return min(RATE, round(min(STABLE / (steepest / 4), 1 / max(decay, 1e-9)), 4))


def add_bias(inputs: Tensor) -> Tensor:
    """A column of ones at the end."""
    return torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
