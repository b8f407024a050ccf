"""Labels that are predicted: how wrong the given ones are, and what the right ones would be.

Wrong labels make predictions flat. Given labels that nobody learned say by how much: a right label k is given as y with
probability T_ky, so that

    p(y | x) = Σ_k p_k T_ky,   p = softmax(z/τ),

and their likelihood weighs temperatures τ and matrices T. The predicted label is p averaged over τ by these weights, so
that it is neither too flat nor too sharp. T is symmetric, with a share η of wrong labels; or the one that the audit has
learned from all labels, where the held-out ones are a hundred times as likely under it: so it is when cats are called
dogs. Labels without errors give η = 0, and plain temperature scaling.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.predictions import predict_true_classes

TEMPERATURES = tuple(2 ** (k / 2) for k in range(-6, 4))  # 1/8 to 2.8
RATES = (0.0, 0.02, *(k / 20 for k in range(1, 15)))  # 0 to 0.7
SHARES = tuple(k / 8 for k in range(9))  # of the audit
DECISIVE = math.log(100)  # Jeffreys's word for such a ratio of likelihoods
SMALLEST = 1e-9


class Errors(NamedTuple):
    """What given labels say about their errors."""

    transitions: Tensor
    """T (K, K): rows are right labels, columns given ones."""
    weights: Tensor
    """How likely each of TEMPERATURES is."""
    evidence: float
    """The logarithm of the likelihood of the given labels, averaged over what was not known."""

    @property
    def rate(self) -> float:
        """η, the share of labels that are wrong, of classes as large as each other."""
        return 1 - float(self.transitions.diagonal().mean())

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities of the right labels."""
        pairs = zip(self.weights.tolist(), TEMPERATURES, strict=True)
        return torch.stack([w * (logits / τ).softmax(-1) for w, τ in pairs]).sum(0)

    def correct(self, logits: Tensor, given: Tensor) -> Tensor:
        """The same where labels are given that the network has not learned: p(right | x) p(given | right)."""
        both = self.predict(logits) * self.transitions.mT[given]
        return both / both.sum(-1, keepdim=True).clamp_min(SMALLEST)


def estimate_errors(logits: Tensor, labels: Tensor, transitions: Tensor | None = None) -> Errors:
    """The posterior of τ and of η, or of τ where T is known, from a flat prior, by given labels that were not learned.

    >>> z = torch.tensor([[4.0, 0.0, 0.0]]).repeat(100, 1)
    >>> round(estimate_errors(z, torch.tensor([0, 0, 0, 1] * 25)).rate, 1)
    0.2
    """
    classes = logits.shape[-1]
    # A label is right more often than any wrong one.
    rates = torch.tensor([η for η in RATES if η < 1 - 1 / classes], dtype=torch.float64, device=logits.device)
    found = []
    for τ in TEMPERATURES:
        right = (logits / τ).softmax(-1)
        if transitions is None:
            own = right.gather(-1, labels[:, None]).double()  # (N, 1)
            likelihood = (1 - rates) * own + rates * (1 - own) / max(classes - 1, 1)
        else:
            likelihood = (right @ transitions).gather(-1, labels[:, None]).double()
        found.append(likelihood.clamp_min(SMALLEST).log().sum(0))
    joint = torch.stack(found)  # temperatures × rates
    posterior = joint.flatten().softmax(0).view_as(joint)
    if transitions is None:
        rate = float(posterior.sum(0) @ rates)
        transitions = logits.new_full((classes, classes), rate / max(classes - 1, 1)).fill_diagonal_(1 - rate)
    evidence = float(joint.logsumexp((0, 1))) - math.log(joint.numel())
    return Errors(transitions, posterior.sum(1).float(), evidence)


class Audited(NamedTuple):
    """What the audit predicts of training and of held-out examples, and the T that it has learned."""

    train: Tensor
    held: Tensor
    transitions: Tensor


def predict_labels(train: Tensor, held: Tensor, given: Tensor, audited: Audited | None) -> tuple[Tensor, Tensor]:
    """The labels of training and of held-out examples, from what networks (N, K) and the audit say of them.

    `given` are the held-out labels. Their likelihood says how much the audit counts, and which T it is. Half of the way
    from there to equal shares, as labels that are partly wrong judge calibration more than they judge classes.
    """
    transitions = None
    if audited is not None:
        share, evidence = weigh_shares(held, given, audited, None)
        right = [predict_true_classes(each, audited.transitions).clamp_min(SMALLEST) for each in (train, held)]
        other, learned = weigh_shares(right[1], given, audited, audited.transitions)
        if learned - evidence > DECISIVE:
            (train, held), share, transitions = right, other, audited.transitions
        train, held = torch.lerp(train, audited.train, share), torch.lerp(held, audited.held, share)
    errors = estimate_errors(held.log(), given, transitions)
    return errors.predict(train.log()), errors.correct(held.log(), given)


def weigh_shares(held: Tensor, given: Tensor, audited: Audited, transitions: Tensor | None) -> tuple[float, float]:
    """The audit's share in the predictions, and the evidence for T (None: symmetric), averaged over shares."""
    mixed = (torch.lerp(held, audited.held, share) for share in SHARES)
    found = [estimate_errors(each.log(), given, transitions).evidence for each in mixed]
    evidence = torch.tensor(found, dtype=torch.float64, device="cpu")
    likeliest = float(evidence.softmax(0) @ torch.tensor(SHARES, dtype=torch.float64, device="cpu"))
    return (likeliest + 0.5) / 2, float(evidence.logsumexp(0)) - math.log(len(SHARES))
