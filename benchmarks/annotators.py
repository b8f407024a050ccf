"""Consensus of several annotators, against CROWDLAB (cleanlab) with the same predictions, majority, and votes alone.

Votes alone are ours without a prediction, and crowd-kit's Dawid–Skene, MMSR and GLAD.

    BAYESMOOTH_AUDIT_DATA=… python -m benchmarks annotators

CIFAR-10N: three people's labels of 10,000 images, and two of the three drawn at random. CIFAR-10H: three votes drawn
from those of some fifty people per image. Sixty made workers of known skill vote three times per image. Two people of
CIFAR-10N vote beside three models that repeat the errors of the worst labels. All rows but the first are means of
`SEEDS` draws.

Below, how ambiguity goes with the disagreement of raters: Spearman's correlation of what they said (the entropy of some
fifty votes, the number of different labels among three) with the entropy of the prediction, with the second best class
over the best, and with the label noise ε.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from cleanlab.multiannotator import get_label_quality_multiannotator
from crowdkit.aggregation import GLAD, MMSR, DawidSkene
from scipy.stats import entropy, spearmanr
from torch import Tensor

from bayesmooth.audit import audit
from bayesmooth.audit.annotators import agree
from bayesmooth.audit.predictors import predict_embedded
from bayesmooth.data import Labels, Source
from bayesmooth.data.arrays import read_npz, read_vote_array
from benchmarks.harness import markdown, real_data, time_cpu

SEEDS = 3
WORKERS = 60
FIRST = 20_000  # of the images of CIFAR-10N whose embeddings are in the file
ALONE = {"Dawid–Skene": DawidSkene(n_iter=100), "MMSR": MMSR(), "GLAD": GLAD()}
Crowd = tuple[str, Tensor, Any, Tensor]


def read_crowds(folder: Path) -> Iterator[Crowd]:
    """A name, embeddings, votes N × A with −1 for none, and true classes."""
    people, pictures = read_npz(folder / "cifar_n_labels.npz"), read_npz(folder / "cifar10n.npz")
    clean = torch.from_numpy(pictures["clean_labels"]).long()
    rows = torch.from_numpy(pictures["embeddings"]).float()
    whole = slice(FIRST, FIRST + len(clean))
    three = np.stack([people[f"c10_random{i}"][whole] for i in (1, 2, 3)], 1).astype(int)
    yield "CIFAR-10N, three people", rows, three, clean
    rated = read_npz(folder / "cifar10h.npz")
    shares = rated["votes"] / rated["votes"].sum(1, keepdims=True)
    known = torch.from_numpy(rated["clean_labels"]).long()
    embedded = torch.from_numpy(rated["embeddings"]).float()
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        two = three.copy()
        two[np.arange(len(two)), generator.integers(0, 3, len(two))] = -1
        yield "CIFAR-10N, two of three", rows, two, clean
        drawn = (shares.cumsum(1)[:, :, None] > generator.random((len(shares), 1, 3))).argmax(1)
        yield "CIFAR-10H, three votes", embedded, drawn, known
        yield f"{WORKERS} made workers", embedded, draw_votes(known.numpy(), generator), known
        alike = np.stack([pictures["worse"].astype(int)] * 3, 1)
        slips = generator.integers(0, 10, alike.shape)
        models = np.where(generator.random(alike.shape) < 0.03, slips, alike)
        yield ("two people, three models alike", rows, np.concatenate([three[:, :2], models], 1), clean)


def draw_votes(clean: Any, generator: np.random.Generator) -> Any:
    """Three votes per example of workers who are right 40 to 98 % of the time."""
    skill = generator.uniform(0.4, 0.98, WORKERS)
    votes = np.full((len(clean), WORKERS), -1)
    for row, label in enumerate(clean):
        who = generator.choice(WORKERS, 3, replace=False)
        right = generator.random(3) < skill[who]
        votes[row, who] = np.where(right, label, generator.integers(0, 10, 3))
    return votes


def compare(rows: Tensor, table: Any, clean: Tensor) -> dict[str, float]:
    """Accuracy of every consensus, and seconds of the two that use the prediction."""
    names = tuple(map(str, range(10)))
    voted = read_vote_array(table, names)
    examples = Source(rows, voted)
    votes = voted.count_votes()
    first = agree(votes, predict_embedded(examples, leave_out=True).probabilities)
    again = Source(rows, Labels(first.labels, names))
    q = predict_embedded(again, leave_out=True).probabilities
    ours, seconds = time_cpu(partial(agree, votes, q))
    frame = pandas.DataFrame(np.where(table < 0, np.nan, table))
    ask_cleanlab = partial(get_label_quality_multiannotator, frame, q.numpy(), verbose=False)
    crowdlab, theirs = time_cpu(ask_cleanlab)
    consensus = crowdlab["label_quality"]["consensus_label"]
    found = {
        "majority": votes.majority(torch.zeros_like(q)),
        "votes alone": agree(votes, torch.full_like(q, 0.1)).labels,
        **ask_crowdkit(table),
        "prediction alone": q.argmax(1),
        "CROWDLAB": torch.from_numpy(consensus.to_numpy(int, copy=True)),
        "bayesmooth": ours.labels,
    }
    made = {name: float((labels == clean).double().mean()) for name, labels in found.items()}
    return made | {"CROWDLAB s": theirs, "bayesmooth s": seconds}


def ask_crowdkit(table: Any) -> dict[str, Tensor]:
    """The consensus of every method of crowd-kit."""
    task, worker = np.nonzero(table >= 0)
    frame = pandas.DataFrame({"task": task, "worker": worker, "label": table[task, worker]})
    return {
        name: torch.from_numpy(method.fit_predict(frame).sort_index().to_numpy(int, copy=True))
        for name, method in ALONE.items()
    }


def correlate_ambiguity(folder: Path, some: slice) -> list[list[str]]:
    """One line per data set whose raters are known."""
    people, pictures = read_npz(folder / "cifar_n_labels.npz"), read_npz(folder / "cifar10n.npz")
    rated = read_npz(folder / "cifar10h.npz")
    whole = slice(FIRST, FIRST + len(pictures["clean_labels"]))
    three = np.sort(np.stack([people[f"c10_random{i}"][whole] for i in (1, 2, 3)], 1), axis=1)
    raters = {
        "CIFAR-10N": (pictures, "random2", (np.diff(three, axis=1) != 0).sum(1)),
        "CIFAR-10H": (rated, "labels", entropy(rated["votes"], axis=1)),
    }
    lines = [["raters", "entropy", "second best / best", "ε"]]
    for name, (arrays, column, apart) in raters.items():
        labels = Labels(torch.from_numpy(arrays[column][some]).long(), tuple("0123456789"))
        source = Source(torch.from_numpy(arrays["embeddings"][some]).float(), labels)
        made = audit(source, leave_out=True, quiet=True)
        best = np.sort(made.soft_labels(), 1)
        measures = (made.ambiguity, best[:, -2] / best[:, -1], made.noise)
        found = [spearmanr(each, apart[some]).statistic for each in measures]
        lines.append([name, *(f"{value:.3f}" for value in found)])
    return lines


def main(quick: bool = False) -> None:
    """One line per crowd."""
    if not (folder := real_data()):
        print("no data: BAYESMOOTH_AUDIT_DATA names the folder of CIFAR-10N and CIFAR-10H")
        return
    some = slice(1000 if quick else None)
    draws = [
        {"votes": name, **compare(rows[some], votes[some], clean[some])}
        for name, rows, votes, clean in read_crowds(folder)
    ]
    means = pandas.DataFrame(draws).groupby("votes", sort=False).mean().map("{:.4f}".format)
    print(markdown([["votes", *means], *means.reset_index().to_numpy().tolist()]))
    print(f"\n{markdown(correlate_ambiguity(folder, some))}")
