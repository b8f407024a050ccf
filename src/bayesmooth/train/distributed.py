"""Data-parallel runs under `torchrun`: each process takes its part of every batch, and gradients are summed."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesmooth.errors import InputError


@dataclass(frozen=True)
class Team:
    """The processes of a run: this one's rank, and how many there are. A single process is a team of one."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process owns the run directory."""
        return self.rank == 0

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the team, in one message."""
        if self.size == 1 or not tensors:
            return
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(joined)
        totals = torch.split(joined, [tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.copy_(total.view_as(tensor))

    def sum_gradients(self, weights: Iterable[nn.Parameter], loss: Tensor) -> None:
        """Make every process's gradient and loss those of the joined batch.

        A process whose part of the batch is empty has no gradients: it sends zeros.
        """
        if self.size > 1:
            trained = [weight for weight in weights if weight.requires_grad]
            for weight in trained:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
            self.sum_([weight.grad for weight in trained if weight.grad is not None] + [loss])

    def any(self, wishes: Sequence[bool], device: torch.device) -> list[bool]:
        """For each wish, whether any process has it; all must call this at the same point."""
        if self.size == 1:
            return list(wishes)
        counts = torch.tensor(wishes, dtype=torch.float32, device=device)
        dist.all_reduce(counts)
        return [count > 0 for count in counts.tolist()]

    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each floating tensor by its mean over the team (BatchNorm's statistics differ by process)."""
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.sum_(floating)
        for tensor in floating:
            tensor.div_(self.size)

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()


ALONE = Team()


@contextmanager
def join_team(device: torch.device) -> Iterator[Team]:
    """The team that `torchrun` started this process in (or the caller's own process group), else a team of one."""
    if dist.is_available() and dist.is_initialized():
        yield Team(dist.get_rank(), dist.get_world_size())
    elif int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield ALONE
    else:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield Team(dist.get_rank(), dist.get_world_size())
        finally:
            dist.destroy_process_group()


def find_device(name: str | None) -> torch.device:
    """The device that is asked for, else a GPU of this process's own if there is one, else the CPU."""
    if name is None and torch.cuda.is_available():
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name or "cpu")
    except RuntimeError:
        raise InputError(f"device {name!r}: must be cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r}: {torch.cuda.device_count()} GPUs here; leave it out, or use cpu")
    return device


def writes_here() -> bool:
    """Whether this process is the one that writes and prints, also outside of `join_team`."""
    return int(os.environ.get("RANK", "0")) == 0
