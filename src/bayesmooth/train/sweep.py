"""Many recipes, each trained once: finished runs are skipped by their hash, interrupted ones go on.

They go to an executor: processes of this machine, or tasks of a Ray cluster. `shutdown(cancel_futures=True)` drops
waiting jobs and asks running ones to stop, and a run that is asked to stop saves itself.
"""

import ctypes
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from bayesmooth import progress
from bayesmooth.data import data_root, keep_data_in
from bayesmooth.errors import InputError, require
from bayesmooth.progress import format_epoch
from bayesmooth.train.recipe import Recipe, Tree, find_differences, override
from bayesmooth.train.run import Run, StoppedError, handle_signals, name_end, train

T = TypeVar("T")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

PRELOADED = ["bayesmooth.train", "torch._dynamo", "sklearn.datasets"]  # once, not once per job
RETRIES = 3  # of a Ray task whose worker or node is lost; its run goes on from the checkpoint
OVER = ("finished", "diverged")  # the final ends of a run: run again, it would end the same way


@dataclass(frozen=True)
class Outcome:
    """The end of a run: finished, diverged, interrupted or failed; `message` has the reason."""

    run: Run
    status: str
    message: str = ""

    @classmethod
    def of(cls, run: Run, error: BaseException) -> Self:
        """The outcome of an error in training; the lines of its message become one."""
        status, message = name_end(error), "; ".join(filter(None, map(str.strip, str(error).splitlines())))
        if status == "failed":
            message = f"{message or type(error).__name__} (see {run.path.with_suffix('.log')})"
        return cls(run, status, message)


def train_one(run: Run, device: str | None, data: Path) -> Outcome:
    """Train in this process; an error becomes the outcome, its traceback goes to PATH.log.

    `data` has the public data sets. Where another process trains the same run, this one waits, and takes over if
    the other stops.
    """
    run.path.parent.mkdir(parents=True, exist_ok=True)
    with run.path.with_suffix(".log").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            with keep_data_in(data):
                train(run.recipe, run.path, device=device, quiet=True, patience=-1)
        except (Exception, StoppedError) as error:
            outcome = Outcome.of(run, error)
            if outcome.status == "failed":
                traceback.print_exc()
            return outcome
    return Outcome(run, "finished")


