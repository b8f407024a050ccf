"""What a model predicts, and how good it is: at the mean of its weights, and averaged over samples of the posterior."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth import metrics
from bayesmooth.calling import recompute_batchnorm, statistics_kept
from bayesmooth.data import Source, batches
from bayesmooth.data.csvtext import guard
from bayesmooth.files import write_atomically
from bayesmooth.posterior import Posterior
from bayesmooth.train.distributed import ALONE, Team
from bayesmooth.train.options import find_builder
from bayesmooth.train.pretrained import is_frozen
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.splits import Splits

MEASURES = ("accuracy", "nll", "brier", "ece", "adaptive_ece")  # of the test set, in `metrics`


@torch.no_grad()
def probabilities(
    model: nn.Module,
    examples: Source,
    batch_size: int = 256,
    *,
    posterior: Posterior | None = None,
    samples: int = 16,
    seed: int = 0,
    batchnorm: Sequence[Tensor] | None = None,
    team: Team = ALONE,
    tick: Callable[[], None] = lambda: None,
) -> Tensor:
    """(N, K) class probabilities, in the order of the examples; each process of the team does a part of each batch.

    With a posterior they are averaged over its samples, else they are those of the weights as they stand. BatchNorm's
    statistics are computed from `batchnorm`, batches of training inputs, for the weights that predict; without it
    they are those that training left. `tick` is called after every batch, or with a posterior after every draw.
    """
    device = next(model.parameters()).device
    model.eval()
    found = torch.zeros(len(examples), examples.num_classes, dtype=torch.float32, device=device)
    own = batches(examples, batch_size, rank=team.rank, world_size=team.size)
    parts = (part for part in own if len(part[0]))
    if posterior is None:
        with statistics_kept(model):
            if batchnorm is not None:
                recompute_batchnorm(model, batchnorm)
            for index, inputs, _ in parts:
                found[index.to(device)] = model(inputs.to(device)).float().softmax(-1)
                tick()
    elif first := next(parts, None):  # a team may be larger than a batch
        places: list[Tensor] = []

        def read() -> Iterator[Tensor]:
            for place, rows, _ in chain([first], parts):
                places.append(place)
                yield rows

        # One call over all batches: each draw computes its BatchNorm statistics once.
        averaged = posterior.predict(
            model, read(), samples, seed=seed, batchnorm=batchnorm, tick=tick
        )
        found[torch.cat(places).to(device)] = averaged.float()
    team.sum_([found])
    return found.cpu()


@dataclass(frozen=True)
class Forecast:
    """The class probabilities (N, K) of new examples: at the mean of the weights, and averaged over the posterior."""

    examples: Source
    at_mean: Tensor
    averaged: Tensor | None

    def columns(self) -> dict[str, list[Any]]:
        """One row per example: the likeliest class and its probability, then those of all classes."""
        names = self.examples.class_names
        columns: dict[str, list[Any]] = {"id": list(self.examples.ids)}
        kinds = {"at_mean": self.at_mean, "averaged": self.averaged}
        known = {how: rows for how, rows in kinds.items() if rows is not None}
        for how, rows in known.items():
            best, place = rows.max(1)
            columns[how] = [names[k] for k in place.tolist()]
            columns[f"{how}_probability"] = best.tolist()
        for how, rows in known.items():
            columns |= {f"{how}_{name}": rows[:, k].tolist() for k, name in enumerate(names)}
        return columns

    def save(self, path: str | Path) -> None:
        """Write them as CSV."""
        columns, text = self.columns(), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(guard, columns))
        for row in zip(*columns.values(), strict=True):
            writer.writerow([guard(v) if isinstance(v, str) else f"{v:.6g}" for v in row])
        write_atomically(Path(path), text.getvalue())


def statistics_batches(
    recipe: Recipe, splits: Splits, model: nn.Module, device: torch.device
) -> list[Tensor] | None:
    """Training inputs from which BatchNorm's statistics are computed for the weights that predict.

    None where those of training are right: without BatchNorm, where it is frozen, and where no weights were sampled.
    """
    settings = recipe.evaluate
    sampled = hasattr(find_builder("optimizer", recipe.optimizer.name), "posterior")
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    if not sampled or not settings.batchnorm or all(map(is_frozen, norms)):
        return None
    some = splits.train.subset(
        torch.arange(min(settings.batchnorm, len(splits.train)), device="cpu")
    )
    return [inputs.to(device) for _, inputs, _ in batches(some, settings.batch_size)]


def evaluate(
    recipe: Recipe,
    splits: Splits,
    model: nn.Module,
    posterior: Posterior | None = None,
    *,
    samples: int = 0,
    ood: bool = False,
    **how: Any,
) -> dict[str, float]:
    """The figures that a recipe asks for: at the weights as they stand, or averaged over the posterior.

    The validation split is scored against its noisy labels. `memorised` is the share of the examples known to be
    mislabelled on which the model repeats the wrong label. `ood_auroc` tells how well the largest probability
    distinguishes another data set from the test set. `samples` replaces the recipe's number, `how` goes to
    `probabilities`.
    """
    name, whose = ("test", "") if posterior is None else ("averaged", "averaged.")
    how |= {"posterior": posterior, "samples": samples or recipe.evaluate.samples}
    how |= {"seed": recipe.train.seed, "batch_size": recipe.evaluate.batch_size}
    record: dict[str, float] = {}

    def predict(examples: Source) -> Tensor:
        return probabilities(model, examples, **how)

    if (test := splits.test) is not None:
        probs = predict(test)
        record = {
            f"{name}.{key}": getattr(metrics, key)(probs, test.labels.numbers) for key in MEASURES
        }
        if ood and splits.ood is not None:
            record[f"{name}.ood_auroc"] = metrics.ood_auroc(probs, predict(splits.ood))
    if (validation := splits.validation) is not None:
        probs = predict(validation)
        record[f"{whose}validation.accuracy"] = metrics.accuracy(probs, validation.labels.numbers)
        record[f"{whose}validation.nll"] = metrics.nll(probs, validation.labels.numbers)
    if splits.wrong is not None and posterior is None:
        record["memorised"] = metrics.accuracy(predict(splits.wrong), splits.wrong.labels.numbers)
    return record
