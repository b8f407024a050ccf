"""Train by asking the data: a few settings are tried, held-out given labels choose, and predictions clean labels.

    fit_result = bayesmooth.fit(make_model, loader, epochs=20)
    fit_result.model, fit_result.posterior, print(fit_result)

1. Six settings (GRID: IVON and AdamW) train for a quarter of the epochs, the best two of them for half.
2. If the best one still learns, it goes on to the end. If held-out accuracy falls, it has begun to learn wrong labels;
   then the second-best one studies for half of the epochs the joint predictions of the best three and the audit: they
   have not learned single wrong labels yet, and agree on little else than the right ones.
3. The best one studies predictions of all of these for half of the epochs. Now the held-out labels have chosen, so they
   are learned, too: nobody has learned their errors, so the given label and the prediction say more than either does.

That is three times the cost of one run, and one audit. Held-out labels may be as wrong as the others: errors that a
network cannot predict lower the accuracy of all settings alike. They choose the point to stop at, too, the temperature
of the predictions, and the share of the audit in them (`predicted.py`). Everything is kept in a folder, so
that a run that was stopped goes on.
"""

import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bayesmooth import files, progress
from bayesmooth.calling import read_logits, take_labels
from bayesmooth.errors import InputError
from bayesmooth.fitting.heldout import join, read_in_order, replace_labels, split_data
from bayesmooth.fitting.predicted import Audited, audit_labels, predict_labels
from bayesmooth.fitting.trial import PARTS, Loss, Plan, Setting, Trial, advance, standard_error
from bayesmooth.losses.base import check_batch, within
from bayesmooth.optim.ivon import IVON
from bayesmooth.optim.schedule import warn_if_nothing_is_learned
from bayesmooth.optim.settings import count_examples, count_steps
from bayesmooth.posterior import Posterior

# The development pool chose these (results/choices/fit.txt); the test pool had no say.
FIRST, SECOND = 4, 8  # parts after which two settings are left, and one
TEACHERS = 3  # settings whose predictions become labels
STUDY = 0.5  # share of a run for which predicted labels are learned
# By hand from the winners on the development pool, not compared with other grids. Adapters (LoRA) need the largest lr.
IVON_GRID: tuple[Mapping[str, Any], ...] = tuple(
    {"lr": lr, "noise": noise}
    for lr, noise in ((0.01, 0.5), (0.3, 0.5), (0.03, 1.0), (0.03, 2.0), (0.1, 0.3), (0.1, 1.0))
)
GRID: tuple[Mapping[str, Any], ...] = (
    *({"optimizer": AdamW, "lr": lr} for lr in (5e-4, 2e-3, 8e-3)),
    *(IVON_GRID[i] for i in (0, 2, 5)),
)
MEASURED = ("trained", "accuracy", "nll")
FORKED: list[Callable[[], float]] = []  # what the processes of `jobs` do


@dataclass(frozen=True)
class Fit:
    """The result of `fit`: the network at the mean of its weights, their posterior, and a table of the settings."""

    model: nn.Module
    posterior: Posterior | None
    """None where the optimizer has none."""
    setting: dict[str, Any]
    labels: str
    """The labels that it learned, "given" or "predicted"."""
    table: list[dict[str, Any]]
    """One row per setting: its values, its share of the run, and its best accuracy and NLL on held-out labels.

    Both are None where these are learned.
    """

    @property
    def accuracy(self) -> float:
        """The best on held-out labels that was measured before they were learned."""
        return float(max(row["accuracy"] for row in self.table if row["accuracy"] is not None))

    def __str__(self) -> str:
        names = list(dict.fromkeys(n for row in self.table for n in row if n not in MEASURED))
        lines = ["  ".join([*(f"{name:>9}" for name in names), "trained", "held-out accuracy"])]
        chosen = {**describe_setting(self.setting), "labels": self.labels}
        for row in sorted(self.table, key=lambda row: (-row["trained"], -(row["accuracy"] or 0))):
            same = chosen == {name: row[name] for name in names if name in row}
            values = [f"{row.get(name, 'IVON' if name == 'optimizer' else '–'):>9}" for name in names]  # the default
            accuracy = "learned" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
            lines.append("  ".join([*values, f"{row['trained']:7.0%}", accuracy + " ← chosen" * same]))
        return "\n".join(lines)


