"""The backends of IVON's lines: plain torch or the C kernels, by the same calls `draw`, `exchange` and `update`.

A chunk is a list of weights of one group, device and dtype. Torch packs their tensors into vectors, computes, and
unpacks the results. The kernels need one pass over memory.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesmooth import randomness
from bayesmooth.errors import InputError
from bayesmooth.optim.params import cut, noise_of
from bayesmooth.optim.samples import Weight
from bayesmooth.randomness import _kernels, in_parts, torch_normal

CHUNK_ON_CPU = 1 << 16  # elements of small tensors that are packed together: they stay in the cache
CHUNK = 1 << 24  # elsewhere: there the number of calls counts

flatten = torch._C._nn.flatten_dense_tensors
unflatten = torch._C._nn.unflatten_dense_tensors

Line = Callable[..., Any]
Columns = list[list[Tensor]]
Job = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Torch:
    """Plain torch, by the lines `sample`, `product` and `update`."""

    sample: Line
    product: Line
    rule: Line
    limit: float  # the size of a chunk of several weights

    def draw(self, chunk: list[Weight], seed: int, number: int, steps: list[int], λ: float, δ: float) -> None:
        """θ into the parameters, m into the buffers (of parameters below float32: θ before rounding)."""
        e, narrow = draw_noise(chunk, seed, number, steps), chunk[0].wide is not None
        if not narrow:
            torch._foreach_copy_([w.buffer for w in chunk], [w.local for w in chunk])
        for w in chunk:
            w.held = True
        columns = [[w.mean for w in chunk], [w.hess for w in chunk]]
        compute(lambda m, h, e: (self.sample(m, h, e, λ, δ),), columns, [[w.sample for w in chunk]], e)
        if narrow:
            torch._foreach_copy_([w.local for w in chunk], [w.buffer for w in chunk])

    def exchange(self, chunk: list[Weight]) -> None:
        """The mean back into the parameters; the sample into the buffers, unless it is there."""
        locals_, means = [w.local for w in chunk], [w.mean for w in chunk]
        # Copies of a list of tensors, in one call.
        samples = [] if chunk[0].wide is not None else list(torch._foreach_mul(locals_, 1))
        torch._foreach_copy_(locals_, means)
        for w in chunk:
            w.held = False
        if samples:
            torch._foreach_copy_(means, samples)

    def update(self, chunk: list[Weight], rates: list[float], samples: int, scale: float, **numbers: Any) -> None:
        """Lines 2 to 6, after one sample or from the sums over several.

        α is multiplied by each weight's rate, gradients are multiplied by `scale`.
        """
        squared = numbers["squared"]
        numbers["α"] = spread_rate(chunk, numbers["α"], rates)
        if sums := [w.sums for w in chunk if w.sums is not None]:
            line, columns = self.rule, [[s for s, _ in sums], [s for _, s in sums]]
            torch._foreach_mul_(columns[0], scale / samples)
            torch._foreach_mul_(columns[1], (scale**2 if squared else scale) / samples)
        else:
            line, grads = self.update_from_sample, [w.gradient() for w in chunk]
            if scale != 1.0:
                grads = [grad.to(w.hess.dtype) * scale for grad, w in zip(grads, chunk, strict=True)]
            columns = [grads, [w.sample for w in chunk]]
        state = [[w.momentum for w in chunk], [w.hess for w in chunk]]
        new = [w.local if w.wide is None else w.wide for w in chunk]  # θ may be there still
        compute(partial(line, **numbers), [[w.mean for w in chunk], *state, *columns], [new, *state])
        for w in chunk:
            w.held = False
        if chunk[0].wide is not None:
            torch._foreach_copy_([w.local for w in chunk], new)

    def update_from_sample(self, m: Tensor, g: Tensor, h: Tensor, ĝ: Tensor, θ: Tensor, **numbers: Any) -> Any:
        """Lines 2 to 6 from the gradient at θ."""
        return self.rule(m, g, h, ĝ, self.product(ĝ, θ, m, numbers["squared"]), **numbers)


def compute(line: Line, read: Columns, write: Columns, *rows: Tensor) -> None:
    """A line over columns of one tensor per weight, and `rows`, which are vectors; results go to `write`."""
    dtype = write[0][0].dtype
    vectors = [*(flatten(column).to(dtype) for column in read), *rows]
    if len(write[0]) == 1 and all(column[0].is_contiguous() for column in write):
        into = [column[0].view(-1) for column in write]
        size = find_limit(into[0].device)
        for pieces in zip(*(torch.split(v, size) for v in (*into, *vectors)), strict=True):
            for target, value in zip(pieces, line(*pieces[len(into) :]), strict=False):
                target.copy_(value)
    else:
        pairs = zip(line(*vectors), write, strict=True)
        torch._foreach_copy_([*chain(*write)], [*chain(*(unflatten(v, c) for v, c in pairs))])


class Constants(NamedTuple):
    """The numbers that all weights of a group share, in the order of the C struct."""

    ess: float = 1.0
    decay: float = 0.0
    beta1: float = 0.0
    keep1: float = 0.0  # 1 − β₁
    keep2: float = 0.0  # 1 − β₂
    lr: float = 0.0
    radius: float = 0.0
    scale: float = 1.0  # of the gradient
    sign: float = 1.0  # of the noise
    squared: bool = False  # the Hessian from squared gradients


class Kernels(Torch):
    """The C kernels, for dense float32 weights on the CPU; they repeat the lines, and a test holds the two equal."""

    def draw(self, chunk: list[Weight], seed: int, number: int, steps: list[int], λ: float, δ: float) -> None:
        """θ into the parameters, m into the buffers."""
        for w in chunk:
            w.held = True
        jobs = [make_job(w, step) for w, step in zip(chunk, steps, strict=True)]
        run_kernel("sample", jobs, Constants(λ, δ), seed, number)

    def exchange(self, chunk: list[Weight]) -> None:
        """The mean back into the parameters, the sample into the buffers."""
        jobs = [make_job(w) for w in chunk]
        for w in chunk:
            w.held = False
        run_kernel("swap", jobs, Constants())

    def update(self, chunk: list[Weight], rates: list[float], samples: int, scale: float, **numbers: Any) -> None:
        """Lines 2 to 6 after one sample; from sums, in torch."""
        if chunk[0].sums is not None:
            for w, rate in zip(chunk, rates, strict=True):
                super().update([w], [rate], samples, scale, **numbers)
            return
        jobs, grads = dict[float, list[Job]](), []
        for w, rate in zip(chunk, rates, strict=True):
            grad = w.gradient()
            if grad.stride() != w.local.stride() or grad.dtype != torch.float32:
                grad = torch.empty_like(w.local).copy_(grad)
            grads.append(grad)  # its memory stays
            jobs.setdefault(rate, []).append(make_job(w, grad=grad, debias=numbers["debias"]))
        λ, δ, β1, β2 = (numbers[name] for name in ("λ", "δ", "β1", "β2"))
        for w in chunk:
            w.held = False
        for rate, own in jobs.items():
            rest = numbers["α"] * rate, numbers["radius"], scale, 1.0, numbers["squared"]
            run_kernel("update", own, Constants(λ, δ, β1, 1.0 - β1, 1.0 - β2, *rest))


def make_job(w: Weight, step: int = 0, grad: Tensor | None = None, debias: float = 1.0) -> Job:
    """One tensor's addresses as things are now, sizes and the name of its noise, in the order of the C struct."""
    mean, sample = (w.buffer, w.local) if w.held else (w.local, w.buffer)
    tensors = w.local, mean, sample, grad, w.momentum, w.hess
    addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    return (*addresses, w.local.numel(), w.offset or 0, w.stream, step, debias)


