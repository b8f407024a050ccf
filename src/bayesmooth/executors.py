"""Where jobs run: processes of this machine, or tasks of a Ray cluster, behind the shape of `concurrent.futures`.

`submit` gives a future. `shutdown(cancel_futures=True)` drops what waits and asks what runs to stop, and a run that is
asked to stop saves itself.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch

from bayesmooth.errors import InputError, require

T = TypeVar("T")

DATA = "BAYESMOOTH_DATA"  # the variable that says where public data sets lie
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

LOADED = ["bayesmooth.train", "torch._dynamo", "sklearn.datasets"]  # once, not once per job
RETRIES = 3  # of a Ray task whose worker or node is lost; its run goes on from the checkpoint


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


@contextmanager
def set_variable(name: str, value: str | Path | None) -> Iterator[None]:
    """Within the context a variable of the environment has this value; None leaves it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = str(value)
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


class LostError(RuntimeError):
    """The process of a job ended without an answer: killed, or out of memory."""


class Processes(ThreadPoolExecutor):
    """A fresh process for every job, `jobs` of them at a time: whatever kills a process costs one job only.

    The threads that torch has here (see OMP_NUM_THREADS) are divided among the jobs.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.threads = max(1, torch.get_num_threads() // jobs)
        self.running: set[BaseProcess] = set()
        self.context = get_context("forkserver")  # forks from a clean process that has torch loaded
        self.context.set_forkserver_preload(LOADED)

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
            raise LostError(f"its process was lost (exit code {process.exitcode})") from None
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