def fit(
    make_model: Callable[[], nn.Module],
    data: Any,
    epochs: float,
    *,
    batch_size: int = 64,
    validation: Any = None,
    held_back: float | Sequence[int] = 0.2,
    loss: Loss = nn.functional.cross_entropy,
    optimizer: Callable[..., Optimizer] | None = None,
    grid: Sequence[Setting] = GRID,
    teach: bool = True,
    stop: bool = True,
    folder: str | Path | None = None,
    jobs: int = 1,
    seed: int = 0,
    quiet: bool = False,
) -> Fit:
    """Train at several settings, the worse ones dropped on the way, and return the best by held-out labels.

    Arguments:
        make_model: makes a new network at every call; called for every setting under the same seed.
        data: a DataLoader; a data set or list of dicts with "labels" or "label", or of tuples (x, y), one of Hugging
            Face after `.with_format("torch")`; or two tensors (inputs, labels). A DataLoader has its own `batch_size`.
        epochs: of a full run.
        validation: held-out examples of your own, as `data`, or a list of batches. They are never learned.
        held_back: otherwise the share of `data` that is held out until it has chosen, or a list of their places.
        loss: of logits and labels.
        optimizer: called with the trainable weights, by name, and a setting; None is IVON with steps and noise
            relative to the weights.
        grid: the settings. One alone is trained without a choice. A setting may have an `optimizer` and a `loss` of
            its own.
        teach: whether predicted labels are learned, too. Otherwise, with a loss of your own, and where batches cannot
            be read in order, the best two settings go on to the end with the given ones, at the same cost.
        stop: whether held-out labels also choose the point to stop at. Otherwise the last measurements are compared.
        folder: the directory of the runs; a second call with the same arguments goes on there.
        jobs: processes that train at the same time, on the CPU.
        seed: of the weights, the order, the noise and the held-out part.
        quiet: print nothing.

    >>> x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    >>> result = fit(lambda: nn.Linear(4, 2), (x, (x[:, 0] > 0).long()), epochs=4, quiet=True)
    >>> len(result.table) > len(GRID), result.labels in ("given", "predicted")  # with those of predicted labels
    (True, True)
    """
    within("batch_size", batch_size, "64 is usual", low=1)
    loader, held = split_data(data, validation, held_back, batch_size, seed)
    examples, steps = count_examples(loader), count_steps(loader, epochs)
    if optimizer is None:
        optimizer = partial(IVON, ess=examples, steps=steps, seed=seed)
    plan = Plan(make_model, loader, held, loss, optimizer, steps, seed, folder is not None, stop)
    with ExitStack() as scope:
        scope.enter_context(progress.silence(quiet))
        scope.enter_context(torch.random.fork_rng())
        check_parts(plan, grid)
        if folder is None:
            folder = scope.enter_context(tempfile.TemporaryDirectory())
        else:
            check_folder(Path(folder), plan, grid, teach)
        trials = [Trial(dict(setting), Path(folder) / f"{i}.pt") for i, setting in enumerate(grid)]
        if not quiet:
            print(describe_cost(len(grid), epochs, steps))
        run = partial(advance_all, plan, jobs=jobs)
        if len(trials) == 1:
            run(trials, PARTS)
            return finish(plan, trials, trials[0])
        ranked = run(trials, FIRST)
        best_two, others = ranked[:2], ranked[2:TEACHERS]
        teach = teach and loss is nn.functional.cross_entropy and read_in_order(plan.loader) is not None
        if not teach:  # each example needs a place
            return finish(plan, trials, run(best_two, PARTS)[0])
        best, second = run(best_two, SECOND)
        study = partial(learn_predictions, plan, cache(partial(ask_audit, plan, best, validation is None)))
        students = []
        if not overfits(plan, best):
            run([best], PARTS)
        elif second.has_learned:
            students = [study([best, second, *others], second)]
        if not best.has_learned:
            return finish(plan, trials, best)
        students.append(study([best, second, *others], best, *students, everything=validation is None))
        return finish(plan, [*trials, *students], choose_last(plan, best, students[-1]))


