"""The audit from training: one IVON run against cleanlab on five SGD runs of the same network.

    python -m benchmarks audit_training
    BAYESMOOTH_DATA=… python -m benchmarks audit_training

In-sample loss and AUM, both from one SGD run, stand beside them. Digits have the recipes that the package ships;
BAYESMOOTH_DATA adds CIFAR-10N with the settings of the laptop studies. All follow a cosine. Rows go to
results/audit_training.jsonl as those of `benchmarks audit` do.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import cos, pi

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth.audit import audit
from bayesmooth.audit.predictors import assign_folds
from bayesmooth.data import Source, batches, load
from bayesmooth.models import MODELS
from bayesmooth.optim import IVON
from benchmarks.audit import MADE, REAL, Case, Job, made, run, table
from benchmarks.competitors import FOLDS, Found, confident_learning, margin
from benchmarks.harness import markdown, results_path, take_step

BATCH = 50
CIFAR_ROWS = 5_000
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
    """Those whose data are at hand."""
    digits = load("digits", "train")
    yield made(digits, "symmetric", rate=0.2)
    yield made(digits, "pairflip", rate=0.2)
    if "BAYESMOOTH_DATA" in os.environ and not quick:
        for labels in ("aggre", "random1"):
            human = load("cifar10n", "train", labels=labels).subset(torch.arange(CIFAR_ROWS))
            yield Case(REAL, replace(human, name=f"CIFAR-10N {labels}"))


def train(examples: Source, make: Make, settings: Settings) -> Fit:
    """The network, its optimizer, and the margin of every example averaged over the epochs."""
    model = MODELS["cnn"](num_classes=10, input_shape=examples.input_shape)
    optimizer = make(model, len(examples))
    rate, margins = optimizer.param_groups[0]["lr"], torch.zeros(len(examples))
    for epoch in range(settings.epochs):
        optimizer.param_groups[0]["lr"] = rate * (1 + cos(pi * epoch / settings.epochs)) / 2
        for index, x, y in batches(examples, BATCH, seed=0, epoch=epoch):

            def loss(index: Tensor = index, x: Tensor = x, y: Tensor = y) -> Tensor:
                logits = model(x)
                margins[index] += margin(logits.detach(), y)
                return cross_entropy(logits, y)

            take_step(optimizer, loss)
    return model.eval(), optimizer, margins / settings.epochs


@torch.no_grad()
def predict(model: nn.Module, examples: Source) -> Tensor:
    out: Tensor = model(examples.batch(torch.arange(len(examples)))).softmax(-1)
    return out


def jobs_for(examples: Source, quick: bool) -> dict[str, Job]:
    """Every method, ours first."""
    settings = CIFAR if examples.name.startswith("CIFAR") else DIGITS
    settings = replace(settings, epochs=2) if quick else settings

    def ours() -> Found:
        model, optimizer, _ = train(examples, settings.ivon, settings)
        found = audit(model, optimizer, examples, quiet=True)
        return Found(torch.from_numpy(found.disagreement), torch.from_numpy(found.contradicted))

    def cleanlab() -> Found:
        member = assign_folds(examples.labels.numbers, FOLDS, seed=0)
        out = torch.empty(len(examples), examples.num_classes)
        for fold in range(FOLDS):
            model, _, _ = train(examples.subset(member != fold), settings.sgd, settings)
            out[member == fold] = predict(model, examples.subset(member == fold))
        return confident_learning(examples, out.numpy())

    def loss() -> Found:
        probabilities = predict(train(examples, settings.sgd, settings)[0], examples)
        own = probabilities.gather(1, examples.labels[:, None]).squeeze(1)
        return Found(1 - own, probabilities.argmax(1) != examples.labels.numbers)

    def area() -> Found:
        margins = train(examples, settings.sgd, settings)[2]
        return Found(-margins, margins < 0)

    return {
        "bayesmooth, one IVON run": ours,
        "cleanlab, 5 SGD runs": cleanlab,
        "in-sample loss, SGD": loss,
        "AUM, SGD": area,
    }


def main(quick: bool = False) -> None:
    """All of it."""
    path = results_path("audit_training")
    rows = run(cases(quick), path, lambda examples: jobs_for(examples, quick))
    for kind in (MADE, REAL):
        if lines := table(rows, kind):
            print(f"\n{kind}\n{markdown(lines)}")
