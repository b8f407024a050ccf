"""The audit from training: one IVON run against cleanlab on five SGD runs, same network, on digits.

Also in-sample loss and AUM, both from one SGD run. Recipes are those of the digits that the package ships: 40 epochs,
batch 50, cosine.
"""

from collections.abc import Callable
from math import cos, pi

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth.audit import audit
from bayesmooth.audit.benchmark import known_errors, measure, print_table
from bayesmooth.audit.competitors import FOLDS, confident_learning
from bayesmooth.audit.embeddings import stratified_folds
from bayesmooth.data import Examples, batches, corrupt, load
from bayesmooth.models import MODELS
from bayesmooth.optim import IVON
from benchmarks.audit import NOISE

EPOCHS, BATCH = 40, 50
Fit = tuple[nn.Module, torch.optim.Optimizer, Tensor]


def ivon(model: nn.Module, count: int) -> torch.optim.Optimizer:
    settings = {"hess_init": 0.5, "weight_decay": 1e-3, "beta2": 0.9987, "seed": 0}
    return IVON(model.parameters(), lr=0.2, ess=float(count), **settings)  # type: ignore[arg-type]


def sgd(model: nn.Module, count: int) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def train(
    examples: Examples, make: Callable[[nn.Module, int], torch.optim.Optimizer], epochs: int
) -> Fit:
    """The network, its optimizer, and the margin of every example averaged over the epochs."""
    model = MODELS["cnn"](num_classes=10, input_shape=examples.input_shape)
    optimizer = make(model, len(examples))
    rate, margins = optimizer.param_groups[0]["lr"], torch.zeros(len(examples))
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = rate * (1 + cos(pi * epoch / epochs)) / 2
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
    return model.eval(), optimizer, margins / epochs


@torch.no_grad()
def predicted(model: nn.Module, examples: Examples) -> Tensor:
    out: Tensor = model(examples.batch(torch.arange(len(examples)))).softmax(-1)
    return out


def rows(examples: Examples, epochs: int) -> None:
    wrong = known_errors(examples)

    def ours() -> Tensor:
        model, optimizer, _ = train(examples, ivon, epochs)
        return torch.from_numpy(audit(model, optimizer, examples, quiet=True).disagreement)

    def cleanlab() -> Tensor:
        member = stratified_folds(examples.labels, FOLDS, seed=0)
        out = torch.empty(len(examples), examples.num_classes)
        for fold in range(FOLDS):
            model, _, _ = train(examples.subset(member != fold), sgd, epochs)
            out[member == fold] = predicted(model, examples.subset(member == fold))
        return confident_learning(examples, out.numpy(), "normalized_margin")

    def loss() -> Tensor:
        probabilities = predicted(train(examples, sgd, epochs)[0], examples)
        return 1 - probabilities.gather(1, examples.labels[:, None]).squeeze(1)

    jobs = {
        "bayesmooth, one IVON run": ours,
        "cleanlab, 5 SGD runs": cleanlab,
        "in-sample loss, SGD": loss,
        "AUM, SGD": lambda: -train(examples, sgd, epochs)[2],
    }
    print_table(measure(name, job, wrong) for name, job in jobs.items())


def main(quick: bool = False) -> None:
    """All of it."""
    torch.set_num_threads(1)
    for kind, settings in NOISE.items():
        noisy, _ = corrupt(load("digits", "train"), kind, seed=0, **settings)
        print(f"\ndigits, {kind}, from training")
        rows(noisy, 2 if quick else EPOCHS)
