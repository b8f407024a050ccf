"""One run of `bayesmooth.fit`: trained part by part, measured on held-out labels after each, kept in a file."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesmooth import files
from bayesmooth.calling import call_model, read_logits, recompute_batchnorm, take_inputs, take_labels, take_logits
from bayesmooth.errors import InputError
from bayesmooth.losses.base import check_batch
from bayesmooth.optim.ivon import IVON
from bayesmooth.optim.schedule import cosine

PARTS = 16  # of a run; each ends with a look at the held-out labels
# NLL tells settings apart that a few hundred labels leave level; alone it takes calibration for learning.
NLL_SHARE = 0.1  # of the score
WARMUP = 0.05  # share of the steps over which lr rises
STATISTICS = 16  # batches from which BatchNorm's statistics are computed before a look

Setting = Mapping[str, Any]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """The network, the data and the settings that all trials share."""

    make_model: Callable[[], nn.Module]
    loader: Any
    held: Any
    loss: Loss
    optimizer: Callable[..., Optimizer]
    steps: int
    seed: int
    keep: bool  # every part, for a run that may be stopped
    stop: bool  # at the best look, and not at the last


@dataclass(frozen=True)
class Trial:
    """One setting, the file with its state, and the kind of labels that it learns.

    A student learns predicted ones, and starts from the best weights of another trial.
    """

    setting: dict[str, Any]
    path: Path
    labels: str = "given"
    start: Path | None = None
    everything: bool = False  # the held-out labels, too

    def load(self) -> dict[str, Any]:
        """Its state: parts done, (score, accuracy, NLL) after each, the weights and those of the best part."""
        if not self.path.exists():
            return {"parts": 0, "looks": []}
        with files.name_errors(self.path, "checkpoint", "; delete the folder and fit again"):
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        return state

    @property
    def has_learned(self) -> bool:
        """Whether a look found finite predictions: it has not diverged from the start."""
        return "best" in self.load()


class Average:
    """A running average of weights over about a part of the run, measured beside the last weights.

    Between looks lr is high, and single weights wander; their average does not.
    """

    def __init__(self, weights: Iterable[Tensor], steps: int, state: dict[str, Any] | None = None):
        self.weights, self.steps = list(weights), steps
        self.count = state["count"] if state else 0
        values = state["values"] if state else self.weights
        self.values = [v.detach().clone().to(w) for v, w in zip(values, self.weights, strict=True)]

    @torch.no_grad()
    def add(self) -> None:
        """One more step."""
        self.count += 1
        share = max(PARTS / self.steps, 10 / (self.count + 9))
        torch._foreach_lerp_(self.values, [w.detach() for w in self.weights], min(share, 1.0))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The weights are the average inside."""
        weights = [w.detach() for w in self.weights]
        kept = [w.clone() for w in weights]
        torch._foreach_copy_(weights, self.values)
        try:
            yield
        finally:
            torch._foreach_copy_(weights, kept)

    def state_dict(self) -> dict[str, Any]:
        """To go on later."""
        return {"count": self.count, "values": self.values}


def advance(plan: Plan, parts: int, trial: Trial, tell: Callable[[int], object] = lambda steps: None) -> float:
    """Train until so many parts are done; the best score on the way."""
    state = trial.load()
    if state["parts"] < parts:
        setting = dict(trial.setting)
        make = setting.pop("optimizer", plan.optimizer)
        loss = setting.pop("loss", plan.loss)
        torch.manual_seed(plan.seed)
        model = plan.make_model()
        if trial.start:
            model.load_state_dict(torch.load(trial.start, weights_only=True)["best"]["model"])
        weights = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        optimizer = make(weights, **setting)
        rates = [group["lr"] for group in optimizer.param_groups]
        if state["parts"]:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        average = Average((p for _, p in weights), plan.steps, state.get("average"))
        while state["parts"] < parts:
            train_part(plan, model, loss, optimizer, average, rates, state["parts"], tell)
            state["parts"] += 1
            if not trial.start or state["parts"] == PARTS:
                look_twice(plan, model, optimizer, average, state)
            if plan.keep or state["parts"] == parts:
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state["average"] = average.state_dict()
                files.save_checkpoint(trial.path, state)
    best: float = max(state["looks"][:parts])[0]
    return best


