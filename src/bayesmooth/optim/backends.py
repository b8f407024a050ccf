"""Who computes IVON's rule: plain torch, compiled torch or the C kernels, behind the same `sample` and `update`.

A chunk is a list of weights of one group, device and dtype. Torch packs their tensors into vectors, computes, and
unpacks the results; a tensor too large for the cache goes through in slices. The kernels need one pass over memory.
"""

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bayesmooth import randomness
from bayesmooth.optim.groups import dense
from bayesmooth.optim.sharding import cut, noise_of, shard
from bayesmooth.posterior import extent
from bayesmooth.randomness import (
    ROUNDING,
    Target,
    fill,
    in_parts,
    name_elements,
    round_randomly,
    torch_normal,
)

try:
    from bayesmooth import _kernels
except ImportError:  # installed without a compiler
    _kernels = None  # type: ignore[assignment]

# Elements computed together in plain torch on the CPU: its temporaries stay in the cache.
CHUNK_IN_CACHE = 1 << 16
CHUNK_COMPILED = 1 << 18  # in compiled code on the CPU, which has no temporaries
CHUNK = 1 << 24  # elsewhere, where the number of calls is what counts

Lines = Callable[..., Any]
Columns = list[list[Tensor]]


class Rule(NamedTuple):
    """The lines of an algorithm, on vectors; `ivon.py` has them."""

    sigma: Callable[..., Tensor]
    sample: Callable[..., Tensor]
    product: Callable[..., Tensor]
    update: Callable[..., tuple[Tensor, ...]]


class Noise(NamedTuple):
    """The name of a chunk's draw; with a weight's position it names the weight's noise."""

    seed: int
    draw: int
    steps: list[int]  # one per weight of the chunk
    sign: float = 1.0


@dataclass(slots=True, eq=False)
class Weight:
    """One parameter with all that an update of it needs; tensors are this rank's shards.

    The parameter's memory holds the mean, and a buffer is free; while a sample is in the parameter, the mean is in the
    buffer. `mean` and `sample` say where the two are. Parameters below float32 have a mean of their own, because
    updates would be lost to rounding, and for them the buffer holds the sample.
    """

    param: Tensor  # the user's
    local: Tensor  # its memory
    group: dict[str, Any]
    state: dict[str, Any]
    momentum: Tensor
    hess: Tensor
    mean: Tensor
    sample: Tensor
    stream: int  # position among all parameters: names the noise
    offset: int | None  # of the shard in the whole tensor; None where it is not one piece of it
    backend: "Torch"
    narrow: bool  # the parameter is below float32
    held: bool = False  # the parameter holds a sample
    before: tuple[Tensor, int] | None = None  # gradient from before the sample, and its version
    pending: tuple[Tensor, int] | None = None  # gradient of the sample, and its version then
    sums: tuple[Tensor, Tensor] | None = None  # over earlier samples: of ĝ, and of ĝ·(θ − m) or ĝ²

    @property
    def name(self) -> str:
        """The parameter's name, or its position."""
        at = next(i for i, param in enumerate(self.group["params"]) if param is self.param)
        return str((self.group.get("param_names") or {at: f"#{self.stream}"})[at])

    @property
    def replaced(self) -> bool:
        """Whether the parameter got other memory since (`p.data = …`, `model.double()`)."""
        param = self.param
        return param.data_ptr() != self.local.data_ptr() and not hasattr(param, "to_local")

    @property
    def curvature(self) -> Tensor:
        """h, in float32 at least."""
        return self.hess.to(self.mean.dtype)

    def std(self) -> Tensor:
        """σ of the shard."""
        λ, δ = float(self.group["ess"]), float(self.group["weight_decay"])
        return self.backend.rule.sigma(self.curvature, λ, δ)

    def gradient(self) -> Tensor:
        """The pending gradient of the shard."""
        assert self.pending is not None
        grad = self.pending[0]
        if grad.layout is not torch.strided:
            dense(grad, self.param, self.group)
        return shard(grad) if hasattr(grad, "to_local") else grad


