"""What others do with the same embeddings and labels. Every score: higher = the label is more likely wrong."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesmooth.audit.neighbours import nearest
from bayesmooth.data import Examples, batches
from bayesmooth.optional import require

FOLDS = 5
VOTERS = 20


def cleanlab(examples: Examples, standardise: bool) -> Tensor:
    """Confident learning as people run it: 5-fold logistic regression, ranked by self-confidence."""
    selection = require("sklearn.model_selection", extra="data")
    folds = selection.StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    labels = examples.labels.numpy()
    found = selection.cross_val_predict(
        _regression(standardise), _rows(examples), labels, cv=folds, method="predict_proba"
    )
    out = np.full((len(examples), examples.num_classes), 1e-6)
    out[:, np.unique(labels)] = found
    out /= out.sum(1, keepdims=True)
    return confident_learning(examples, out, "self_confidence")


def in_sample_loss(examples: Examples) -> Tensor:
    """−log p_y of a logistic regression fitted to all labels, wrong ones included."""
    model = _regression(standardise=True).fit(_rows(examples), examples.labels.numpy())
    logits = torch.from_numpy(model.decision_function(_rows(examples))).double()
    if logits.ndim == 1:  # scikit-learn gives one column for two classes
        logits = torch.stack([torch.zeros_like(logits), logits], 1)
    present = torch.from_numpy(model[-1].classes_)
    position = torch.searchsorted(present, examples.labels)
    return cross_entropy(logits, position, reduction="none")


def area_under_margin(examples: Examples, epochs: int = 20, lr: float = 0.1) -> Tensor:
    """−AUM: z_y − max_{k≠y} z_k averaged over the epochs of a short SGD run (Pleiss et al. 2020)."""
    rows = examples.batch(torch.arange(len(examples))).flatten(1)
    spread = rows.std(0)
    features = ((rows - rows.mean(0)) / spread.clamp_min(1e-6))[:, spread > 1e-6]
    features = torch.cat([features, torch.ones(len(features), 1)], 1)
    table = Examples(features, examples.labels, examples.class_names)
    theta = torch.zeros(features.shape[1], examples.num_classes)
    momentum, total = torch.zeros_like(theta), torch.zeros(len(examples))
    for epoch in range(epochs):
        for _, x, y in batches(table, 128, seed=0, epoch=epoch):
            error = torch.softmax(x @ theta, -1)
            error[torch.arange(len(y)), y] -= 1
            momentum = 0.9 * momentum + x.mT @ error / len(y)
            theta = theta - lr / features.shape[1] ** 0.5 * momentum
        total += _logit_margin(features @ theta, examples.labels)
    return -total / epochs


def neighbour_vote(examples: Examples) -> Tensor:
    """1 − the share of the 20 nearest neighbours that have the label."""
    rows = examples.batch(torch.arange(len(examples))).flatten(1)
    index, _ = nearest(rows, VOTERS, quiet=True)
    return 1 - (examples.labels[index] == examples.labels[:, None]).double().mean(1)


COMPETITORS: dict[str, Callable[[Examples], Tensor]] = {
    "cleanlab, raw": partial(cleanlab, standardise=False),
    "cleanlab, standardised": partial(cleanlab, standardise=True),
    "20 neighbours": neighbour_vote,
    "in-sample loss": in_sample_loss,
    "AUM": area_under_margin,
}


def confident_learning(examples: Examples, probabilities: Any, method: str) -> Tensor:
    """Cleanlab's label issues first, the rest after them, both by its label quality."""
    ranking = require("cleanlab.rank", extra="cleanlab")
    filtering = require("cleanlab.filter", extra="cleanlab")
    labels = examples.labels.numpy()
    quality = ranking.get_label_quality_scores(labels, probabilities, method=method)
    issues = filtering.find_label_issues(labels, probabilities, n_jobs=1)
    return torch.from_numpy(issues.astype(np.float64) - quality)


def _logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    own = logits.gather(1, labels[:, None]).squeeze(1)
    return own - logits.scatter(1, labels[:, None], -torch.inf).amax(1)


def _regression(standardise: bool) -> Any:
    pipeline = require("sklearn.pipeline", extra="data")
    scaling = require("sklearn.preprocessing", extra="data")
    linear = require("sklearn.linear_model", extra="data")
    steps = [scaling.StandardScaler()] if standardise else []
    return pipeline.make_pipeline(*steps, linear.LogisticRegression(max_iter=1000))


def _rows(examples: Examples) -> Any:
    return examples.batch(torch.arange(len(examples))).flatten(1).numpy()
