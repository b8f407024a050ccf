"""Who computes IVON's lines: plain torch, compiled torch or the C kernels, by the same calls `draw` and `update`.

A chunk is a list of weights of one group, device and dtype. Torch packs their tensors into vectors, computes, and
unpacks the results. The kernels need one pass over memory.
"""

import functools
import math
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bayesmooth import randomness
from bayesmooth.optim.samples import Weight
from bayesmooth.optim.sharding import cut, noise_of
from bayesmooth.randomness import in_parts, torch_normal

try:
    from bayesmooth import _kernels
except ImportError:  # installed without a compiler
    _kernels = None  # type: ignore[assignment]

CHUNK_ON_CPU = 1 << 16  # elements of small tensors that are packed together: they stay in the cache
CHUNK = 1 << 24  # elsewhere, where the number of calls is what counts

flatten = torch._C._nn.flatten_dense_tensors
unflatten = torch._C._nn.unflatten_dense_tensors

Lines = Callable[..., Any]
Columns = list[list[Tensor]]


class Rule(NamedTuple):
    """The lines of an algorithm, on tensors; `ivon.py` has them."""

    sigma: Callable[..., Tensor]
    sample: Callable[..., Tensor]
    product: Callable[..., Tensor]
    update: Callable[..., tuple[Tensor, ...]]


class Noise(NamedTuple):
    """The name of a chunk's draw; with a weight's position and step it names the weight's noise."""

    seed: int
    draw: int
    step: int | None  # None is each weight's own
    sign: float = 1.0


class Torch:
    """Plain torch."""

    def __init__(self, rule: Rule) -> None:
        def update_from_sample(
            m: Tensor, g: Tensor, h: Tensor, ĝ: Tensor, θ: Tensor, **n: Any
        ) -> Any:
            return rule.update(m, g, h, ĝ, rule.product(ĝ, θ, m, n["squared"]), **n)

        def add(Σĝ: Tensor, ΣĝΔ: Tensor, ĝ: Tensor, θ: Tensor, m: Tensor, squared: bool) -> Any:
            return Σĝ + ĝ, ΣĝΔ + rule.product(ĝ, θ, m, squared)

        self.rule, self.update_from_sample, self.add = rule, update_from_sample, add

    def draw(self, chunk: list[Weight], noise: Noise, λ: float, δ: float) -> None:
        """θ into the parameters, m into the buffers (of parameters below float32: θ before rounding)."""
        e = draw_noise(chunk, noise)
        if chunk[0].wide is None:
            torch._foreach_copy_([w.buffer for w in chunk], [w.local for w in chunk])
        for w in chunk:
            w.held = True
        self.compute_samples(chunk, e, λ, δ)
        if chunk[0].wide is not None:
            torch._foreach_copy_([w.local for w in chunk], [w.buffer for w in chunk])

    def compute_samples(self, chunk: list[Weight], e: Tensor, λ: float, δ: float) -> None:
        """θ, from a vector of noise for the whole chunk."""
        columns = [[w.mean for w in chunk], [w.hess for w in chunk]]
        self._run(self.rule.sample, columns, [[w.sample for w in chunk]], e, λ=λ, δ=δ)

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

    def add_up(self, chunk: list[Weight]) -> None:
        """Pending gradients into the sums of ĝ and of ĝ·(θ − m), or ĝ²."""
        sums = [list(column) for column in zip(*(w.sums for w in chunk if w.sums), strict=True)]
        grads, samples = [w.gradient() for w in chunk], [w.sample for w in chunk]
        squared = chunk[0].group["hess_approx"] == "gradsq"
        columns = [*sums, grads, samples, [w.mean for w in chunk]]
        self._run(self.add, columns, sums, squared=squared)

    def compare(self, now: Tensor, before: Tensor) -> Tensor:
        """By how much a gradient has been changed, for every element of ĥ; gradients may cancel in the average."""
        return torch.where(before == 0, (now == before).to(now.dtype), now / before)

    def update(
        self, chunk: list[Weight], rates: list[float], samples: int, scale: float, **numbers: Any
    ) -> None:
        """Lines 2 to 6, after one sample or from the sums over several.

        α is multiplied by each weight's rate, gradients are multiplied by `scale`.
        """
        if sums := [w.sums for w in chunk if w.sums is not None]:
            lines, columns = self.rule.update, [[s for s, _ in sums], [s for _, s in sums]]
            torch._foreach_mul_(columns[0], scale / samples)
            torch._foreach_mul_(columns[1], (scale**2 if numbers["squared"] else scale) / samples)
        else:
            lines, grads = self.update_from_sample, [w.gradient() for w in chunk]
            if scale != samples:
                factor = scale / samples
                grads = [w.gradient().to(w.hess.dtype) * factor for w in chunk]
            columns = [grads, [w.sample for w in chunk]]
        state = [[w.momentum for w in chunk], [w.hess for w in chunk]]
        new = [w.local if w.wide is None else w.wide for w in chunk]  # where θ may be still
        numbers["α"] = spread_rate(chunk, numbers["α"], rates)
        self._run(lines, [[w.mean for w in chunk], *state, *columns], [new, *state], **numbers)
        for w in chunk:
            w.held = False
        if chunk[0].wide is not None:
            torch._foreach_copy_([w.local for w in chunk], new)

    def compute(self, lines: Lines, *args: Any, **numbers: Any) -> Any:
        """The results of the lines."""
        return lines(*args, **numbers)

    def limit(self, device: torch.device) -> float:
        """Elements to compute together; on the CPU they stay in the cache."""
        return CHUNK_ON_CPU if on_cpu(device) else CHUNK

    def _run(
        self, lines: Lines, read: Columns, write: Columns, *rows: Tensor, **numbers: Any
    ) -> None:
        """The lines over columns of one tensor per weight, and `rows`, which are vectors; results go to `write`."""
        dtype = write[0][0].dtype
        vectors = [*(flatten(column).to(dtype) for column in read), *rows]
        if len(write[0]) == 1 and all(column[0].is_contiguous() for column in write):
            into = [column[0].view(-1) for column in write]
            size = int(Torch.limit(self, into[0].device))
            for pieces in zip(*(torch.split(v, size) for v in (*into, *vectors)), strict=True):
                values = self.compute(lines, *pieces[len(into) :], **numbers)
                for target, value in zip(pieces, as_tuple(values), strict=False):
                    target.copy_(value)
        else:
            values = self.compute(lines, *vectors, **numbers)
            pairs = zip(as_tuple(values), write, strict=True)
            torch._foreach_copy_([*chain(*write)], [*chain(*(unflatten(v, c) for v, c in pairs))])