def note_sample(chunk: Iterable[Weight], *, held: bool) -> None:
    """What the parameters hold. Set before the kernel runs; Ctrl-C is raised after it."""
    for w in chunk:
        if w.held != held and not w.narrow:
            w.mean, w.sample = w.sample, w.mean
        w.held = held


def compute(lines: Lines, into: list[Tensor], *args: Any, **numbers: Any) -> None:
    """The results of the lines into these vectors."""
    values = lines(*args, **numbers)
    for target, value in zip(into, values if isinstance(values, tuple) else (values,), strict=True):
        target.copy_(value)


class Torch:
    """Plain torch."""

    bounded = True  # chunks are
    compute = staticmethod(compute)

    def __init__(self, rule: Rule) -> None:
        def update_from_sample(
            m: Tensor, g: Tensor, h: Tensor, ĝ: Tensor, θ: Tensor, **n: Any
        ) -> Any:
            return rule.update(m, g, h, ĝ, rule.product(ĝ, θ, m, n["squared"]), **n)

        def accumulate(
            Σĝ: Tensor, ΣĝΔ: Tensor, ĝ: Tensor, θ: Tensor, m: Tensor, squared: bool
        ) -> Any:
            return Σĝ + ĝ, ΣĝΔ + rule.product(ĝ, θ, m, squared)

        self.rule, self.update_from_sample, self.accumulate = rule, update_from_sample, accumulate

    def sample(self, chunk: list[Weight], noise: Noise, λ: float, δ: float) -> None:
        """θ into the parameters, m into the buffers (of narrow parameters: θ before rounding)."""
        e = draw_noise(chunk, noise)
        if not chunk[0].narrow:
            torch._foreach_copy_([w.sample for w in chunk], [w.local for w in chunk])
        note_sample(chunk, held=True)
        self._compute_samples(chunk, e, λ, δ)
        if chunk[0].narrow:
            torch._foreach_copy_([w.local for w in chunk], [w.sample for w in chunk])

    def _compute_samples(self, chunk: list[Weight], e: Tensor, λ: float, δ: float) -> None:
        columns = [[w.mean for w in chunk], [w.hess for w in chunk]]
        self._run(self.rule.sample, chunk, columns, [[w.sample for w in chunk]], e, λ=λ, δ=δ)

    def exchange(self, chunk: list[Weight]) -> None:
        """The mean back into the parameters; the sample into the buffers, unless it is there."""
        locals_, means = [w.local for w in chunk], [w.mean for w in chunk]
        # Copies of a list of tensors, in one call.
        samples = [] if chunk[0].narrow else list(torch._foreach_mul(locals_, 1))
        torch._foreach_copy_(locals_, means)
        note_sample(chunk, held=False)
        if samples:
            torch._foreach_copy_(means, samples)

    def fold(self, chunk: list[Weight]) -> None:
        """Pending gradients into the sums of ĝ and of ĝ·(θ − m), or ĝ²."""
        sums = [list(column) for column in zip(*(w.sums for w in chunk if w.sums), strict=True)]
        columns = [self._gradients(chunk), [w.sample for w in chunk], [w.mean for w in chunk]]
        squared = chunk[0].group["hess_approx"] == "gradsq"
        self._run(self.accumulate, chunk, sums + columns, sums, squared=squared)
        for w in chunk:
            w.pending = None

    def update(self, chunk: list[Weight], samples: int, scale: float, **numbers: Any) -> None:
        """Lines 2 to 6, after one sample or from the sums over several; gradients are multiplied by `scale`."""
        if sums := [w.sums for w in chunk if w.sums is not None]:
            lines, columns = self.rule.update, [[s for s, _ in sums], [s for _, s in sums]]
            torch._foreach_mul_(columns[0], scale / samples)
            torch._foreach_mul_(columns[1], (scale**2 if numbers["squared"] else scale) / samples)
        else:
            lines, grads = self.update_from_sample, self._gradients(chunk)
            if scale != samples:
                grads = [
                    grad.to(w.mean.dtype) * (scale / samples)
                    for w, grad in zip(chunk, grads, strict=True)
                ]
            columns = [grads, [w.sample for w in chunk]]
        state = [[w.momentum for w in chunk], [w.hess for w in chunk]]
        new = [w.mean if w.narrow else w.local for w in chunk]  # where θ may be still
        self._run(
            lines, chunk, [[w.mean for w in chunk], *state, *columns], [new, *state], **numbers
        )
        note_sample(chunk, held=False)
        if chunk[0].narrow:
            torch._foreach_copy_([w.local for w in chunk], new)

    def limit(self, device: torch.device) -> int:
        """Elements to compute together."""
        return CHUNK_IN_CACHE if device.type == "cpu" else CHUNK

    def _gradients(self, chunk: list[Weight]) -> list[Tensor]:
        return [in_layout_of(w.hess, w.gradient()) for w in chunk]

    def _run(
        self,
        lines: Lines,
        chunk: list[Weight],
        read: Columns,
        write: Columns,
        *rows: Tensor,
        **numbers: Any,
    ) -> None:
        """The lines over columns of one tensor per weight, and `rows`, which are vectors; results go to `write`."""
        at, limit, dtype = 0, self.limit(chunk[0].hess.device), chunk[0].mean.dtype
        for like, *columns in tiles([w.hess for w in chunk], limit, *read, *write):
            sources, targets = columns[: len(read)], columns[len(read) :]
            whole = all(is_vector(column, dtype) for column in columns)
            vectors = [column[0] for column in sources] if whole else pack(like, sources, dtype)
            into = [column[0] for column in targets] if whole else vectors[: len(targets)]
            size = vectors[0].numel()
            self.compute(lines, into, *vectors, *(row[at : at + size] for row in rows), **numbers)
            if not whole:
                self._round(chunk, at, into, targets)
                unpack(like, into, targets)
            at += size

    def _round(self, chunk: list[Weight], at: int, rows: list[Tensor], targets: Columns) -> None:
        """The rows that go to a state of 16 bits, rounded at random: to the nearest, h would never change."""
        narrow = [row for row, to in zip(rows, targets, strict=True) if to[0].dtype.itemsize == 2]
        if narrow:
            self.compute(round_randomly, narrow, *narrow, list_elements(chunk, at, len(narrow[0])))


