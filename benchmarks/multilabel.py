"""Wrong tags where an example has several: ours beside cleanlab.multilabel_classification, average precision.

    python -m benchmarks multilabel                              digits and made rows
    BAYESMOOTH_AUDIT_DATA=… python -m benchmarks multilabel      also CIFAR-10, and people's errors in CIFAR-10 and 100

Tags are properties of known classes: a digit is even, prime, has a loop; an image of CIFAR-100 has its fine and its
coarse class. They are flipped at random, or dropped; where people labelled the images, the tags are those of the class
they chose. Cleanlab has our left-out probabilities, and its own: those of the classifier with the least log loss on the
given tags of the first fold. Both are measured over pairs of example and tag, and over examples (is any tag wrong?),
cleanlab's by its own average of an example's pairs and by the worst of them, as ours are.
"""

import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from statistics import fmean, stdev
from typing import Any

import numpy as np
from cleanlab.multilabel_classification.rank import get_label_quality_scores, get_label_quality_scores_per_class
from sklearn.base import clone
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from bayesmooth.audit import audit
from bayesmooth.data.arrays import read_npz
from benchmarks.audit import MOST_ROWS
from benchmarks.competitors import EVEN, FOLDS, SCALERS
from benchmarks.harness import markdown, markdown_row, real_data, time_cpu

Array = np.ndarray[Any, Any]
Case = tuple[str, Array, Array, Array | None]
SEEDS = 3
DIGITS = ((0, 2, 4, 6, 8), (5, 6, 7, 8, 9), (2, 3, 5, 7), (0, 6, 8, 9), (0, 3, 6, 9), (1, 4, 7))
# animals, vehicles, in the air, on roads, mammals, pets, with hooves, in the air or on water
IMAGES = ((2, 3, 4, 5, 6, 7), (0, 1, 8, 9), (0, 2), (1, 9), (3, 4, 5, 7), (3, 5), (4, 7), (0, 8))
NOISES = ("5 % flipped", "20 % dropped", "10 % dropped, 2 % added")


def cases(quick: bool) -> Iterator[Case]:
    """A name, rows, true tags, and given ones where people gave them."""
    digits = load_digits()
    yield "digits", digits.data, tabulate(DIGITS)[digits.target], None
    rows, tags = make_multilabel_classification(2000, 40, n_classes=10, n_labels=3, random_state=0)
    yield "made", rows, tags, None
    folder = real_data()
    if quick or not folder:
        return
    few = {name: part[:MOST_ROWS] for name, part in read_npz(folder / "cifar10n.npz").items()}
    rows, tags = few["embeddings"].astype(np.float32), tabulate(IMAGES)
    true = tags[few["clean_labels"]]
    yield "CIFAR-10", rows, true, None
    yield "CIFAR-10N, the worst of three people", rows, true, tags[few["worse"]]
    known, many = (read_npz(folder / f"{name}.npz") for name in ("cifar_n_labels", "cifar100n"))
    coarse = np.zeros((100, 20), int)
    coarse[known["c100_clean"], known["c100_clean_coarse"]] = 1
    both = np.concatenate([np.eye(100, dtype=int), coarse], 1)
    rows = many["embeddings"].astype(np.float32)
    yield "CIFAR-100N, single people", rows, both[many["clean_labels"]], both[many["labels"]]


def tabulate(members: tuple[tuple[int, ...], ...]) -> Array:
    """Classes × tags, 1 where the class has the tag."""
    return np.array([[int(k in some) for some in members] for k in range(10)])


def corrupt(tags: Array, noise: str, seed: int) -> Array:
    """The tags with some of them wrong."""
    draw = np.random.default_rng(seed).random(tags.shape)
    lost, added = {NOISES[0]: (0.05, 0.05), NOISES[1]: (0.2, 0.0), NOISES[2]: (0.1, 0.02)}[noise]
    return np.where(draw < np.where(tags == 1, lost, added), 1 - tags, tags)


def classifiers() -> dict[str, Any]:
    """What cleanlab may choose from: a classifier per tag, or one for all."""
    made: dict[str, Any] = {}
    strengths = {"unit norm": (1.0, 10.0, 100.0), "standardised": (1e-3, 1e-2)}
    for scale, strength in ((scale, each) for scale, some in strengths.items() for each in some):
        one = OneVsRestClassifier(LogisticRegression(C=strength, max_iter=300))
        scalers = [scaler() for scaler in SCALERS[scale]]
        made[f"regression, {scale}, C = {strength:g}"] = make_pipeline(*scalers, one)
    for count in (10, 50):
        voters = KNeighborsClassifier(count, metric="cosine", algorithm="brute")
        made[f"{count} neighbours"] = voters
    return made | {"forest": RandomForestClassifier(50, min_samples_leaf=3, random_state=0)}