def train_part(
    plan: Plan,
    model: nn.Module,
    loss: Loss,
    optimizer: Optimizer,
    average: Average,
    rates: list[float],
    part: int,
    tell: Callable[[int], object],
) -> None:
    """The steps of one part."""
    first, last = (plan.steps * n // PARTS for n in (part, part + 1))
    torch.manual_seed((plan.seed * PARTS + part) % 2**63)  # dropout
    model.train()
    for done, batch in enumerate(read_batches(plan.loader, plan.seed, first, last), first):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * cosine(done / plan.steps, warmup=WARMUP, start=0.0)
        inputs, labels = take_inputs(batch, model), take_labels(batch)

        def closure(inputs: Any = inputs, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            logits = take_logits(call_model(model, inputs))
            value = loss(logits, labels.to(logits.device))
            torch.autograd.backward(value)
            return value

        optimizer.step(closure)  # type: ignore[arg-type]
        average.add()
        tell(done + 1)


def read_batches(loader: Any, seed: int, first: int, last: int) -> Iterator[Any]:
    """Batches number `first` to `last` of the run: the order of each epoch depends on nothing but its number."""
    while first < last:
        epoch, skip = divmod(first, len(loader))
        with torch.random.fork_rng(devices=[]):  # the random state of dropout stays
            torch.manual_seed(hash((seed, epoch)) % 2**31)
            batches = iter(loader)
        for batch in islice(batches, skip, skip + last - first):
            yield batch
            first += 1


def look_twice(plan: Plan, model: nn.Module, optimizer: Optimizer, average: Average, state: dict[str, Any]) -> None:
    """Measure the last weights and the average, and note the better of the two; the best of all is kept."""
    if not plan.stop:
        state["looks"] = []
    best = max(state["looks"], default=(-math.inf,))
    looks = []
    for inside in (average.inside, nullcontext):
        with inside():
            looks.append(look(plan, model))
            if math.isfinite(looks[-1][2]) and looks[-1] > best:
                try:
                    best, state["best"] = looks[-1], keep_best(model, optimizer)
                except InputError:  # the posterior has diverged
                    looks[-1] = (-math.inf, looks[-1][1], math.inf)
    state["looks"].append(max(looks))


@torch.no_grad()
def look(plan: Plan, model: nn.Module) -> tuple[float, float, float]:
    """Score, accuracy and NLL on the held-out labels, at the mean. The score chooses."""
    with torch.random.fork_rng(devices=[]):
        recompute_batchnorm(model, islice(plan.loader, STATISTICS))
    pairs = [(logits, take_labels(batch).to(logits.device)) for logits, batch in read_logits(model, plan.held)]
    logits, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    model.train()
    check_batch(logits, labels)
    nll = float(nn.functional.cross_entropy(logits, labels))
    accuracy = float((logits.argmax(-1) == labels).double().mean())
    if not math.isfinite(nll):
        return -math.inf, accuracy, math.inf
    return accuracy - NLL_SHARE * nll, accuracy, nll


def standard_error(accuracy: float, count: int) -> float:
    """Of an accuracy on so many labels."""
    return math.sqrt(accuracy * (1 - accuracy) / count)


def keep_best(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The weights by now, and their standard deviations, if the optimizer has them."""
    kept: dict[str, Any] = {"model": {k: v.detach().clone() for k, v in model.state_dict().items()}}
    if isinstance(optimizer, IVON):
        posterior = optimizer.posterior(model)
        kept |= {"mean": dict(posterior.mean), "std": dict(posterior.std)}
    return kept
