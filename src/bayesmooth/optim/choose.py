"""Noise and step that the data choose: a few settings are tried, and held-out given labels keep the best.

    found = bayesmooth.fit(make_model, loader, epochs=20)
    found.model, found.posterior, print(found)

All settings train for a quarter of the epochs, and the best two of them go on from there to the end: with the six of
GRID that is three times the cost of one run. What chooses are labels that were held back. They may be as wrong as the
others: errors that a network cannot predict lower the accuracy of all settings alike. They choose the point to stop at,
too. Everything is kept in a folder, so that a run that was stopped goes on.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from bayesmooth import files, progress
from bayesmooth.calling import (
    call_model,
    evaluating,
    move_inputs,
    recompute_batchnorm,
    take_inputs,
    take_labels,
    take_logits,
)
from bayesmooth.errors import InputError
from bayesmooth.optim.ivon import IVON
from bayesmooth.optim.schedule import cosine
from bayesmooth.optim.settings import count_examples, warn_if_nothing_is_learned
from bayesmooth.posterior import Posterior

PARTS = 16  # of a run; each ends with a look at the held-out labels
RUNGS = ((4, 2), (PARTS, 1))  # after so many parts, so many settings are kept
NLL_SHARE = 0.1
WARMUP = 0.05  # share of the steps over which lr rises
STATISTICS = 16  # batches from which BatchNorm's statistics are computed before a look
# Picked by hand among nine (lr 0.01 to 0.1, noise 0.3 to 2) on 22 cells of one seed of the development pool, which also
# measured them: 67.4 %, the median of all choices of six 67.4, the best 68.2, the best single setting 66.8. Fine-tuning
# wants a smaller lr and adapters a larger one than any of these.
GRID = tuple(
    {"lr": lr, "noise": noise}
    for lr, noise in ((0.01, 0.3), (0.01, 1.0), (0.03, 1.0), (0.03, 2.0), (0.1, 0.3), (0.1, 2.0))
)

Setting = Mapping[str, Any]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Fit:
    """What `fit` returns: the network at the mean of its weights, their posterior, and what was tried."""

    model: nn.Module
    posterior: Posterior | None
    """None where the optimizer has none."""
    setting: dict[str, Any]
    table: list[dict[str, Any]]
    """One row per setting: its values, how much of the run it got, and the best held-out accuracy on the way."""

    def __str__(self) -> str:
        names = list(self.setting)
        lines = ["  ".join([*(f"{name:>8}" for name in names), "trained", "held-out accuracy"])]
        for row in sorted(self.table, key=lambda row: (-row["trained"], -row["accuracy"])):
            chosen = " ← chosen" if all(row[n] == self.setting[n] for n in names) else ""
            values = [f"{row[name]:8g}" for name in names]
            lines.append(
                "  ".join([*values, f"{row['trained']:7.0%}", f"{row['accuracy']:.1%}{chosen}"])
            )
        return "\n".join(lines)


def fit(
    make_model: Callable[[], nn.Module],
    data: Any,
    epochs: float,
    *,
    batch_size: int = 64,
    validation: Any = None,
    held_back: float = 0.2,
    loss: Loss = nn.functional.cross_entropy,
    optimizer: Callable[..., Optimizer] | None = None,
    grid: Sequence[Setting] = GRID,
    folder: str | Path | None = None,
    jobs: int = 1,
    seed: int = 0,
    quiet: bool = False,
) -> Fit:
    """Train at several settings, the worse ones dropped on the way, and return the best by held-out labels.

    Arguments:
        make_model: makes the network; called once per setting under the same seed.
        data: a DataLoader, a Dataset, or (inputs, labels); `batch_size` is for the latter two.
        epochs: of a full run.
        validation: held-out batches of your own, with given labels; otherwise the share `held_back` of `data`.
        loss: of logits and labels.
        optimizer: called with the trainable weights and a setting; None is IVON with steps and noise relative to the
            weights.
        grid: the settings. One alone is trained without a choice.
        folder: where the runs are kept; a second call with the same arguments goes on there.
        jobs: processes that train at the same time, on the CPU.
        seed: of the weights, the order, the noise and the held-out part.
        quiet: print nothing.

    >>> x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    >>> found = fit(lambda: nn.Linear(4, 2), (x, (x[:, 0] > 0).long()), epochs=4, quiet=True)
    >>> len(found.table), found.table[0]["trained"] in (0.25, 1.0)
    (6, True)
    """
    loader, held = split_data(data, validation, held_back, batch_size, seed)
    steps = max(round(epochs * len(loader)), 1)
    if optimizer is None:
        optimizer = partial(IVON, ess=count_examples(loader), steps=steps, seed=seed)
    plan = Plan(make_model, loader, held, loss, optimizer, steps, seed)
    rungs = RUNGS if len(grid) > 1 else ((PARTS, 1),)
    with ExitStack() as scope:
        scope.enter_context(torch.random.fork_rng())
        if folder is None:
            folder = scope.enter_context(tempfile.TemporaryDirectory())
        trials = [Trial(dict(setting), Path(folder) / f"{i}.pt") for i, setting in enumerate(grid)]
        check_folder(Path(folder), plan, grid)
        if not quiet:
            print(describe_cost(len(grid), rungs, epochs, steps))
        best = run_rungs(plan, trials, rungs, jobs, quiet)
        return finish(plan, trials, best)


class Average:
    """A running average of weights over about a part of the run: what is looked at, and returned.

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
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        """To go on later."""
        return {"count": self.count, "values": self.values}

    @torch.no_grad()
    def _swap(self) -> None:
        kept = [w.detach().clone() for w in self.weights]
        torch._foreach_copy_([w.detach() for w in self.weights], self.values)
        torch._foreach_copy_(self.values, kept)


