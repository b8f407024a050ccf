"""Who else could testify: what a third witness, or the transitions between classes, add to the two witnesses.

    BAYESMOOTH_DATA=… BAYESMOOTH_EMBEDDINGS=… BAYESMOOTH_TABLES=… python -m benchmarks audit_witnesses

Average precision on the data of `benchmarks audit`. All witnesses are weighed alike: by the likelihood of the given
labels that they have not seen, then half of the way to equal weights.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from bayesmooth.audit.evidence import (
    LIKELY,
    Evidence,
    Projection,
    Witnesses,
    blunted_softmax,
    fit_softmax,
    leave_one_out,
    stratified_folds,
)
from bayesmooth.audit.scores import root_margin
from bayesmooth.audit.transitions import learn_transitions, predict_true_classes
from bayesmooth.data import Examples, corrupt
from bayesmooth.metrics import average_precision
from bayesmooth.theory.moments import likely_softmax_mean
from benchmarks.audit import data_sets, embedded, known_errors

METHODS = ("two witnesses", "+ AUM", "+ standardised", "transitions", "all")
AGAIN = (("symmetric", 0.05), ("symmetric", 0.4), ("pairflip", 0.05), ("pairflip", 0.2))
STEPS = 20  # of a weight from 0 to 1
SHARPNESS = torch.logspace(-2, 1.5, 30)
Witness = tuple[Tensor, Tensor]
"""What is predicted with the labels seen, and without."""


def standardised(rows: Tensor) -> Tensor:
    spread = rows.std(0)
    return ((rows - rows.mean(0)) / spread.clamp_min(1e-6))[:, spread > 1e-6]


def second_regression(rows: Tensor, labels: Tensor, classes: int) -> Witness:
    """The audit's regression on components of standardised columns."""
    columns = standardised(rows)
    features = Projection.of(columns).features(columns)
    mean, var = fit_softmax(features, labels, classes, quiet=True).logits(features)
    seen = likely_softmax_mean(mean, var, LIKELY)
    return seen, blunted_softmax(*leave_one_out(mean, var, seen, labels))


def training_dynamics(rows: Tensor, labels: Tensor, classes: int) -> Witness:
    """Logits averaged over the epochs of a short run of SGD, as AUM does; unseen: over two runs on half of the rows."""
    columns = standardised(rows)
    features = torch.cat([columns, torch.ones(len(rows), 1)], 1)
    everywhere = torch.ones(len(rows), dtype=torch.bool)
    seen = _averaged_logits(features, labels, classes, everywhere, epochs=20)
    half, unseen = stratified_folds(labels, 2, seed=0), torch.empty_like(seen)
    for fold in (0, 1):
        logits = _averaged_logits(features, labels, classes, half != fold, epochs=10)
        unseen[half == fold] = logits[half == fold]
    return _calibrated(seen, labels), _calibrated(unseen, labels)


def _averaged_logits(
    features: Tensor, labels: Tensor, classes: int, learned: Tensor, epochs: int
) -> Tensor:
    theta = torch.zeros(features.shape[1], classes)
    momentum, total = torch.zeros_like(theta), torch.zeros(len(features), classes)
    generator, rows = torch.Generator().manual_seed(0), learned.nonzero().flatten()
    for _ in range(epochs):
        for part in rows[torch.randperm(len(rows), generator=generator)].split(128):  # type: ignore[no-untyped-call]
            error = torch.softmax(features[part] @ theta, -1)
            error[torch.arange(len(part)), labels[part]] -= 1
            momentum = 0.9 * momentum + features[part].mT @ error / len(part)
            theta = theta - 0.1 / features.shape[1] ** 0.5 * momentum
        total += features @ theta
    return total / epochs


def _calibrated(logits: Tensor, labels: Tensor) -> Tensor:
    """Probabilities by the sharpness under which the labels are likeliest."""
    sharp = [torch.log_softmax(s * logits, -1) for s in SHARPNESS]
    return max(sharp, key=lambda p: float(p.gather(1, labels[:, None]).mean())).exp()