def out_of_fold(model: Any, rows: Array, given: Array, folds: int = FOLDS) -> Array:
    """P(tag) (N, T) from fits to the other folds; ½ in folds that are not asked for."""
    found = np.full(given.shape, 0.5)
    splits = KFold(FOLDS, shuffle=True, random_state=0).split(rows)
    for train, held in islice(splits, folds):
        fitted = clone(model).fit(rows[train], given[train])
        p = fitted.predict_proba(rows[held])
        if not isinstance(p, np.ndarray):  # a forest gives the shares of each tag
            p = np.stack([_positive(each) for each in p], 1)
        found[held] = p
    return (1 - EVEN) * found + EVEN / 2


def _positive(shares: Array) -> Array:
    """P(1) of one tag; a fold without it has one column."""
    return shares[:, 1] if shares.shape[1] > 1 else np.zeros(len(shares))


def choose_probabilities(rows: Array, given: Array) -> tuple[str, Array]:
    """The classifier with the least log loss on the given tags of the first fold, and its probabilities."""
    models, losses = classifiers(), {}
    for name, model in models.items():
        p = out_of_fold(model, rows, given, folds=1)
        losses[name] = -np.log(np.where(given == 1, p, 1 - p)).mean()
    best = min(losses, key=lambda name: losses[name])
    return best, out_of_fold(models[best], rows, given)


def rank_with_cleanlab(given: Array, probabilities: Array) -> tuple[Array, Array]:
    """Higher = more likely wrong: pairs by self-confidence, examples by cleanlab's own average of their pairs."""
    labels = [np.flatnonzero(row).tolist() for row in given]
    pairs = -get_label_quality_scores_per_class(labels, probabilities)
    return pairs, -get_label_quality_scores(labels, probabilities)


def compare(rows: Array, true: Array, given: Array) -> dict[str, float]:
    """Average precision of every method over pairs and over examples, and CPU seconds."""
    wrong = given != true
    ours, seconds = time_cpu(partial(audit, rows, given, quiet=True))
    left_out = audit(rows, given, leave_out=True, quiet=True)
    assert ours.tags is not None
    assert left_out.tags is not None
    (name, own), theirs = time_cpu(partial(choose_probabilities, rows, given))
    print(f"  cleanlab chose {name}", flush=True)
    ranked = {
        "bayesmooth": (ours.tags.scores, ours.disagreement),
        "cleanlab on our probabilities": rank_with_cleanlab(given, left_out.tags.probabilities),
        "cleanlab, tuned": rank_with_cleanlab(given, own),
    }
    found = {}
    for method, (pairs, examples) in ranked.items():
        found[f"{method}, pairs"] = average_precision_score(wrong.ravel(), pairs.ravel())
        found[f"{method}, examples"] = average_precision_score(wrong.any(1), examples)
        if method != "bayesmooth":
            found[f"{method}, worst pair"] = average_precision_score(wrong.any(1), pairs.max(1))
    return found | {"bayesmooth s": seconds, "cleanlab s": theirs}


def main(quick: bool = False) -> None:
    """One line per data set and noise."""
    warnings.simplefilter("ignore")  # of the peers, about iterations and tags that a fold lacks
    head: list[str] = []
    for name, rows, true, people in cases(quick):
        for noise in NOISES if people is None else ("as people gave them",):
            seeds = range(1 if people is not None or quick else SEEDS)
            tags = [people if people is not None else corrupt(true, noise, seed) for seed in seeds]
            draws = [compare(rows, true, given) for given in tags]
            if not head:
                head = list(draws[0])
                print(markdown([["data", "tags", *head]]))
            cells = [format_cell(key, [draw[key] for draw in draws]) for key in head]
            print(markdown_row([name, noise, *cells]), flush=True)


def format_cell(key: str, values: list[float]) -> str:
    """The mean of seconds, or mean ± standard deviation."""
    if key.endswith(" s"):
        return f"{fmean(values):.1f}"
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"