class Compiled(Torch):
    """The same, compiled by torch where this machine can."""

    works = True  # until it fails

    def limit(self, device: torch.device) -> int:
        """Elements to compute together."""
        return CHUNK_COMPILED if device.type == "cpu" else CHUNK

    @staticmethod
    def compute(lines: Lines, into: list[Tensor], *args: Any, **numbers: Any) -> None:
        """The results of the lines into these vectors."""
        if not Compiled.works:
            compute(lines, into, *args, **numbers)
            return
        # A tensor may change without compiling again, a float may not.
        changing = numbers.keys() & {"α", "debias"}
        tensors = {name: args[0].new_tensor(numbers[name], device="cpu") for name in changing}
        try:
            compile_lines(lines)(into, *args, **numbers | tensors)
        except Exception as problem:
            Compiled.works = False
            reason = next(iter(str(problem).strip().splitlines()), "no reason given")
            warnings.warn(
                f"IVON's update could not be compiled here ({type(problem).__name__}: {reason}); torch computes it "
                "uncompiled, more slowly; fused=False silences this",
                stacklevel=2,
            )
            compute(lines, into, *args, **numbers)


@functools.cache
def compile_lines(lines: Lines) -> Lines:
    """Compiled once for all chunks."""
    return torch.compile(functools.partial(compute, lines), dynamic=True)


