"""Predicted labels: the error rate of the given labels, and the probabilities of the right ones.

Wrong labels make predictions flat. Given labels that nobody learned say by how much: a right label k is given as y with
probability T_ky, so that

    p(y | x) = Σ_k p_k T_ky,   p = softmax(z/τ),

and their likelihood weighs temperatures τ and matrices T. The predicted label is p averaged over τ by these weights, so
that it is neither too flat nor too sharp. T is symmetric, with a share η of wrong labels; or the one that the audit has
learned from all labels, where the held-out ones are a hundred times as likely under it: so it is when cats are called
dogs. Labels without errors give η = 0, and plain temperature scaling.

The audit predicts, too: from the rows of numbers, or from the inputs of a network's last layer, each label left out.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesmooth.audit.predictions import learn_transitions, predict_true_classes
from bayesmooth.audit.predictors import (
    ROWS_AT_ONCE,
    SAMPLE,
    Predictors,
    RowPredictions,
    beats_class_shares,
    predict_embedded,
)
from bayesmooth.calling import read_logits, take_inputs, take_labels
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError
from bayesmooth.progress import silence

TEMPERATURES = tuple(2 ** (k / 2) for k in range(-6, 4))  # 1/8 to 2.8
RATES = (0.0, 0.02, *(k / 20 for k in range(1, 15)))  # 0 to 0.7
SHARES = tuple(k / 8 for k in range(9))  # of the audit
DECISIVE = math.log(100)  # Jeffreys's word for such a ratio of likelihoods
SMALLEST = 1e-9
LARGEST = 1 << 30  # numbers in the features of all examples: 4 GiB


class Errors(NamedTuple):
    """The errors of given labels, estimated from these labels."""

    transitions: Tensor
    """T (K, K): rows are right labels, columns given ones."""
    weights: Tensor
    """The posterior probability of each of TEMPERATURES."""
    evidence: float
    """The logarithm of the likelihood of the given labels, averaged over τ, and over η if T is not given."""

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
    >>> round(float(estimate_errors(z, torch.tensor([0, 0, 0, 1] * 25)).transitions[0, 0]), 1)
    0.8
    """
    classes = logits.shape[-1]
    # A label is right more often than any wrong one.
    rates = torch.tensor([η for η in RATES if η < 1 - 1 / classes], dtype=torch.float64, device=logits.device)
    log_likelihoods = []
    for τ in TEMPERATURES:
        right = (logits / τ).softmax(-1)
        if transitions is None:
            own = right.gather(-1, labels[:, None]).double()  # (N, 1)
            likelihood = (1 - rates) * own + rates * (1 - own) / max(classes - 1, 1)
        else:
            likelihood = (right @ transitions).gather(-1, labels[:, None]).double()
        log_likelihoods.append(likelihood.clamp_min(SMALLEST).log().sum(0))
    joint = torch.stack(log_likelihoods)  # temperatures × rates
    posterior = joint.flatten().softmax(0).view_as(joint)
    if transitions is None:
        rate = float(posterior.sum(0) @ rates)
        transitions = logits.new_full((classes, classes), rate / max(classes - 1, 1)).fill_diagonal_(1 - rate)
    evidence = float(joint.logsumexp((0, 1))) - math.log(joint.numel())
    return Errors(transitions, posterior.sum(1).float(), evidence)


class Audited(NamedTuple):
    """The audit's predictions of training and of held-out examples, and the T that it has learned."""

    train: Tensor
    held: Tensor
    transitions: Tensor


def predict_labels(train: Tensor, held: Tensor, given: Tensor, audited: Audited | None) -> tuple[Tensor, Tensor]:
    """The labels of training and of held-out examples, from the predictions of networks (N, K) and of the audit.

    `given` are the held-out labels. Their likelihood chooses T and the audit's share, which then goes half of the way
    to equal shares, as labels that are partly wrong judge calibration more than they judge classes.
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
    evidences = [estimate_errors(each.log(), given, transitions).evidence for each in mixed]
    evidence = torch.tensor(evidences, dtype=torch.float64, device="cpu")
    likeliest = float(evidence.softmax(0) @ torch.tensor(SHARES, dtype=torch.float64, device="cpu"))
    return (likeliest + 0.5) / 2, float(evidence.logsumexp(0)) - math.log(len(SHARES))


# ---- predictions of the audit ----


def audit_labels(model: nn.Module, train: Any, held: Any, learn_held: bool) -> Audited | None:
    """Predictions of training and of held-out examples, each label left out.

    With `learn_held` the other held-out labels are learned too. None where the examples have no features, where these
    tell nothing of the labels, or where they are more than fit in a few GB.
    """
    (rows, labels, classes), (others, unseen, _) = (read_features(model, batches) for batches in (train, held))
    if rows is None or others is None:
        return None
    count, given = len(rows), labels
    if learn_held:
        rows, given = torch.cat([rows, others]), torch.cat([labels, unseen])
    draw = torch.Generator("cpu").manual_seed(0)
    some = torch.randperm(len(rows), generator=draw, device="cpu")[:SAMPLE].sort().values
    try:
        predictors = Predictors.of(rows[some], given[some], classes)
    except InputError:  # all rows are equal, or not finite
        return None

    def predict(rows: Tensor, labels: Tensor) -> RowPredictions:
        pieces = zip(torch.split(rows, ROWS_AT_ONCE), torch.split(labels, ROWS_AT_ONCE), strict=True)
        return RowPredictions(*map(torch.cat, zip(*(predictors.predict(*piece) for piece in pieces), strict=True)))

    learned = predict(rows, given)
    left_out = learned.left_out
    of_held = left_out[count:] if learn_held else predict(others, unseen).seen
    own = of_held.gather(1, unseen[:, None]).squeeze(1)
    if not (beats_class_shares(learned.voted, given) or beats_class_shares(own, unseen)):
        return None
    transitions = learn_transitions(left_out, given)
    parts = left_out[:count], of_held
    of_train, of_held = (predict_true_classes(each, transitions).clamp_min(SMALLEST) for each in parts)
    return Audited(of_train, of_held, transitions)


def find_contradicted(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """True (N,) for the labels that the audit contradicts, each left out."""
    given = Labels(labels, tuple(map(str, range(classes))))
    source = Source(rows, given, ids=tuple(map(str, range(len(labels)))), name="rows")
    with silence():
        suggested: Tensor = predict_embedded(source, leave_out=True).judge()["suggested"]
    return suggested != labels


def read_features(model: nn.Module, batches: Any) -> tuple[Tensor | None, Tensor, int]:
    """Rows (N, D) that stand for the examples, their labels, and the number of classes.

    Rows of numbers stand for themselves. Other examples have the inputs of the last linear layer; None where the model
    has no such layer that makes its logits.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[:] = [(inputs[0], output)]

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    pieces: list[Tensor | None] = []
    labels, classes, size = [], 0, 0
    try:
        for logits, batch in read_logits(model, batches):
            rows: Any = take_inputs(batch)
            classes = logits.shape[1]
            if isinstance(rows, Mapping) and len(rows) == 1:
                (rows,) = rows.values()
            if not isinstance(rows, Tensor) or rows.ndim != 2 or not rows.is_floating_point():
                rows = calls[0][0] if calls and calls[0][1].shape == logits.shape else None
            size += 0 if rows is None else rows.numel()
            pieces.append(rows if size <= LARGEST else None)
            labels.append(take_labels(batch))
    finally:
        for hook in hooks:
            hook.remove()
    features = [rows.float().cpu() for rows in pieces if rows is not None]
    return torch.cat(features) if len(features) == len(pieces) else None, torch.cat(labels).cpu(), classes
