"""Other methods on the same embeddings and the same given labels, each at its best honest configuration.

A method gives a score for every label (higher = more likely wrong) and the labels that it would report by default.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from cleanlab import Datalab
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from dataeval.core import label_errors
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from bayesmooth.audit.neighbours import Keys, unit_rows
from bayesmooth.data import Source, batches

FOLDS = 5
STRENGTHS = {"raw": -4, "unit norm": -1, "standardised": -4}  # log₁₀ of the smallest C tried
SCALERS = {"raw": FunctionTransformer, "unit norm": Normalizer, "standardised": StandardScaler}
BOOSTED = 20  # classes up to which boosting is tried: it fits a tree per class and round
EVEN = 0.01  # of every prediction is spread evenly: a vote of ten neighbours has zeros
NEAR = 1.05  # times the least log loss on the first fold up to which a classifier is tried on all


@dataclass(frozen=True)
class Found:
    """A score per label, the labels that are reported by default, and facts to keep."""

    scores: Tensor
    flagged: Tensor
    facts: dict[str, Any] = field(default_factory=dict)


def choose_classifier(examples: Source) -> tuple[Any, dict[str, Any]]:
    """Out-of-fold probabilities (N, K) of the classifier with the least log loss on the given labels, and the losses.

    All candidates are compared on the first fold, and those within `NEAR` of the best of them on all folds.
    """
    models, labels = candidates(examples), examples.labels.numbers.numpy()
    first = {name: log_loss(out_of_fold(model, examples, folds=1), labels) for name, model in models.items()}
    kept = [name for name, loss in first.items() if loss <= NEAR * min(first.values())]
    predictions = {name: out_of_fold(models[name], examples) for name in kept}
    losses = {name: log_loss(probabilities, labels) for name, probabilities in predictions.items()}
    chosen = min(losses, key=losses.__getitem__)
    return predictions[chosen], {"chosen": chosen, "first_fold": first, "all_folds": losses}


def candidates(examples: Source) -> dict[str, Any]:
    """Every classifier that cleanlab may choose from."""
    models = {
        f"regression, {scale}, C = 1e{exponent}": regression(scale, 10.0**exponent)
        for scale, smallest in STRENGTHS.items()
        for exponent in range(smallest, smallest + 6)
    }
    for count in (10, 50):
        fewer = min(count, len(examples) // 2)
        models[f"{count} neighbours"] = KNeighborsClassifier(fewer, metric="cosine", algorithm="brute")
    perceptron = MLPClassifier(early_stopping=True, random_state=0)
    models["perceptron"] = make_pipeline(StandardScaler(), perceptron)
    models["forest"] = RandomForestClassifier(50, min_samples_leaf=3, random_state=0)
    if examples.num_classes <= BOOSTED:
        models["boosting"] = HistGradientBoostingClassifier(max_iter=30, random_state=0)
    return models


def regression(scale: str, strength: float) -> Any:
    """Logistic regression on raw, unit-norm or standardised rows; `strength` is scikit-learn's C."""
    return make_pipeline(SCALERS[scale](), LogisticRegression(C=strength, max_iter=300))


def confident_learning(examples: Source, probabilities: Any) -> Found:
    """Cleanlab's label issues, and its ranking by self-confidence (with the issues first it is worse)."""
    labels = examples.labels.numbers.numpy()
    quality = get_label_quality_scores(labels, probabilities, method="self_confidence")
    issues = find_label_issues(labels, probabilities, n_jobs=1)
    return Found(torch.from_numpy(-quality), torch.from_numpy(issues))


def datalab(examples: Source) -> Found:
    """Cleanlab's front door, given the embeddings alone."""
    lab = Datalab({"label": examples.labels.numbers.numpy()}, label_name="label", verbosity=0)
    with warnings.catch_warnings():
        # It calls functions that pandas will remove, and gives up on a warning.
        warnings.simplefilter("ignore")
        lab.find_issues(features=rows_of(examples).numpy(), issue_types={"label": {}})
    issues = lab.get_issues("label")
    flagged = torch.from_numpy(issues["is_label_issue"].to_numpy(bool, copy=True))
    return Found(-torch.from_numpy(issues["label_score"].to_numpy(float, copy=True)), flagged)


def area_under_margin(examples: Source, epochs: int = 20, lr: float = 0.1) -> Found:
    """−AUM: z_y − max_{k≠y} z_k averaged over the epochs of a short SGD run (Pleiss et al. 2020)."""
    rows = rows_of(examples)
    spread = rows.std(0)
    features = ((rows - rows.mean(0)) / spread.clamp_min(1e-6))[:, spread > 1e-6]
    features = torch.cat([features, torch.ones(len(features), 1)], 1)
    table, given = Source(features, examples.labels), examples.labels[:, None]
    theta, total = torch.zeros(features.shape[1], examples.num_classes, requires_grad=True), torch.zeros(len(examples))
    optimizer = torch.optim.SGD([theta], lr / features.shape[1] ** 0.5, momentum=0.9)
    for epoch in range(epochs):
        for _, x, y in batches(table, 128, seed=0, epoch=epoch):
            theta.grad = None
            torch.autograd.backward(cross_entropy(x @ theta, y))
            optimizer.step()
        logits = features @ theta.detach()
        total += logits.gather(1, given).squeeze(1) - logits.scatter(1, given, -torch.inf).amax(1)
    return Found(-total / epochs, total < 0)