class Kernels(Torch):
    """The C kernels, for dense float32 weights on the CPU; they repeat the rule, and a test holds the two equal."""

    bounded = False

    def sample(self, chunk: list[Weight], noise: Noise, λ: float, δ: float) -> None:
        """θ into the parameters, m into the buffers."""
        note_sample(chunk, held=True)
        jobs = [_job(w, step=step) for w, step in zip(chunk, noise.steps, strict=True)]
        run_kernel("sample", jobs, Constants(λ, δ, sign=noise.sign), noise.seed, noise.draw)

    def exchange(self, chunk: list[Weight]) -> None:
        """The mean back into the parameters, the sample into the buffers."""
        jobs = [_job(w) for w in chunk]
        note_sample(chunk, held=False)
        run_kernel("swap", jobs, Constants())

    def update(self, chunk: list[Weight], samples: int, scale: float, **numbers: Any) -> None:
        """Lines 2 to 6 after one sample; from sums, in torch."""
        if chunk[0].sums is not None:
            super().update(chunk, samples, scale, **numbers)
            return
        grads = [in_layout_of(w.local, w.gradient().to(torch.float32)) for w in chunk]
        jobs = [_job(w, grad, numbers["debias"]) for w, grad in zip(chunk, grads, strict=True)]
        λ, δ, β1, β2 = (numbers[name] for name in ("λ", "δ", "β1", "β2"))
        bounds = numbers["α"], numbers["radius"], scale / samples, 1.0, numbers["squared"]
        note_sample(chunk, held=False)
        run_kernel("update", jobs, Constants(λ, δ, β1, 1.0 - β1, 1.0 - β2, *bounds))


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
    tensors = w.local, w.mean, w.sample, grad, w.momentum, w.hess
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


def fits_kernels(local: Tensor, *others: Tensor) -> bool:
    """Whether the kernels can compute with these tensors: float32 on the CPU, in the same memory layout."""
    form = local.shape, local.stride(), torch.float32, torch.device("cpu")
    return randomness.KERNELS and all(
        (t.shape, t.stride(), t.dtype, t.device) == form for t in (local, *others)
    )


# ---- many weights as one vector ----


def split_weights(
    weights: Iterable[Weight], key: Callable[[Weight], object] = lambda w: None
) -> list[list[Weight]]:
    """Chunks: weights of one group, backend, device, dtype and `key`; for torch, of bounded size.

    Sizes are those of whole parameters, so that the chunks are the same however a model is sharded.
    """
    made: list[list[Weight]] = []
    open_: dict[object, tuple[list[Weight], int]] = {}
    for w in weights:
        device = w.local.device
        of = id(w.group), id(w.backend), device, w.mean.dtype, w.narrow, key(w)
        chunk, size = open_.get(of, ([], 0))
        more = w.param.numel()
        bounded = w.backend.bounded or w.sums is not None
        if not chunk or (bounded and size + more > w.backend.limit(device)):
            chunk, size = [], 0
            made.append(chunk)
        chunk.append(w)
        open_[of] = chunk, size + more
    return made


def tiles(like: list[Tensor], limit: int, *columns: list[Tensor]) -> Iterator[Columns]:
    """`like` and the columns as they are; those of one weight that is too large for the cache, in slices."""
    first, firsts = like[0], [column[0] for column in columns]
    splits = first.device.type == "cpu" and first.numel() > limit and extent(first) == first.numel()
    if not splits or any(tensor.stride() != first.stride() for tensor in firsts):
        yield [like, *columns]
        return
    every = {id(t): t.as_strided((first.numel(),), (1,)) for t in (first, *firsts)}
    # Once per tensor: a compiled function must see that two columns are the same.
    pieces = {key: torch.split(vector, limit) for key, vector in every.items()}
    for slices in zip(*(pieces[id(t)] for t in (first, *firsts)), strict=True):
        yield [[piece] for piece in slices]