class Compiled(Torch):
    """The same, compiled by torch where this machine can."""

    works = True  # until it fails

    def compute(self, lines: Lines, *args: Any, **numbers: Any) -> Any:
        """The results of the lines."""
        if not Compiled.works:
            return lines(*args, **numbers)
        # A tensor may change without compiling again, a float may not.
        changing = {n: numbers[n] for n in ("α", "debias") if isinstance(numbers.get(n), float)}
        tensors = {n: args[0].new_tensor(value, device="cpu") for n, value in changing.items()}
        try:
            return compile_lines(lines)(*args, **numbers | tensors)
        except Exception as problem:
            Compiled.works = False
            reason = next(iter(str(problem).strip().splitlines()), "no reason given")
            warnings.warn(
                f"IVON's update could not be compiled here ({type(problem).__name__}: {reason}); torch computes it "
                "uncompiled, more slowly; fused=False silences this",
                stacklevel=2,
            )
            return lines(*args, **numbers)


@functools.cache
def compile_lines(lines: Lines) -> Lines:
    """Compiled once for all chunks."""
    return torch.compile(lines, dynamic=True)


class Kernels(Torch):
    """The C kernels, for dense float32 weights on the CPU; they repeat the rule, and a test holds the two equal."""

    def draw(self, chunk: list[Weight], noise: Noise, λ: float, δ: float) -> None:
        """θ into the parameters, m into the buffers."""
        for w in chunk:
            w.held = True
        jobs = [_job(w, step=w.state["step"] if noise.step is None else noise.step) for w in chunk]
        run_kernel("sample", jobs, Constants(λ, δ, sign=noise.sign), noise.seed, noise.draw)

    def exchange(self, chunk: list[Weight]) -> None:
        """The mean back into the parameters, the sample into the buffers."""
        jobs = [_job(w) for w in chunk]
        for w in chunk:
            w.held = False
        run_kernel("swap", jobs, Constants())

    def update(
        self, chunk: list[Weight], rates: list[float], samples: int, scale: float, **numbers: Any
    ) -> None:
        """Lines 2 to 6 after one sample; from sums, in torch."""
        if chunk[0].sums is not None:
            super().update(chunk, rates, samples, scale, **numbers)
            return
        grads = [w.gradient() for w in chunk]
        for i, (w, grad) in enumerate(zip(chunk, grads, strict=True)):
            if grad.stride() != w.local.stride() or grad.dtype != torch.float32:
                grads[i] = torch.empty_like(w.local).copy_(grad)
        debias = numbers["debias"]
        jobs = [_job(w, grad, debias) for w, grad in zip(chunk, grads, strict=True)]
        λ, δ, β1, β2 = (numbers[name] for name in ("λ", "δ", "β1", "β2"))
        for w in chunk:
            w.held = False
        for rate in set(rates):
            own = [job for job, of in zip(jobs, rates, strict=True) if of == rate]
            bounds = numbers["α"] * rate, numbers["radius"], scale / samples, 1.0
            constants = Constants(λ, δ, β1, 1.0 - β1, 1.0 - β2, *bounds, numbers["squared"])
            run_kernel("update", own, constants)

    def limit(self, device: torch.device) -> float:
        """One call for all."""
        return math.inf


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