def sweep(
    recipes: Iterable[Recipe],
    out: str | Path,
    executor: Executor,
    device: str | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Train every recipe in its directory `out`/title; equal recipes once. A failure does not stop the rest.

    Ctrl-C, SIGTERM and a closed terminal save and stop the runs, and the same call goes on from there. `names` (by
    hash) are for the display; by default a run is called by the settings in which it differs from the others.
    """
    data = data_root(None).absolute()  # here: a worker has its own directory and variables
    runs = {recipe.hash: Run(Path(out).absolute() / recipe.title, recipe) for recipe in recipes}
    ends = {key: Outcome(run, run.status) for key, run in runs.items()}
    outcomes = {key: end for key, end in ends.items() if end.status in OVER}
    called, before = names or name_recipes([run.recipe for run in runs.values()]), len(outcomes)
    stops = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))  # Windows has no SIGHUP
    heard = [number for number in stops if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    with (
        handle_signals(signal.default_int_handler, *heard),
        progress.bar(len(runs), description="runs", done=before) as bar,
    ):
        many = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        bar.line(many + (f", {before} of them done before" if before else ""))
        try:
            todo = {executor.submit(train_one, run, device, data): k for k, run in runs.items() if k not in outcomes}
            for future in as_completed(todo):
                key, error = todo[future], future.exception()
                outcomes[key] = outcome = Outcome.of(runs[key], error) if error else future.result()
                words = [f"[{len(outcomes)}/{len(runs)}]", f"{outcome.status:11}", called[key]]
                figures = [format_epoch(last, runs[key].recipe.train.epochs) for last in runs[key].metrics()[-1:]]
                bar.line("  ".join([*words, *([outcome.message] if outcome.message else figures)]))
                bar.update(len(outcomes))
        except KeyboardInterrupt:
            executor.shutdown(wait=True, cancel_futures=True)  # nothing is left running
            raise KeyboardInterrupt("; what ran is saved, the same command goes on") from None
    return [outcomes[key] for key in runs]


def grid(tree: Tree, axes: Sequence[str], source: str = "recipe") -> list[Recipe]:
    """Every combination of values: `loss.alpha=0,.1,.3`, and `train.seed=0:5` for 0 … 4.

    >>> [recipe.train.seed for recipe in grid({}, ["train.seed=0:2", "train.epochs=1,2"])]
    [0, 0, 1, 1]
    """
    settings: dict[str, list[str]] = {}
    for axis in axes:
        key, _, text = map(str.strip, axis.partition("="))
        if not text:
            raise InputError(f"{axis!r}: not an axis; write section.key=value,value or =0:5")
        if key in settings:
            raise InputError(f"{axis!r}: a second axis of {key}; put all values in one")
        settings[key] = [f"{key}={value}" for value in split_values(text)]
        if not settings[key]:
            raise InputError(f"{axis!r}: no value; 0:5 is 0 … 4, so the second must be larger")
    return [Recipe.from_dict(override(tree, chosen), source=source) for chosen in product(*settings.values())]


def split_values(text: str) -> list[str]:
    """The values of an axis, as text; a comma within brackets separates nothing.

    >>> split_values("0,.1,.3"), split_values("2:5"), split_values("[8, 16],[4]")
    (['0', '.1', '.3'], ['2', '3', '4'], ['[8, 16]', '[4]'])
    """
    first, colon, last = text.partition(":")
    if colon and first.isdigit() and last.isdigit():
        return [str(value) for value in range(int(first), int(last))]
    return [value.strip() for value in re.split(r",(?![^\[]*\])", text)]


def name_recipes(recipes: Sequence[Recipe]) -> dict[str, str]:
    """By hash, the settings that tell each recipe from the others; a single one has its title.

    >>> list(name_recipes(grid({"loss": {"name": "ls"}}, ["loss.alpha=0,.1"])).values())
    ['loss.alpha=0.0', 'loss.alpha=0.1']
    """
    words = [" ".join(f"{key}={value}" for key, value in own.items()) for own in find_differences(recipes)]
    return {recipe.hash: name or recipe.title for recipe, name in zip(recipes, words, strict=True)}


def export_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per run: the settings in which the runs differ, its status, and its final figures."""
    return [
        {**settings, "run": each.run.path.name, "status": each.status}
        | (each.run.report() if each.status == "finished" else {})
        for each, settings in zip(outcomes, find_differences([o.run.recipe for o in outcomes]), strict=True)
    ]


def choose_best(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The finished run that predicts the noisy labels of the validation split best, by accuracy, then NLL.

    Whole runs are compared: short ones would mislead about the noise, as they have not memorised anything yet.
    """
    reports = {outcome: outcome.run.report() for outcome in outcomes if outcome.status == "finished"}
    return max(reports, key=lambda o: (reports[o]["validation.accuracy"], -reports[o]["validation.nll"]), default=None)


# ---- executors: processes of this machine, or tasks of a Ray cluster, as `concurrent.futures` has them ----


@cache
def keep_freed_memory() -> None:
    """Tell glibc, once in a process, not to hand freed memory back to the system.

    Every step on the CPU frees its activations and asks for them again; handing the pages back and forth is 13 to 17 %
    of the time of a small network's step. This affects the whole process, so only our own call it: the command line and
    the processes of jobs. Other systems and allocators are left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


class Processes(ThreadPoolExecutor):
    """A fresh process for every job, `jobs` of them at a time: a process that is killed costs one job only.

    The threads that torch has here (see OMP_NUM_THREADS) are divided among the jobs.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.threads = max(1, torch.get_num_threads() // jobs)
        self.running: set[BaseProcess] = set()
        self.context = get_context("forkserver")  # forks from a clean process that has torch loaded
        self.context.set_forkserver_preload(PRELOADED)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn` in a process of its own, as soon as one of the places is free."""
        return super().submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the jobs; with `cancel_futures` ask those that run to stop."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if cancel_futures:
            for process in tuple(self.running):
                process.terminate()
        super().shutdown(wait=wait)

    def _run(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(sender, self.threads, fn, args, kwargs))
        # Ctrl-C is the parent's business: the server that forks, and may be loading torch, does not hear it.
        resource_tracker.ensure_running()  # first, as its start unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sender.close()
        self.running.add(process)
        try:
            answer: T | BaseException = receiver.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"its process was lost, maybe out of memory (exit code {process.exitcode})") from None
        finally:
            process.join()
            self.running.discard(process)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _child(sender: Connection, threads: int, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    os.setpgid(0, 0)  # Ctrl-C goes to the parent, which asks each child once
    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        answer = fn(*args, **kwargs)
    except BaseException as error:
        answer = error
    sender.send(answer)


class RayTasks(Executor):
    """Tasks of a Ray cluster: the one at `address`, or one that is started here. A lost worker's task starts again.

    Files that tasks write must lie where all nodes see them. Ray gives torch as many threads as a task has CPUs.
    """

    def __init__(self, address: str | None = None, *, cpus: float = 1, gpus: float = 0) -> None:
        self.ray = require("ray", extra="cluster")
        self.started = not self.ray.is_initialized()
        where = {"address": address} if address else {"include_dashboard": False}
        try:
            if self.started:
                self.ray.init(**where, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise InputError(
                f"--address {address}: no Ray cluster there: {error}; start one with `ray start --head`, "
                "or leave --address out"
            ) from None
        self.options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES}
        self.tasks: set[Any] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn` on a node with the resources of one job free."""
        task = self.ray.remote(fn).options(**self.options).remote(*args, **kwargs)
        self.tasks.add(task)
        future: Future[T] = task.future()
        future.add_done_callback(lambda _: self.tasks.discard(task))  # Ray may forget its result
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks; with `cancel_futures` ask Ray to stop them."""
        # A second call must not ask a cluster that is gone.
        tasks, self.tasks = list(self.tasks), set()
        if cancel_futures:
            for task in tasks:
                self.ray.cancel(task)
        if wait and tasks:
            self.ray.wait(tasks, num_returns=len(tasks), fetch_local=False)
        if self.started:
            self.ray.shutdown()