@dataclass(frozen=True)
class Plan:
    """What all trials share."""

    make_model: Callable[[], nn.Module]
    loader: Any
    held: Any
    loss: Loss
    optimizer: Callable[..., Optimizer]
    steps: int
    seed: int


@dataclass(frozen=True)
class Trial:
    """One setting, and the file that holds how far it is."""

    setting: dict[str, Any]
    path: Path

    def load(self) -> dict[str, Any]:
        """Its state: parts done, score and accuracy after each, the weights and those of the best part."""
        if not self.path.exists():
            return {"parts": 0, "looks": []}
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        return state


def describe_cost(count: int, rungs: Sequence[tuple[int, int]], epochs: float, steps: int) -> str:
    """What will be done, before it is."""
    if count == 1:
        return f"one setting, {steps:,} steps"
    cost, done, alive = 0.0, 0, count
    for parts, keep in rungs:
        cost, done, alive = cost + alive * (parts - done) / PARTS, parts, keep
    first, keep = rungs[0]
    return (
        f"{count} settings for {first / PARTS:.0%} of {epochs:g} epochs, the best {keep} to the end: "
        f"{cost:.1f} × one run, {math.ceil(cost * steps):,} steps"
    )


def run_rungs(
    plan: Plan, trials: list[Trial], rungs: Sequence[tuple[int, int]], jobs: int, quiet: bool
) -> Trial:
    """Successive halving; the trial with the best score."""
    kept = trials
    for parts, keep in rungs:
        title = f"{len(kept)} settings to {parts / PARTS:.0%} of the run"
        if jobs > 1 and len(kept) > 1:
            threads = max(torch.get_num_threads() // jobs, 1)
            fork = get_context("fork")  # closures and data need not be pickled
            with ProcessPoolExecutor(jobs, fork, torch.set_num_threads, (threads,)) as pool:
                found = pool.map(partial(advance, plan, parts), kept)
                scores = list(progress.track(found, description=title, quiet=quiet))
        else:
            each = plan.steps * parts // PARTS
            with progress.bar(each * len(kept), description=title, quiet=quiet) as bar:
                scores = [
                    advance(plan, parts, trial, partial(_show, bar, i * each))
                    for i, trial in enumerate(kept)
                ]
        order = sorted(range(len(kept)), key=scores.__getitem__, reverse=True)
        kept = [kept[i] for i in order[:keep]]
    return kept[0]


def _show(bar: progress.Bar, before: int, steps: int) -> None:
    bar.update(before + steps)


def advance(
    plan: Plan, parts: int, trial: Trial, tell: Callable[[int], object] = lambda steps: None
) -> float:
    """Train until so many parts are done; the best score on the way."""
    state = trial.load()
    if state["parts"] < parts:
        torch.manual_seed(plan.seed)
        model = plan.make_model()
        weights = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        optimizer = plan.optimizer(weights, **trial.setting)
        rates = [group["lr"] for group in optimizer.param_groups]
        if state["parts"]:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        average = Average((p for _, p in weights), plan.steps, state.get("average"))
        while state["parts"] < parts:
            train_part(plan, model, optimizer, average, rates, state["parts"], tell)
            with average.inside():
                accuracy, nll = look(plan, model)
                state["looks"].append((score(accuracy, nll), accuracy))
                if math.isfinite(nll) and state["looks"][-1] == max(state["looks"]):
                    state["best"] = keep_best(model, optimizer)
            state["parts"] += 1
            state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state["average"] = average.state_dict()
            files.replace_with(trial.path, partial(torch.save, state))
    best: float = max(state["looks"][:parts])[0]
    return best


def train_part(
    plan: Plan,
    model: nn.Module,
    optimizer: Optimizer,
    average: Average,
    rates: list[float],
    part: int,
    tell: Callable[[int], object],
) -> None:
    """The steps of one part."""
    first, last = (plan.steps * n // PARTS for n in (part, part + 1))
    torch.manual_seed(plan.seed * PARTS + part)  # dropout
    model.train()
    for done, batch in enumerate(read_batches(plan.loader, plan.seed, first, last), first):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * cosine(done / plan.steps, warmup=WARMUP, start=0.0)
        inputs, labels = move_inputs(take_inputs(batch), model), take_labels(batch)

        def closure(inputs: Any = inputs, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            logits = take_logits(call_model(model, inputs))
            value = plan.loss(logits, labels.to(logits.device))
            torch.autograd.backward(value)
            return value

        optimizer.step(closure)  # type: ignore[arg-type]
        average.add()
        tell(done + 1)


def read_batches(loader: Any, seed: int, first: int, last: int) -> Iterator[Any]:
    """Batches number `first` to `last` of the run: the order of each epoch depends on nothing but its number."""
    while first < last:
        epoch, skip = divmod(first, len(loader))
        with torch.random.fork_rng(devices=[]):  # dropout goes on where it was
            torch.manual_seed(hash((seed, epoch)) % 2**31)
            batches = iter(loader)
        for batch in islice(batches, skip, skip + last - first):
            yield batch
            first += 1


@torch.no_grad()
def look(plan: Plan, model: nn.Module) -> tuple[float, float]:
    """Accuracy and NLL on the held-out labels, at the mean."""
    with torch.random.fork_rng(devices=[]):
        recompute_batchnorm(model, islice(plan.loader, STATISTICS))
    right, value, count = 0, 0.0, 0
    with evaluating(model):
        for batch in plan.held:
            logits = take_logits(call_model(model, move_inputs(take_inputs(batch), model))).float()
            labels = take_labels(batch).to(logits.device)
            right += int((logits.argmax(-1) == labels).sum())
            value += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            count += labels.numel()
    model.train()
    return right / count, value / count if math.isfinite(value) else math.inf


def score(accuracy: float, nll: float) -> float:
    """What chooses: accuracy less a tenth of NLL, of held-out labels.

    NLL tells settings apart that a few hundred labels leave level; alone it takes calibration for learning.
    """
    return accuracy - NLL_SHARE * nll


def keep_best(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The weights by now, and their standard deviations, if the optimizer has them."""
    kept: dict[str, Any] = {"model": {k: v.detach().clone() for k, v in model.state_dict().items()}}
    if isinstance(optimizer, IVON):
        posterior = optimizer.posterior(model)
        kept |= {"mean": dict(posterior.mean), "std": dict(posterior.std)}
    return kept


def finish(plan: Plan, trials: list[Trial], best: Trial) -> Fit:
    """The winner at its best part, and the table."""
    table = []
    for trial in trials:
        state = trial.load()
        table.append(
            {
                **trial.setting,
                "trained": state["parts"] / PARTS,
                "accuracy": max(state["looks"])[1],
            }
        )
    if (kept := best.load().get("best")) is None:
        tried = ", ".join(str(trial.setting) for trial in trials)
        raise InputError(f"{tried}: training diverged at every setting; lower lr or noise")
    torch.manual_seed(plan.seed)
    model = plan.make_model()
    model.load_state_dict(kept["model"])
    posterior = Posterior(kept["mean"], kept["std"]) if "std" in kept else None
    found = Fit(model, posterior, best.setting, table)
    labels = torch.cat([take_labels(batch).cpu() for batch in plan.held])
    accuracy = max(row["accuracy"] for row in table)
    warn_if_nothing_is_learned(accuracy, labels, f"what was tried:\n{found}")
    return found


def check_folder(folder: Path, plan: Plan, grid: Sequence[Setting]) -> None:
    """A folder holds one fit: what decides it is written there."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "steps": plan.steps,
        "seed": plan.seed,
        "examples": count_examples(plan.loader),
        "grid": [dict(setting) for setting in grid],
    }
    path = folder / "fit.json"
    if path.exists() and (found := json.loads(path.read_text())) != json.loads(json.dumps(facts)):
        changed = ", ".join(name for name in facts if facts[name] != found.get(name))
        raise InputError(f"{folder}: holds a fit with other {changed}; give another folder")
    files.write_json(path, facts)


def split_data(
    data: Any, validation: Any, held_back: float, batch_size: int, seed: int
) -> tuple[Any, Any]:
    """The loader for training and the one for validation."""
    if isinstance(data, tuple | list) and all(isinstance(part, Tensor) for part in data):
        data = TensorDataset(*data)
    if not isinstance(data, DataLoader):
        if not isinstance(data, Dataset):
            raise InputError(
                f"data is a {type(data).__name__}: must be a DataLoader, a Dataset, or (inputs, labels)"
            )
        data = DataLoader(data, batch_size, shuffle=True, drop_last=len(data) % batch_size == 1)  # type: ignore[arg-type]
    if validation is not None:
        return data, validation
    if not 0 < held_back < 1:
        raise InputError(f"held_back={held_back}: must be a share of the examples, 0.2 say")
    index = list_indices(data)
    order = torch.randperm(
        len(index), generator=torch.Generator("cpu").manual_seed(seed), device="cpu"
    ).tolist()
    count = max(round(held_back * len(index)), 1)
    held, rest = ([index[i] for i in part] for part in (order[:count], order[count:]))
    same = {
        name: getattr(data, name)
        for name in ("batch_size", "collate_fn", "num_workers", "pin_memory")
    }
    train = DataLoader(Subset(data.dataset, rest), shuffle=True, drop_last=data.drop_last, **same)
    if not len(train):
        raise InputError(f"{len(rest)} examples are left for training: less than one batch")
    return train, DataLoader(Subset(data.dataset, held), **same)


def list_indices(loader: DataLoader[Any]) -> list[int]:
    """Which examples a loader gives."""
    sampler = loader.sampler
    if loader.batch_size is None or isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise InputError("a loader without batch_size, or of a stream: give validation= as well")
    if (own := getattr(sampler, "indices", None)) is not None:
        return list(own)
    plain = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)
    if not isinstance(sampler, plain):
        raise InputError(
            f"the loader has a {type(sampler).__name__}, which cannot be split; give validation= as well"
        )
    return list(range(len(loader.dataset)))  # type: ignore[arg-type]