def _job(
    w: Weight, grad: Tensor | None = None, debias: float = 1.0, step: int = 0
) -> tuple[Any, ...]:
    """One tensor's addresses as things are now, sizes and the name of its noise, in the order of the C struct."""
    mean, sample = (w.buffer, w.local) if w.held else (w.local, w.buffer)
    tensors = w.local, mean, sample, grad, w.momentum, w.hess
    addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    return (*addresses, w.local.numel(), w.offset or 0, w.stream, step, debias)


def run_kernel(
    name: Literal["sample", "swap", "update"],
    jobs: list[tuple[Any, ...]],
    constants: Constants,
    seed: int = 0,
    draw: int = 0,
) -> None:
    """Run a kernel over the jobs, on several threads if it pays."""
    call = getattr(_kernels, name)
    size = sum(job[6] for job in jobs)
    in_parts(lambda part, parts: call(jobs, seed, draw, part, parts, constants), size)


def fits_kernels(w: Weight) -> bool:
    """Whether the kernels can compute with a weight: float32 on the CPU, all in the same memory layout."""
    form = w.local.shape, w.local.stride(), torch.float32, torch.device("cpu")
    tensors = w.local, w.momentum, w.hess, w.buffer
    same = all((t.shape, t.stride(), t.dtype, t.device) == form for t in tensors)
    return randomness.KERNELS and same and w.offset is not None


def as_tuple(values: Any) -> tuple[Tensor, ...]:
    """What some lines return, also if it is one tensor."""
    return values if isinstance(values, tuple) else (values,)


def on_cpu(device: torch.device) -> bool:
    """Whether memory is what a computation waits for, not the number of its calls."""
    return device.type == "cpu"


def spread_rate(chunk: list[Weight], α: float, rates: list[float]) -> float | Tensor:
    """α times each weight's rate: one number, or one per element where they differ."""
    if len(set(rates)) == 1:
        return α * rates[0]
    like, sizes = chunk[0].hess, [w.local.numel() for w in chunk]
    row = torch.tensor([α * rate for rate in rates], dtype=like.dtype, device=like.device)
    return row.repeat_interleave(torch.tensor(sizes, dtype=torch.int64, device=like.device))


def draw_noise(chunk: list[Weight], noise: Noise) -> Tensor:
    """Standard normals for the elements of a chunk.

    On the CPU every weight's noise has its own name. Elsewhere there is one call for the whole chunk, named by its
    first weight; a rank with shards draws the noise of the whole tensors and keeps its own part.
    """
    steps = [w.state["step"] if noise.step is None else noise.step for w in chunk]
    name = {"seed": noise.seed, "draw": noise.draw}
    if on_cpu(chunk[0].local.device):
        drawn = [
            noise_of(w.param, w.momentum, stream=w.stream, step=step, sign=noise.sign, **name)
            for w, step in zip(chunk, steps, strict=True)
        ]
        return flatten(drawn)
    sizes, like = [w.param.numel() for w in chunk], chunk[0].hess
    words = noise.seed, chunk[0].stream, max(steps), noise.draw
    row = torch_normal(sum(sizes), like.device, *words).to(like.dtype)
    if any(w.local.numel() != size for w, size in zip(chunk, sizes, strict=True)):
        parts = zip(chunk, torch.split(row, sizes), strict=True)
        row = torch.cat([cut(w.param, part).reshape(-1) for w, part in parts])
    return row if noise.sign == 1.0 else row.mul_(noise.sign)