def combine(witnesses: Sequence[Witness], labels: Tensor) -> Witness:
    """All of them together, weighed by the labels that they have not seen."""
    own = torch.cat([unseen.gather(1, labels[:, None]) for _, unseen in witnesses], 1)
    grid = [w for w in product(range(STEPS + 1), repeat=len(witnesses)) if sum(w) == STEPS]
    weights = torch.tensor(grid) / STEPS
    best = weights[(own @ weights.mT).clamp_min(1e-30).log().mean(0).argmax()]
    best = (best + 1 / len(witnesses)) / 2
    seen, unseen = (
        sum(w * p for w, p in zip(best, ps, strict=True)) for ps in zip(*witnesses, strict=True)
    )
    assert isinstance(seen, Tensor)
    assert isinstance(unseen, Tensor)
    return seen, unseen


def find_errors(witnesses: Sequence[Witness], examples: Examples, turned: bool) -> float:
    """Average precision of what the witnesses say together, taken back to true classes if `turned`."""
    labels = examples.labels
    seen, unseen = combine(witnesses, labels)
    if turned:
        seen = predict_true_classes(seen, learn_transitions(unseen, labels))
    return average_precision(root_margin(Evidence(labels, seen, None, "")), known_errors(examples))


def two_witnesses(rows: Tensor, examples: Examples) -> list[Witness]:
    """Those of the audit."""
    both = Witnesses.of(rows, examples.labels, examples, quiet=True)
    seen, _, unseen = both._posterior(rows, examples.labels)
    votes = both._votes(both._neighbours(rows, torch.arange(len(rows))), both.temperature)
    return [(seen, unseen), (votes, votes)]


def try_all(examples: Examples) -> list[float]:
    """Average precision of each of `METHODS`."""
    rows = examples.batch(torch.arange(len(examples))).flatten(1)
    two = two_witnesses(rows, examples)
    dynamics = training_dynamics(rows, examples.labels, examples.num_classes)
    second = second_regression(rows, examples.labels, examples.num_classes)
    return [
        find_errors(two, examples, turned=False),
        find_errors([*two, dynamics], examples, turned=False),
        find_errors([*two, second], examples, turned=False),
        find_errors(two, examples, turned=True),
        find_errors([*two, dynamics, second], examples, turned=True),
    ]


def try_transitions(examples: Examples) -> list[float]:
    """Average precision without the transitions and with them."""
    two = two_witnesses(examples.batch(torch.arange(len(examples))).flatten(1), examples)
    return [find_errors(two, examples, turned=turned) for turned in (False, True)]


def drawn_again() -> Iterator[Examples]:
    """The tables that are clean, with other labels wrong than above, and other shares of them."""
    for examples in embedded():
        if examples.clean_labels is None:
            for seed, (kind, rate) in enumerate(AGAIN, 1):
                noisy, _ = corrupt(examples, kind, seed=seed, rate=rate)
                yield replace(noisy, name=f"{examples.name}, {kind}, {rate:.0%}")


def print_table(
    methods: Sequence[str],
    sets: Iterable[Examples],
    measure: Callable[[Examples], list[float]],
) -> None:
    """A line for each data set, and the mean."""
    print(f"\n{'average precision':40}", *(f"{name:>15}" for name in methods))
    found = []
    for examples in sets:
        found.append(measure(examples))
        print(f"{examples.name:40}", *(f"{ap:15.3f}" for ap in found[-1]), flush=True)
    means = torch.tensor(found).mean(0).tolist()
    print(f"{f'mean of {len(found)}':40}", *(f"{mean:15.3f}" for mean in means), flush=True)


def main(quick: bool = False) -> None:
    """All of them on the data of the audit's table; what is kept, on labels that were drawn again."""
    torch.set_num_threads(1)
    print_table(METHODS, data_sets(quick), try_all)
    if not quick and "BAYESMOOTH_TABLES" in os.environ:
        print_table(("two witnesses", "transitions"), drawn_again(), try_transitions)