def in_layout_of(like: Tensor, tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy in the memory layout of `like`."""
    same = tensor.stride() == like.stride()
    return tensor if same else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def is_vector(column: list[Tensor], dtype: torch.dtype) -> bool:
    """Whether the column can be computed with as it is."""
    return len(column) == 1 and column[0].ndim == 1 and column[0].dtype == dtype


def pack(like: list[Tensor], columns: Columns, dtype: torch.dtype) -> list[Tensor]:
    """One vector per column, in the memory layout of `like`."""
    size = sum(tensor.numel() for tensor in like)
    rows = torch.empty(len(columns), size, dtype=dtype, device=like[0].device).unbind()
    torch._foreach_copy_(
        [view for row in rows for view in split_row(row, like)], [*chain(*columns)]
    )
    return list(rows)


def unpack(like: list[Tensor], rows: list[Tensor], columns: Columns) -> None:
    """Each vector into its column."""
    views = [view for row in rows for view in split_row(row, like)]
    torch._foreach_copy_([*chain(*columns)], views)


def split_row(row: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Consecutive pieces of a vector, in the shapes and memory layouts of these tensors."""
    if all(tensor.is_contiguous() for tensor in like):
        return list(torch._C._nn.unflatten_dense_tensors(row, like))
    views = []
    for tensor, piece in zip(like, torch.split(row, [t.numel() for t in like]), strict=True):
        filled = extent(tensor) == tensor.numel()
        views.append(
            piece.as_strided(tensor.shape, tensor.stride()) if filled else piece.view(tensor.shape)
        )
    return views


def list_elements(chunk: list[Weight], at: int, size: int) -> Tensor:
    """A name for the rounding of each element in this step: of a chunk, or of `size` elements of its only weight."""
    names = []
    for w in chunk:
        count, device = size if len(chunk) == 1 else w.local.numel(), w.local.device
        name = w.group["seed"], w.stream, w.state["step"], ROUNDING
        if w.offset is not None:
            names.append(name_elements(count, device, w.offset + at, *name))
        else:  # the shard is not one piece of its tensor
            whole = name_elements(w.param.numel(), device, 0, *name)
            names.append(cut(w.param, whole).reshape(-1)[at : at + count])
    return torch.cat(names)


def draw_noise(chunk: list[Weight], noise: Noise) -> Tensor:
    """Standard normals for a chunk, as `pack` orders its elements.

    On the CPU every weight's noise has its own name. Elsewhere there is one call for the whole chunk, named by its
    first weight; a rank with shards draws the noise of the whole tensors and keeps its own part.
    """
    like = [w.momentum for w in chunk]
    dtype, device = chunk[0].mean.dtype, like[0].device
    if device.type == "cpu" and randomness.KERNELS:
        row = torch.empty(sum(t.numel() for t in like), dtype=torch.float32, device=device)
        targets, at = [], row.data_ptr()
        for w, step in zip(chunk, noise.steps, strict=True):
            if w.offset is not None:
                targets.append(Target(at, w.local.numel(), w.offset, w.stream, step))
            at += 4 * w.local.numel()
        fill(targets, noise.seed, noise.draw, noise.sign)
        if len(targets) < len(chunk):
            _fill_scattered(row, chunk, noise)
        return row.to(dtype)
    sizes = [w.param.numel() for w in chunk]
    name = noise.seed, chunk[0].stream, max(noise.steps), noise.draw
    row = torch_normal(sum(sizes), device, *name).to(dtype)
    if any(w.local.numel() != size for w, size in zip(chunk, sizes, strict=True)):
        parts = zip(chunk, torch.split(row, sizes), strict=True)
        row = torch.cat([cut(w.param, part).reshape(-1) for w, part in parts])
    return row if noise.sign == 1.0 else row.mul_(noise.sign)


def _fill_scattered(row: Tensor, chunk: list[Weight], noise: Noise) -> None:
    """The noise of shards that are not one piece of their tensor."""
    views = split_row(row, [w.momentum for w in chunk])
    for w, view, step in zip(chunk, views, noise.steps, strict=True):
        if w.offset is None:
            name = {"seed": noise.seed, "stream": w.stream, "step": step, "draw": noise.draw}
            view.copy_(noise_of(w.param, view, sign=noise.sign, **name))
