"""Labels that networks predict: how wrong the given ones are, and what the right ones would be.

Wrong labels make predictions flat. Given labels that nobody learned say by how much: if a share η of them is wrong,

    p(given | x) = (1 − η) p(given is right | x) + η (1 − p(given is right | x))/(K − 1),   p(· | x) = softmax(z/τ),

and their likelihood weighs pairs of η and temperature τ. The predicted label is p averaged over τ by these weights, so
that it is neither too flat nor too sharp. Labels without errors give η = 0, and plain temperature scaling.
"""

from typing import NamedTuple

import torch
from torch import Tensor

TEMPERATURES = tuple(2 ** (k / 2) for k in range(-6, 4))  # 1/8 to 2.8
RATES = (0.0, 0.02, *(k / 20 for k in range(1, 15)))  # 0 to 0.7


class Errors(NamedTuple):
    """What given labels say about their errors."""

    rate: float
    """η, the share of labels that are wrong."""
    weights: Tensor
    """How likely each of TEMPERATURES is."""

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities of the right labels."""
        pairs = zip(self.weights.tolist(), TEMPERATURES, strict=True)
        return torch.stack([w * (logits / τ).softmax(-1) for w, τ in pairs]).sum(0)

    def correct(self, logits: Tensor, given: Tensor) -> Tensor:
        """The same where labels are given that the network has not learned: p(right | x) p(given | right)."""
        predicted = self.predict(logits)
        likely = torch.full_like(predicted, self.rate / max(predicted.shape[-1] - 1, 1))
        both = predicted * likely.scatter(-1, given[:, None], 1 - self.rate)
        return both / both.sum(-1, keepdim=True)


def estimate_errors(logits: Tensor, labels: Tensor) -> Errors:
    """The posterior of η and τ, from a flat prior, given labels that were not learned.

    >>> z = torch.tensor([[4.0, 0.0, 0.0]]).repeat(100, 1)
    >>> round(estimate_errors(z, torch.tensor([0, 0, 0, 1] * 25)).rate, 1)
    0.2
    """
    classes = logits.shape[-1]
    # A label is right more often than any wrong one.
    rates = torch.tensor([η for η in RATES if η < 1 - 1 / classes], dtype=torch.float64, device=logits.device)
    found = []
    for τ in TEMPERATURES:
        right = (logits / τ).softmax(-1).gather(-1, labels[:, None]).double()  # (N, 1)
        likelihood = (1 - rates) * right + rates * (1 - right) / max(classes - 1, 1)
        found.append(likelihood.clamp_min(1e-9).log().sum(0))
    joint = torch.stack(found)  # temperatures × rates
    posterior = joint.flatten().softmax(0).view_as(joint)
    return Errors(float(posterior.sum(0) @ rates), posterior.sum(1).float())