def check_parts(plan: Plan, grid: Sequence[Setting]) -> None:
    """Settings, a network of its own for each, and logits that go with the labels: else the runs would be in vain."""
    if not grid:
        raise InputError("grid=(): no setting; give one at least, or leave it out")
    if isinstance(plan.make_model, nn.Module) or (len(grid) > 1 and plan.make_model() is plan.make_model()):
        raise InputError("make_model gives one network for all settings; make a new one in it, or copy.deepcopy it")
    logits, batch = next(read_logits(plan.make_model(), plan.held), (None, None))
    if logits is None:
        raise InputError("no held-out labels to choose by; give validation= one batch at least")
    check_batch(logits, take_labels(batch).to(logits.device))


def describe_cost(count: int, epochs: float, steps: int) -> str:
    """The cost of the fit in words: settings, epochs and steps."""
    if count == 1:
        return f"one setting, {steps:,} steps"
    cost = (count * FIRST + 2 * (PARTS - FIRST)) / PARTS  # the same with students and without
    return (
        f"{count} settings for {FIRST / PARTS:.0%} of {epochs:g} epochs, the best go on: "
        f"{cost:.1f} × one run, {math.ceil(cost * steps):,} steps"
    )


def advance_all(plan: Plan, trials: list[Trial], parts: int, *, jobs: int) -> list[Trial]:
    """Train all of them until so many parts are done; the best first."""
    title = f"{len(trials)} runs to {parts / PARTS:.0%}"
    if jobs > 1 and len(trials) > 1:
        threads = max(torch.get_num_threads() // jobs, 1)
        FORKED[:] = [partial(advance, plan, parts, trial) for trial in trials]
        with ProcessPoolExecutor(jobs, get_context("fork"), torch.set_num_threads, (threads,)) as pool:
            scores = list(progress.track(pool.map(call_forked, range(len(trials))), description=title))
        FORKED.clear()
    else:
        each = plan.steps * parts // PARTS
        with progress.bar(each * len(trials), description=title) as bar:
            tells = [lambda steps, before=i * each: bar.update(before + steps) for i in range(len(trials))]
            scores = [advance(plan, parts, trial, tell) for trial, tell in zip(trials, tells, strict=True)]
    return [trials[i] for i in sorted(range(len(trials)), key=scores.__getitem__, reverse=True)]


def call_forked(place: int) -> float:
    """In a forked process, one of the calls that it has inherited: neither networks nor data need be pickled."""
    return FORKED[place]()


# ---- predicted labels ----


def overfits(plan: Plan, trial: Trial) -> bool:
    """Whether its last look is worse than its best one, by more than a standard error of the accuracy."""
    looks = trial.load()["looks"][:SECOND]
    return bool(looks[-1][0] < max(looks)[0] - standard_error(max(looks)[1], len(read_held_labels(plan))))


def read_held_labels(plan: Plan) -> Tensor:
    """The labels that are held out."""
    return torch.cat([take_labels(batch).cpu() for batch in plan.held])


def learn_predictions(
    plan: Plan,
    audited: Callable[[], Audited | None],
    teachers: list[Trial],
    start: Trial,
    *students: Trial,
    everything: bool = False,
) -> Trial:
    """From the best weights of `start`, half a run on labels that the audit, teachers, and students if any, predict.

    `everything`: the held-out examples are learned, too.
    """
    path = start.path.with_stem(f"{start.path.stem}-predicted")
    student = Trial(start.setting, path, "predicted", start.path, everything)
    file = path.with_suffix(".labels")
    if not file.exists():
        train, held = read_in_order(plan.loader), read_in_order(plan.held) or list(plan.held)  # a loader may shuffle
        given = torch.cat([take_labels(batch) for batch in held]).cpu()
        of_train, of_held = (average_predictions(plan, teachers, students, batches) for batches in (train, held))
        labels = predict_labels(of_train, of_held, given, audited())
        files.save_checkpoint(file, torch.cat(labels[: 1 + everything]))
    loader = join(plan.loader, plan.held) if everything else plan.loader
    loader = replace_labels(loader, torch.load(file, weights_only=True))
    short = replace(plan, loader=loader, steps=max(round(STUDY * plan.steps), 1))
    advance_all(short, [student], PARTS, jobs=1)
    return student


def ask_audit(plan: Plan, best: Trial, learn_held: bool) -> Audited | None:
    """The audit's predictions of the labels, by the features of a trial; None if it gives none."""
    if not best.has_learned:
        return None
    with progress.silence():
        held = read_in_order(plan.held) or plan.held
        return audit_labels(load_best(plan, best), read_in_order(plan.loader), held, learn_held)


def average_predictions(plan: Plan, teachers: Sequence[Trial], students: Sequence[Trial], batches: Any) -> Tensor:
    """Mean probabilities of trials at their best part; where there are students, they have half of the say."""
    means = []
    for trials in (teachers, students):
        models = (load_best(plan, trial) for trial in trials if trial.has_learned)
        each = [torch.cat([z.softmax(-1).float().cpu() for z, _ in read_logits(model, batches)]) for model in models]
        if each:
            means.append(torch.stack(each).mean(0))
    return torch.stack(means).mean(0).clamp_min(1e-9)


def load_best(plan: Plan, trial: Trial) -> nn.Module:
    """The network of a trial at its best part."""
    torch.manual_seed(plan.seed)
    model = plan.make_model()
    model.load_state_dict(trial.load()["best"]["model"])
    return model


def choose_last(plan: Plan, given: Trial, predicted: Trial) -> Trial:
    """The network of the predicted labels, unless it is worse by a standard error: then they were not learned.

    With given labels it is measured at its best of many looks, with predicted ones at its end alone.
    """
    first, second = (max(trial.load()["looks"])[1] for trial in (given, predicted))
    error = standard_error(first, len(read_held_labels(plan)))
    return predicted if predicted.has_learned and second >= first - error else given


def finish(plan: Plan, trials: list[Trial], best: Trial) -> Fit:
    """The winner at its best part, and the table."""
    table = [describe_trial(trial) for trial in trials]
    if (kept := best.load().get("best")) is None:
        tried = ", ".join(str(trial.setting) for trial in trials)
        raise InputError(f"{tried}: diverged at every setting; lower lr or noise, and see that all inputs are finite")
    posterior = Posterior(kept["mean"], kept["std"]) if "std" in kept else None
    fit_result = Fit(load_best(plan, best), posterior, best.setting, best.labels, table)
    warn_if_nothing_is_learned(fit_result.accuracy, read_held_labels(plan), f"what was tried:\n{fit_result}")
    return fit_result


def describe_trial(trial: Trial) -> dict[str, Any]:
    """A row of the table."""
    state = trial.load()
    _, accuracy, nll = max(state["looks"])
    return {
        **describe_setting(trial.setting),
        "labels": trial.labels,
        "trained": state["parts"] / PARTS * (STUDY if trial.start else 1),
        "accuracy": None if trial.everything else accuracy,
        "nll": None if trial.everything else nll,
    }


def describe_setting(setting: Setting) -> dict[str, Any]:
    """Numbers and names."""
    named = {name: getattr(value, "__name__", value) for name, value in setting.items()}
    address = re.compile(" at 0x[0-9a-f]+")  # differs in every process
    return {n: v if isinstance(v, int | float | str) else address.sub("", str(v)) for n, v in named.items()}


def check_folder(folder: Path, plan: Plan, grid: Sequence[Setting], teach: bool) -> None:
    """A folder holds one fit: its settings and labels are noted there, and others are refused."""
    facts = {
        "steps": plan.steps,
        "seed": plan.seed,
        "examples": count_examples(plan.loader),
        "grid": [describe_setting(setting) for setting in grid],
        "teach": teach,
        "stop": plan.stop,
        "network": [list(weight.shape) for weight in plan.make_model().parameters()],
        "loss": describe_setting({"loss": plan.loss})["loss"],
        "held-out labels": torch.unique(read_held_labels(plan), return_counts=True)[1].tolist(),  # in any order
    }
    path, facts = folder / "fit.json", json.loads(json.dumps(facts))
    saved = facts | (files.read_json(path) if path.exists() else {})  # an older one has not all of them
    if changed := ", ".join(name for name in facts if facts[name] != saved[name]):
        raise InputError(f"{folder}: holds a fit with other {changed}; give another folder")
    files.write_json(path, facts)
