"""What the audit believes as targets: given labels, weighted ones, soft ones, or none where it contradicts them.

    BAYESMOOTH_AUDIT_DATA=folder python -m benchmarks targets

One network (a hidden layer of 128 with batch norm, 40 epochs) is trained on the same rows by SGD (at the lr of the
benchmark `regret`) and by IVON, which is not tuned. Noise is made in the digits; the folder, if it is there, has .npz
files with `embeddings`, `clean_labels` and the given `labels` whose errors are people's. Accuracy on clean labels of
other rows, mean ± std over seeds. Nothing in it is chosen by clean labels.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from bayesmooth import IVON, Audit, audit
from bayesmooth.data import corrupt, load
from bayesmooth.data.reading import read_npz
from bayesmooth.models import mlp
from bayesmooth.optim.schedule import scheduler
from bayesmooth.posterior import recompute_batchnorm
from bayesmooth.progress import track

FILES = {"news_annotators": "labels", "cifar10n": "worse"}
SEEDS, ROWS, TESTED, EPOCHS, BATCH = 3, 2_000, 1_500, 40, 50


class Data(NamedTuple):
    """Rows with given labels to train on, and rows with true ones to test on."""

    name: str
    train: Tensor
    given: Tensor
    test: Tensor
    true: Tensor


def data_sets(seed: int) -> Iterator[Data]:
    test = load("digits", "test")
    shown = test.batch(torch.arange(len(test))).flatten(1)
    for kind in ("symmetric", "pairflip"):
        noisy, _ = corrupt(load("digits", "train"), kind, rate=0.3, seed=seed)
        rows = noisy.batch(torch.arange(len(noisy))).flatten(1)
        yield Data(f"digits, 30 % {kind}", rows, noisy.labels, shown, test.labels)
    folder = os.environ.get("BAYESMOOTH_AUDIT_DATA")
    for name, column in FILES.items() if folder else ():
        arrays = read_npz(Path(folder or "") / f"{name}.npz")
        some = np.random.default_rng(seed).permutation(len(arrays["clean_labels"]))
        learned, tested = some[:ROWS], some[ROWS : ROWS + TESTED]
        rows = torch.from_numpy(arrays["embeddings"].astype(np.float32))
        rows = (rows - rows[learned].mean(0)) / rows[learned].std(0).clamp_min(1e-6)
        given, true = (
            torch.from_numpy(arrays[c].astype(np.int64)) for c in (column, "clean_labels")
        )
        yield Data(name, rows[learned], given[learned], rows[tested], true[tested])


def targets(found: Audit, given: Tensor) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Losses of logits and of the positions of a batch."""
    weights = torch.from_numpy(found.weights()).float()
    weights /= weights.mean()
    soft = torch.from_numpy(found.soft_labels()).float()
    kept = torch.ones(len(given))
    kept[torch.as_tensor(found.suggested != found.given)] = 0
    kept /= kept.mean()
    return {
        "given": lambda z, i: cross_entropy(z, given[i]),
        "dropped": lambda z, i: (kept[i] * cross_entropy(z, given[i], reduction="none")).mean(),
        "weighted": lambda z, i: (weights[i] * cross_entropy(z, given[i], reduction="none")).mean(),
        "soft": lambda z, i: cross_entropy(z, soft[i]),
    }


def train(
    data: Data,
    loss: Callable[[Tensor, Tensor], Tensor],
    make: Callable[..., Optimizer],
    seed: int,
) -> float:
    """Accuracy on the test rows."""
    count = len(data.train)
    model = mlp(
        int(data.true.max()) + 1,
        input_shape=data.train.shape[1:],
        hidden=(128,),
        batchnorm=True,
        seed=seed,
    )
    steps = EPOCHS * -(-count // BATCH)
    optimizer = make(model.parameters(), count, steps)
    rates = scheduler(optimizer, "cosine", steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for index in torch.split(torch.randperm(count, generator=order), BATCH):

            def closure(index: Tensor = index) -> Any:
                optimizer.zero_grad()
                value: Any = loss(model(data.train[index]), index)
                value.backward()
                return value

            optimizer.step(closure)
            rates.step()
    recompute_batchnorm(model, [data.train])
    with torch.no_grad():
        return 100 * float((model.eval()(data.test).argmax(1) == data.true).float().mean())


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda weights, count, steps: SGD(weights, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "IVON": lambda weights, count, steps: IVON(
        weights, lr=0.1, ess=count, weight_decay=1e-3, epochs=EPOCHS, steps=steps, seed=0
    ),
}


def main(quick: bool = False) -> None:
    """Train everything with every seed, then print one line per data set and optimizer."""
    torch.set_num_threads(1)
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in track(range(1 if quick else SEEDS), description="seeds"):
        for data in data_sets(seed):
            losses = targets(
                audit(embeddings=data.train, labels=data.given, quiet=True), data.given
            )
            for name, loss in losses.items():
                for optimizer, make in OPTIMIZERS.items():
                    found[data.name, optimizer][name].append(train(data, loss, make, seed))
    names = list(next(iter(found.values())))
    print(f"{'':30}" + "".join(f"{name:>14}" for name in names))
    for (data_name, optimizer), values in found.items():
        cells = [f"{fmean(v):.1f} ± {stdev(v) if len(v) > 1 else 0:.1f}" for v in values.values()]
        print(f"{f'{data_name}, {optimizer}':30}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