def run_kernel(name: str, jobs: list[Job], constants: Constants, seed: int = 0, draw: int = 0) -> None:
    """Run a kernel over the jobs, on several threads if it pays."""
    call = getattr(_kernels, name)
    size = sum(job[6] for job in jobs)
    in_parts(lambda part, parts: call(jobs, seed, draw, part, parts, constants), size)


def choose_backend(w: Weight, *lines: Line) -> Torch:
    """The backend of a weight's sample and update, by the lines `sample`, `product` and `update`."""
    fused, device = w.group["fused"], w.local.device
    form = w.local.shape, w.local.stride(), torch.float32, torch.device("cpu")
    tensors = w.local, w.momentum, w.hess, w.buffer
    same = all((t.shape, t.stride(), t.dtype, t.device) == form for t in tensors)
    fits = randomness.KERNELS and same and w.offset is not None
    if fused is True and not fits:
        raise InputError(
            "fused=True: the kernels need dense float32 weights on the CPU, and a compiler when bayesmooth was "
            f"installed; found {w.local.dtype} on {device}; use fused=None"
        )
    if fits and fused is not False:
        return make_kernels(*lines, math.inf)
    return make_torch(*lines, find_limit(device))


make_kernels, make_torch = functools.cache(Kernels), functools.cache(Torch)  # one of each for all weights


def on_cpu(device: torch.device) -> bool:
    """Whether a computation waits for memory, and not for its calls."""
    return device.type == "cpu"


def find_limit(device: torch.device) -> int:
    """Elements to compute together; on the CPU they stay in the cache."""
    return CHUNK_ON_CPU if on_cpu(device) else CHUNK


def spread_rate(chunk: list[Weight], α: float, rates: list[float]) -> float | Tensor:
    """α times each weight's rate: one number, or one per element where they differ."""
    if len(set(rates)) == 1:
        return α * rates[0]
    row = chunk[0].hess.new_tensor([α * rate for rate in rates])
    return row.repeat_interleave(torch.tensor([w.local.numel() for w in chunk], dtype=torch.int64, device=row.device))


def draw_noise(chunk: list[Weight], seed: int, number: int, steps: list[int]) -> Tensor:
    """Standard normals for the elements of a chunk: draw `number` of these steps.

    On the CPU every weight's noise has its own name. Elsewhere there is one call for the whole chunk, named by its
    first weight; a rank with shards draws the noise of the whole tensors and keeps its own part.
    """
    if on_cpu(chunk[0].local.device):
        name, pairs = {"seed": seed, "draw": number}, zip(chunk, steps, strict=True)
        return flatten([noise_of(w.param, w.momentum, stream=w.stream, step=step, **name) for w, step in pairs])
    sizes, like = [w.param.numel() for w in chunk], chunk[0].hess
    row = torch_normal(sum(sizes), like.device, seed, chunk[0].stream, max(steps), number).to(like.dtype)
    if any(w.sharded for w in chunk):
        parts = zip(chunk, torch.split(row, sizes), strict=True)
        row = torch.cat([cut(w.param, part).reshape(-1) for w, part in parts])
    return row