def neighbour_vote(examples: Source) -> Found:
    """1 − the share of the 20 nearest neighbours that have the label."""
    votes = neighbour_votes(examples, 20)
    own = votes.gather(1, examples.labels[:, None]).squeeze(1)
    return Found(1 - own, votes.argmax(1) != examples.labels.numbers)


def distance_ratio(examples: Source) -> Found:
    """DataEval's label errors: the distance to the nearest with the same label over that to the nearest with others.

    Both are means over 50, fewer if a class is small. Rows have unit norm, in its favour: it ranks worse with raw ones.
    """
    rows, labels = unit_rows(rows_of(examples)).numpy(), examples.labels.numbers.numpy()
    scores = torch.from_numpy(label_errors(rows, labels)["scores"])
    return Found(scores, scores >= 1)  # those it lists as errors


def simifeat(examples: Source) -> Found:
    """SimiFeat-R (Zhu et al., arXiv 2110.06283): votes of 10 neighbours, cut by the transition matrix.

    The score of a label is the cosine between it and its neighbours' votes. Of the labels of class j the worst share
    P(Y ≠ j | Ỹ = j) = 1 − T_jj p_j / P(Ỹ = j) are reported, with T and p by consensus of two neighbours.
    """
    labels, classes = examples.labels.numbers, examples.num_classes
    votes = neighbour_votes(examples, 10)
    score = 1 - votes.gather(1, labels[:, None]).squeeze(1) / votes.norm(dim=1)
    transitions, prior = consensus(examples)
    given = torch.bincount(labels, minlength=classes) / len(labels)
    share = (1 - transitions.diagonal() * prior / given.clamp_min(1e-9)).clamp(0, 1)
    flagged = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(classes):
        of = (labels == label).nonzero().flatten()
        flagged[of[score[of].topk(round(float(share[label]) * len(of))).indices]] = True
    return Found(score + flagged, flagged, {"rate": float(1 - transitions.diagonal() @ prior)})


def consensus(examples: Source, steps: int = 300) -> tuple[Tensor, Tensor]:
    """T and p of the true classes, from the labels that an example and its two nearest share (HOC, arXiv 2102.05291).

    If the three have one true class, P(ỹ₁, ỹ₂, ỹ₃) = Σ_k p_k T_ka T_kb T_kc; T and p are fitted to the frequencies of
    one, two and three labels by Adam, from a diagonal start.
    """
    labels, classes = examples.labels.numbers, examples.num_classes
    index = nearest(examples, 2)
    triple = (labels * classes + labels[index[:, 0]]) * classes + labels[index[:, 1]]
    third = torch.bincount(triple, minlength=classes**3).view(classes, classes, classes).float()
    third /= len(labels)
    second, first = third.sum(2), third.sum((1, 2))
    raw = (5.0 * torch.eye(classes)).requires_grad_()
    prior = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.Adam([raw, prior], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        t, p = raw.softmax(1), prior.softmax(0)
        pairs = (p[:, None] * t).mT @ t
        triples = torch.einsum("ka,kb,kc->abc", p[:, None] * t, t, t)
        parts = ((p @ t, first), (pairs, second), (triples, third))
        loss = torch.stack([(expected - seen).norm() for expected, seen in parts]).sum()
        torch.autograd.backward(loss)
        optimizer.step()
    return raw.softmax(1).detach(), prior.softmax(0).detach()


PEERS: dict[str, Callable[[Source], Found]] = {
    "Datalab": datalab,
    "AUM": area_under_margin,
    "20 neighbours": neighbour_vote,
    "SimiFeat": simifeat,
    "DataEval": distance_ratio,
}


def neighbour_votes(examples: Source, count: int) -> Tensor:
    """The share (N, K) of the nearest neighbours that have each label, none its own."""
    index = nearest(examples, min(count, len(examples) - 1))
    return one_hot(examples.labels[index], examples.num_classes).float().mean(1)


def nearest(examples: Source, count: int) -> Tensor:
    """Positions (N, count) of the nearest others."""
    rows = unit_rows(rows_of(examples))
    return Keys(rows).search(rows, count, own=torch.arange(len(rows)))[0]


def rows_of(examples: Source) -> Tensor:
    """All inputs as rows of numbers."""
    return examples.batch(torch.arange(len(examples))).flatten(1)


def out_of_fold(model: Any, examples: Source, folds: int = FOLDS) -> Any:
    """Probabilities (N, K) of the examples of the first so many folds, NaN elsewhere."""
    labels, rows = examples.labels.numbers.numpy(), rows_of(examples).numpy()
    out = np.full((len(labels), examples.num_classes), np.nan)
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, labels)
    for fit, held in islice(splits, folds):
        model.fit(rows[fit], labels[fit])
        out[held] = EVEN / examples.num_classes
        out[np.ix_(held, model.classes_)] += (1 - EVEN) * model.predict_proba(rows[held])
    return out


def log_loss(probabilities: Any, labels: Any) -> float:
    """Of those that have probabilities."""
    return float(-np.nanmean(np.log(probabilities[np.arange(len(labels)), labels])))
