"""The audit from training: one IVON run against cleanlab on five SGD runs of the same network.

    python -m benchmarks audit_training
    BAYESMOOTH_DATA=… python -m benchmarks audit_training

Also in-sample loss and AUM, both from one SGD run. Digits have the recipes that the package ships; the second adds
CIFAR-10N with the settings of the laptop studies. All follow a cosine. Lines go to results/audit_training.jsonl as
those of `benchmarks audit` do.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth.audit import audit
from bayesmooth.audit.predictors import assign_folds
from bayesmooth.data import Examples, batches, load
from bayesmooth.models import MODELS
from bayesmooth.optim import IVON
from benchmarks.audit import MADE, REAL, Case, Job, made, markdown, read, run, table
from benchmarks.competitors import FOLDS, Found, confident_learning

BATCH = 50
CIFAR_ROWS = 5_000
RESULTS = Path("results/audit_training.jsonl")
Fit = tuple[nn.Module, torch.optim.Optimizer, Tensor]
Make = Callable[[nn.Module, int], torch.optim.Optimizer]


@dataclass(frozen=True)
class Settings:
    """How a data set is trained on."""

    epochs: int
    ivon_lr: float
    hess_init: float
    sgd_lr: float

    def ivon(self, model: nn.Module, count: int) -> torch.optim.Optimizer:
        """β₂ forgets the start as in the studies: (1 − β₂) T = 2."""
        beta2 = 1 - 2 * BATCH / (self.epochs * count)
        return IVON(
            model.parameters(),
            lr=self.ivon_lr,
            ess=float(count),
            hess_init=self.hess_init,
            beta2=beta2,
            weight_decay=1e-3,
            seed=0,
        )

    def sgd(self, model: nn.Module, count: int) -> torch.optim.Optimizer:
        """With momentum."""
        return torch.optim.SGD(model.parameters(), lr=self.sgd_lr, momentum=0.9, weight_decay=1e-3)


DIGITS = Settings(epochs=40, ivon_lr=0.2, hess_init=0.5, sgd_lr=0.05)
CIFAR = Settings(epochs=20, ivon_lr=0.05, hess_init=0.9, sgd_lr=0.0125)


def cases(quick: bool) -> Iterator[Case]:
    """Whatever is at hand."""
    digits = load("digits", "train")
    yield made(digits, "symmetric", rate=0.2)
    yield made(digits, "pairflip", rate=0.2)
    if "BAYESMOOTH_DATA" in os.environ and not quick:
        for labels in ("aggre", "random1"):
            human = load("cifar10n", "train", labels=labels).subset(torch.arange(CIFAR_ROWS))
            yield Case(REAL, replace(human, name=f"CIFAR-10N {labels}"))


def train(examples: Examples, make: Make, settings: Settings) -> Fit:
    """The network, its optimizer, and the margin of every example averaged over the epochs."""
    model = MODELS["cnn"](num_classes=10, input_shape=examples.input_shape)
    optimizer = make(model, len(examples))
    rate, margins = optimizer.param_groups[0]["lr"], torch.zeros(len(examples))
    for epoch in range(settings.epochs):
        optimizer.param_groups[0]["lr"] = rate * (1 + cos(pi * epoch / settings.epochs)) / 2
        for index, x, y in batches(examples, BATCH, seed=0, epoch=epoch):

            def closure(index: Tensor = index, x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                logits = model(x)
                seen = logits.detach()
                own = seen.gather(1, y[:, None]).squeeze(1)
                margins[index] += own - seen.scatter(1, y[:, None], -torch.inf).amax(1)
                loss = cross_entropy(logits, y)
                torch.autograd.backward(loss)
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
    return model.eval(), optimizer, margins / settings.epochs


@torch.no_grad()
def predicted(model: nn.Module, examples: Examples) -> Tensor:
    out: Tensor = model(examples.batch(torch.arange(len(examples)))).softmax(-1)
    return out


def jobs_for(examples: Examples, quick: bool) -> dict[str, Job]:
    """Every method, ours first."""
    settings = CIFAR if examples.name.startswith("CIFAR") else DIGITS
    settings = replace(settings, epochs=2) if quick else settings

    def ours() -> Found:
        model, optimizer, _ = train(examples, settings.ivon, settings)
        found = audit(model, optimizer, examples, quiet=True)
        return Found(torch.from_numpy(found.disagreement), torch.from_numpy(found.contradicted))

    def cleanlab() -> Found:
        member = assign_folds(examples.labels, FOLDS, seed=0)
        out = torch.empty(len(examples), examples.num_classes)
        for fold in range(FOLDS):
            model, _, _ = train(examples.subset(member != fold), settings.sgd, settings)
            out[member == fold] = predicted(model, examples.subset(member == fold))
        return confident_learning(examples, out.numpy())

    def loss() -> Found:
        probabilities = predicted(train(examples, settings.sgd, settings)[0], examples)
        own = probabilities.gather(1, examples.labels[:, None]).squeeze(1)
        return Found(1 - own, probabilities.argmax(1) != examples.labels)

    def margins() -> Found:
        margin = train(examples, settings.sgd, settings)[2]
        return Found(-margin, margin < 0)

    return {
        "bayesmooth, one IVON run": ours,
        "cleanlab, 5 SGD runs": cleanlab,
        "in-sample loss, SGD": loss,
        "AUM, SGD": margins,
    }


def main(quick: bool = False) -> None:
    """All of it."""
    torch.set_num_threads(1)
    run(cases(quick), RESULTS, lambda examples: jobs_for(examples, quick))
    for kind in (MADE, REAL):
        if lines := table(read(RESULTS), kind):
            print(f"\n{kind}\n{markdown(lines)}")
