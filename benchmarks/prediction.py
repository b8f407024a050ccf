"""Which prediction to use, and what the lines of the README's loop are worth.

    python -m benchmarks prediction

The README's snippet itself trains the demo's network on digits of which 30 % have a wrong label; a fifth of them is
held out with its given labels. `without …` leaves lines out of the snippet, `written out` has two lines instead of
`optimizer.schedule`. At the mean, averaged over the posterior, and averaged over a σ whose scale the held-out labels
chose (`Posterior.scaled`). Then the same on clean labels.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bayesmooth import metrics
from bayesmooth.data import Examples, corrupt, load, split
from bayesmooth.models import mlp
from bayesmooth.progress import track

SEEDS, SAMPLES, BATCH = 5, 32, 50
SNIPPET = re.search(r"```python\n(.*?)```", Path("README.md").read_text("utf-8"), re.DOTALL)[1]  # type: ignore[index]
SCHEDULE, STEP = r"schedule = optimizer\.schedule.*\n", r" +schedule\.step\(\)\n"
COSINE = 'schedule = scheduler(optimizer, "cosine", steps)\n'
IMPORTS = """from bayesmooth import recompute_batchnorm
from bayesmooth.optim.schedule import scheduler
"""
VARIANTS = {
    "README": SNIPPET,
    "written out": re.sub(SCHEDULE, COSINE, SNIPPET) + "recompute_batchnorm(model, loader)\n",
    "without batch norm": re.sub(SCHEDULE, COSINE, SNIPPET),
    "without batch norm and schedule": re.sub(STEP, "", re.sub(SCHEDULE, "", SNIPPET)),
}
Figures = dict[str, float]


def train(code: str, data: Examples, seed: int) -> dict[str, Any]:
    """The names that the snippet leaves behind."""
    inputs = data.batch(torch.arange(len(data))).flatten(1)
    train_set = TensorDataset(inputs, data.labels)
    order = torch.Generator().manual_seed(seed)
    names = {
        "torch": torch,
        "model": mlp(10, input_shape=(64,), batchnorm=True, seed=seed),
        "train_set": train_set,
        "loader": DataLoader(train_set, BATCH, shuffle=True, generator=order),
    }
    torch.manual_seed(seed)  # from which IVON draws
    exec(IMPORTS + code, names)
    return names


def measure(seed: int, rate: float) -> Iterator[tuple[str, Figures]]:
    clean = load("digits", "train")
    noisy = corrupt(clean, "symmetric", rate=rate, seed=seed)[0] if rate else clean
    noisy, held = split(noisy, 0.2, seed)
    test = load("digits", "test")
    shown = test.batch(torch.arange(len(test))).flatten(1)
    for name, code in VARIANTS.items() if rate else [("README", SNIPPET)]:
        made = train(code, noisy, seed)
        model, kind = made["model"].eval(), f"{rate:.0%} wrong, {name}"
        with torch.no_grad():
            yield f"{kind}: at the mean", score(model(shown).softmax(-1), test)
        if name != "README":
            continue
        how = {"batchnorm": [made["train_set"].tensors[0]], "seed": seed}
        posterior = made["optimizer"].posterior(model)
        yield f"{kind}: averaged", score(posterior.predict(model, shown, SAMPLES, **how), test)
        given = [(held.batch(torch.arange(len(held))).flatten(1), held.labels)]
        scaled = posterior.scaled(model, given, **how)
        weight = next(iter(posterior.std))
        scale = float(scaled.std[weight].flatten()[0] / posterior.std[weight].flatten()[0])
        figures = score(scaled.predict(model, shown, SAMPLES, **how), test)
        yield f"{kind}: averaged, σ scaled", figures | {"scale": scale}


def score(probabilities: Tensor, test: Examples) -> Figures:
    return {
        "accuracy": 100 * metrics.accuracy(probabilities, test.labels),
        "NLL": metrics.nll(probabilities, test.labels),
        "ECE": 100 * metrics.ece(probabilities, test.labels),
    }


def main(quick: bool = False) -> None:
    """Train all variants with every seed, then print mean ± std."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # one is about the lines that are left out
    found: dict[str, list[Figures]] = defaultdict(list)
    for seed in track(range(2 if quick else SEEDS), description="seeds"):
        for name, figures in chain(measure(seed, 0.3), measure(seed, 0.0)):
            found[name].append(figures)
    print(f"{'':56}{'accuracy':>14}{'NLL':>16}{'ECE':>14}")
    for name, rows in found.items():
        values = {key: [row[key] for row in rows] for key in rows[0]}
        cells = [
            f"{fmean(v):.3f} ± {stdev(v):.3f}"
            if k == "NLL"
            else f"{fmean(v):.1f} ± {stdev(v):.1f} %"
            for k, v in values.items()
            if k != "scale"
        ]
        scales = (
            f"  scales {', '.join(f'{s:g}' for s in values['scale'])}" if "scale" in values else ""
        )
        print(f"{name:56}{cells[0]:>14}{cells[1]:>16}{cells[2]:>14}{scales}")


if __name__ == "__main__":
    main()
