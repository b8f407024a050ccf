"""What IVON keeps about each weight, and the life of its samples between two steps.

A parameter holds its mean, or a sample; then its buffer holds the mean. When a training context ends the two are
exchanged: the caller sees the mean, and the update still finds the sample. So the state is three tensors of the
parameter's size (buffer, momentum, Hessian); several samples need two sums as well. Parameters below float32 have a
fourth, their mean in float32, because updates would be lost to rounding: for them the buffer holds the sample.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bayesmooth import randomness
from bayesmooth.errors import InputError
from bayesmooth.optim import kernels
from bayesmooth.optim.parameters import dense, extent, global_norm
from bayesmooth.optim.sharding import (
    average_over_ranks,
    cut,
    mean_over_ranks,
    noise_of,
    on_any_rank,
    shard,
    start,
)
from bayesmooth.randomness import Target, fill, torch_normal

# Elements computed together in plain torch on the CPU: its temporaries stay in the cache.
CHUNK_IN_CACHE = 1 << 16
CHUNK_COMPILED = 1 << 18  # in compiled code on the CPU, which has no temporaries
CHUNK = 1 << 24  # elsewhere, where the number of calls is what counts


@dataclass(slots=True, eq=False)
class Weight:
    """One parameter with all that an update of it needs; tensors are this rank's shards."""

    param: Tensor  # the user's
    local: Tensor  # its memory
    group: dict[str, Any]
    state: dict[str, Any]
    momentum: Tensor
    hess: Tensor
    master: Tensor | None  # the mean in float32, for parameters below it
    buffer: Tensor
    stream: int  # position among all parameters: names the noise
    offset: int | None  # of the shard in the whole tensor; None where it is not one piece of it
    path: str  # who computes: "kernels", "compile" or "torch"
    sampled: bool = False  # the parameter holds a sample
    grad: Tensor | None = None  # of the pending sample
    version: int = 0  # of that gradient when its context ended
    earlier: tuple[Tensor, int] | None = None  # gradient from before the sample, and its version
    sums: tuple[Tensor, Tensor] | None = None  # over folded samples: of ĝ, and of ĝ·(θ − m) or ĝ²

    @property
    def name(self) -> str:
        """The parameter's name, or its position."""
        at = next(i for i, param in enumerate(self.group["params"]) if param is self.param)
        return str((self.group.get("param_names") or {at: f"#{self.stream}"})[at])

    @property
    def mean(self) -> Tensor:
        """Where m is now."""
        if self.master is not None:
            return self.master
        return self.buffer if self.sampled else self.local

    @property
    def sample(self) -> Tensor:
        """Where θ is now: in the parameter during its context, in the buffer afterwards."""
        return self.local if self.sampled and self.master is None else self.buffer

    @property
    def replaced(self) -> bool:
        """Whether the parameter got other memory since (`p.data = …`, `model.double()`)."""
        return self.param.data_ptr() != self.local.data_ptr() and not hasattr(
            self.param, "to_local"
        )

    @property
    def mixed(self) -> bool:
        """Whether the sample's gradient was added to an earlier one."""
        return (
            self.earlier is not None
            and self.grad is self.earlier[0]
            and self.version > self.earlier[1]
        )

    def std(self) -> Tensor:
        """σ = 1/√(λ(h + δ)) of the shard."""
        ess, decay = float(self.group["ess"]), float(self.group["weight_decay"])
        return (ess * (self.hess + decay)).rsqrt()

    def job(self, step: int = 0, grad: Tensor | None = None, debias: float = 1.0) -> kernels.Job:
        """The addresses for the kernels, as things are now."""
        return kernels.Job(
            self.local.data_ptr(),
            self.mean.data_ptr(),
            self.sample.data_ptr(),
            grad.data_ptr() if grad is not None else 0,
            self.momentum.data_ptr(),
            self.hess.data_ptr(),
            self.local.numel(),
            self.offset or 0,
            self.stream,
            step,
            debias,
        )

    def gradient(self) -> Tensor:
        """The pending gradient of the shard."""
        assert self.grad is not None
        return shard(dense(self.grad, self.param, self.group))


def collect(
    groups: list[dict[str, Any]], state: Any, buffers: dict[Tensor, Tensor]
) -> list[Weight]:
    """Every parameter that takes gradients. Frozen ones are never touched."""
    every = [(group, param) for group in groups for param in group["params"]]
    return [
        _weight(param, group, state[param], buffers, stream)
        for stream, (group, param) in enumerate(every)
        if param.requires_grad
    ]


def _weight(
    param: Tensor,
    group: dict[str, Any],
    state: dict[str, Any],
    buffers: dict[Tensor, Tensor],
    stream: int,
) -> Weight:
    if not state or state["momentum"].dtype != param.dtype or "mean" in state:
        _prepare(param, group, state)
    local, momentum, hess = shard(param.data), shard(state["momentum"]), shard(state["hess"])
    buffer = buffers.get(param)
    if buffer is None or not kernels.alike(buffer, momentum):
        buffer = buffers[param] = torch.empty_like(momentum)
    master, offset = shard(state["mean"]) if "mean" in state else None, start(param)
    fits = offset is not None and kernels.fit(local, momentum, hess, buffer)
    path = _path(group["fused"], fits, local)
    return Weight(param, local, group, state, momentum, hess, master, buffer, stream, offset, path)


def _path(fused: bool | str | None, fits: bool, local: Tensor) -> str:
    """Who computes this weight's sample and update."""
    if fused is True and not fits:
        raise InputError(
            "fused=True: the kernels need dense float32 weights on the CPU, and a compiler when bayesmooth was "
            f"installed; found {local.dtype} on {local.device}; use fused=None"
        )
    if fits and fused in (None, True):
        return "kernels"
    accelerated = fused is None and local.device.type != "cpu"
    return "compile" if fused == "compile" or accelerated else "torch"


@torch.inference_mode(False)  # an evaluation draw may be the first to come here; training follows
def _prepare(param: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    """State where there is none, in float32 at least; state that fits, where the parameter's dtype has changed."""
    wide = torch.promote_types(param.dtype, torch.float32)
    if not state:
        state["step"] = 0
        state["momentum"] = torch.zeros_like(param, dtype=wide, requires_grad=False)
        state["hess"] = torch.full_like(param, group["hess_init"], dtype=wide, requires_grad=False)
    if state["momentum"].dtype != wide:
        state["momentum"], state["hess"] = state["momentum"].to(wide), state["hess"].to(wide)
    if param.dtype == wide:
        state.pop("mean", None)
        return
    mean = state.setdefault("mean", param.detach().to(wide))
    stale = param.detach() != mean.to(param.dtype)  # somebody has set the parameter: believe it
    mean.copy_(torch.where(stale, param.detach().to(wide), mean))


# ---- many weights as one vector ----


def chunks(
    weights: Iterable[Weight], key: Callable[[Weight], object] = lambda w: None
) -> list[list[Weight]]:
    """Lists of weights to compute together: of one group, device, dtype and `key`; for torch, of bounded size.

    Sizes are those of whole parameters, so that the lists are the same however
    a model is sharded.
    """
    made: list[list[Weight]] = []
    open_: dict[object, tuple[list[Weight], int]] = {}
    for w in weights:
        of = id(w.group), w.path, w.local.device, w.momentum.dtype, w.master is None, key(w)
        chunk, size = open_.get(of, ([], 0))
        more = w.param.numel()
        unbounded = w.path == "kernels" and w.sums is None
        if not chunk or (size + more > limit(w) and not unbounded):
            chunk, size = [], 0
            made.append(chunk)
        chunk.append(w)
        open_[of] = chunk, size + more
    return made


def limit(w: Weight) -> int:
    """Elements to compute together in torch."""
    if w.local.device.type != "cpu":
        return CHUNK
    return CHUNK_COMPILED if w.path == "compile" else CHUNK_IN_CACHE


def tiles(chunk: list[Weight], *columns: Sequence[Tensor]) -> Iterator[list[list[Tensor]]]:
    """The columns, each with one tensor per weight; those of one weight that is too large for the cache, in slices."""
    firsts, size = [column[0] for column in columns], limit(chunk[0])
    like = firsts[0]
    splits = like.device.type == "cpu" and like.numel() > size and extent(like) == like.numel()
    if not splits or any(tensor.stride() != like.stride() for tensor in firsts):
        yield [list(column) for column in columns]
        return
    vectors = [tensor.as_strided((like.numel(),), (1,)) for tensor in firsts]
    for slices in zip(*(torch.split(vector, size) for vector in vectors), strict=True):
        yield [[piece] for piece in slices]


def in_layout_of(like: Tensor, tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy in the memory layout of `like`."""
    same = tensor.stride() == like.stride()
    return tensor if same else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def gather(*columns: list[Tensor]) -> Sequence[Tensor]:
    """One vector per column, in the memory layout and dtype of the first; of a single slice, the slice itself."""
    like = columns[0]
    if len(like) == 1 and all(c[0].ndim == 1 and c[0].dtype == like[0].dtype for c in columns):
        return [c[0] for c in columns]
    size = sum(tensor.numel() for tensor in like)
    rows = torch.empty(len(columns), size, dtype=like[0].dtype, device=like[0].device).unbind()
    torch._foreach_copy_([view for row in rows for view in _views(row, like)], [*chain(*columns)])
    return rows


def scatter(like: list[Tensor], *pairs: tuple[Tensor, list[Tensor]]) -> None:
    """Each vector back into its column, unless it is a slice that never left it."""
    away = [(row, column) for row, column in pairs if column[0] is not row]
    if away:
        views = [view for row, _ in away for view in _views(row, like)]
        torch._foreach_copy_([tensor for _, column in away for tensor in column], views)


def _views(row: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Consecutive pieces of a vector, in the shapes and memory layouts of these tensors."""
    if all(tensor.is_contiguous() for tensor in like):
        return list(torch._C._nn.unflatten_dense_tensors(row, like))
    views, at = [], 0
    for tensor in like:
        piece = row[at : at + tensor.numel()]
        filled = extent(tensor) == tensor.numel()
        views.append(
            piece.as_strided(tensor.shape, tensor.stride()) if filled else piece.view(tensor.shape)
        )
        at += tensor.numel()
    return views


def noise(weights: list[Weight], steps: list[int], draw: int, sign: float) -> Tensor:
    """Standard normals for a chunk, as `gather` orders its elements.

    On the CPU every weight's noise has its own name. Elsewhere there is one call for the whole chunk, named by its
    first weight; a rank with shards draws the noise of the whole tensors and keeps its own part.
    """
    first, seed = weights[0], weights[0].group["seed"]
    like = [w.momentum for w in weights]
    dtype, device = like[0].dtype, like[0].device
    if device.type == "cpu" and randomness.KERNELS:
        row = torch.empty(sum(tensor.numel() for tensor in like))
        targets, at = [], row.data_ptr()
        for w, step in zip(weights, steps, strict=True):
            if w.offset is not None:
                targets.append(Target(at, w.local.numel(), w.offset, w.stream, step))
            at += 4 * w.local.numel()
        fill(targets, seed, draw, sign)
        _fill_pieces(row, weights, steps, draw, sign)
        return row.to(dtype)
    sizes = [w.param.numel() for w in weights]
    row = torch_normal(sum(sizes), device, seed, first.stream, max(steps), draw).to(dtype)
    if any(w.local.numel() != size for w, size in zip(weights, sizes, strict=True)):
        parts = zip(weights, torch.split(row, sizes), strict=True)
        row = torch.cat([cut(w.param, part).reshape(-1) for w, part in parts])
    return row if sign == 1.0 else row.mul_(sign)


def _fill_pieces(
    row: Tensor, weights: list[Weight], steps: list[int], draw: int, sign: float
) -> None:
    """The noise of shards that are not one piece of their tensor."""
    if all(w.offset is not None for w in weights):
        return
    views = _views(row, [w.momentum for w in weights])
    for w, step, view in zip(weights, steps, views, strict=True):
        if w.offset is None:
            name = {"seed": w.group["seed"], "stream": w.stream, "step": step, "draw": draw}
            view.copy_(noise_of(w.param, view, sign=sign, **name))


# ---- samples ----


def restore(weights: list[Weight], *, keep: bool) -> list[Weight]:
    """The mean back into the parameters, bit for bit; `keep` leaves the sample in the buffers.

    Returns the weights whose parameters got other memory while they held the sample: those hold the mean in it now, if
    it has the same shape, and their sample is lost.
    """
    sampled = [w for w in weights if w.sampled]
    replaced = [w for w in sampled if w.replaced]
    swapped = [w for w in sampled if keep and w.path == "kernels"]
    if swapped:
        jobs = [w.job() for w in swapped]
        mark(swapped, sampled=False)
        kernels.run("swap", jobs, kernels.Rule())
    for chunk in chunks(w for w in sampled if w.sampled):
        locals_, buffers = [w.local for w in chunk], [w.buffer for w in chunk]
        if chunk[0].master is not None:
            torch._foreach_copy_(locals_, [w.mean for w in chunk])
        elif keep:
            samples = torch._foreach_mul(locals_, 1)  # the shortest way to a list of copies
            torch._foreach_copy_(locals_, buffers)
            mark(chunk, sampled=False)
            torch._foreach_copy_(buffers, samples)
        else:
            torch._foreach_copy_(locals_, buffers)
        mark(chunk, sampled=False)
    for w in replaced:
        if w.param.shape == w.local.shape:
            w.param.data.copy_(w.mean)
    changed(sampled)
    return replaced


def mark(weights: list[Weight], *, sampled: bool) -> None:
    """What the parameters hold; said before a kernel runs: Ctrl-C meanwhile is raised when it is through."""
    for w in weights:
        w.sampled = sampled


def changed(weights: list[Weight]) -> None:
    """Memory was written behind autograd's back: a backward pass through an older forward must notice."""
    torch.autograd.graph.increment_version([w.param for w in weights])


class Samples:
    """One or more draws around the same mean, on their way to a step.

    The gradients of the last one are pending: they stay in `.grad`, where the caller may clip or unscale them. Those of
    earlier ones are folded into sums.
    """

    def __init__(self, weights: list[Weight], sync: bool) -> None:
        self.weights = weights
        self.sync = sync  # gradients are averaged over ranks
        self.count = 0
        self.pending = False
        self.norm = 0.0  # of the pending gradients, when their context ended
        self.each_clipped = False

    def begin(self, fresh: bool, zeros: dict[Tensor, int]) -> int:
        """Number of the next draw; or, not `fresh`, of the last one, whose gradients then add up.

        `zeros` has the versions at which gradients were set to zero.
        """
        if self.pending and fresh:
            self.fold()
        if not self.pending:
            for w in self.weights:
                grad, w.earlier = w.param.grad, None
                if grad is not None and zeros.get(w.param) != grad._version:
                    w.earlier = grad, grad._version
        self.count += fresh or not self.count
        return self.count - 1

    def hold(self) -> None:
        """The draw is over, and pending with the gradients that it has got; without any it does not count."""
        for w in self.weights:
            w.grad = w.param.grad
            w.version = w.grad._version if w.grad is not None else 0
        gradients = self.gradients()
        if any(w.mixed for w in self.weights):
            raise InputError(
                "gradients at a sample were added to gradients from before it, which were taken at the mean or at "
                "another sample; call optimizer.zero_grad() first (in the closure, if there is one); to accumulate "
                "micro-batches, compute each inside `with optimizer.sampled_params(train=True, fresh=False):`"
            )
        self.pending = bool(gradients) or self.sync
        self.count -= not self.pending
        if self.count > 1:
            self.norm = global_norm(gradients)

    def forget_earlier(self) -> None:
        """Gradients from before the sample have been cleared."""
        for w in self.weights:
            w.earlier = None

    def fold(self) -> None:
        """The pending sample into the average."""
        for w in self.weights:
            now = w.param.grad
            if now is not None:  # else the caller has cleared it, and the reference is what is left
                self.each_clipped |= now is not w.grad or now._version != w.version
                w.grad = now
        self._average()
        fold(self.weights)
        for w in self.weights:
            w.param.grad = None
        self.pending = False

    def drop(self) -> None:
        """Without the pending sample."""
        self.pending = False
        self.count -= 1

    def finite(self) -> bool:
        """Whether the pending gradients are finite, on every rank."""
        bad = not all(bool(grad.isfinite().all()) for grad in self.gradients())
        return not self._on_any_rank(bad)

    def overflowed(self, found: Tensor) -> bool:
        """Whether GradScaler found an overflow in the pending gradients, or an earlier sample has one."""
        sums = [w.sums[0] for w in self.weights if w.sums is not None]
        return self._on_any_rank(bool(found) or not all(bool(s.isfinite().all()) for s in sums))

    def finish(self) -> None:
        """Everything is ready for the update: the pending gradients are those that the caller made of them."""
        if not self.pending:
            return
        for w in self.weights:
            w.grad = w.param.grad
        if self.count > 1 and not self.each_clipped:
            self._rescale()
        self._average()
        if self.count > 1 or any(w.sums is not None for w in self.weights):
            fold(self.weights)

    def gradients(self) -> list[Tensor]:
        """Those that are pending."""
        return [w.gradient() for w in self.weights if w.grad is not None]

    def _rescale(self) -> None:
        """Clipping or unscaling since the last context reached `.grad` alone: do the same to the folded samples."""
        factor = global_norm(self.gradients()) / self.norm if self.norm else 1.0
        factor = mean_over_ranks(factor, self._device()) if self.sync else factor
        for w in self.weights:
            if factor != 1.0 and w.sums is not None:
                w.sums[0].mul_(factor)
                w.sums[1].mul_(factor**2 if w.group["hess_approx"] == "gradsq" else factor)

    def _average(self) -> None:
        """Pending gradients over ranks. Where one has a gradient, all take part."""
        if not self.sync:
            return
        found = on_any_rank([w.grad is not None for w in self.weights], self._device())
        for w, somewhere in zip(self.weights, found, strict=True):
            if somewhere and w.grad is None:
                w.grad = torch.zeros_like(w.param)
        average_over_ranks(self.gradients())

    def _on_any_rank(self, flag: bool) -> bool:
        return on_any_rank([flag], self._device())[0] if self.sync else flag

    def _device(self) -> torch.device:
        return next((w.local.device for w in self.weights), torch.device("cpu"))


def fold(weights: list[Weight]) -> None:
    """Pending gradients into the sums of ĝ and of ĝ·(θ − m), or ĝ²."""
    pending = [w for w in weights if w.grad is not None]
    for chunk in chunks(pending, key=lambda w: w.sums is None):
        grads = [torch.empty_like(w.momentum) for w in chunk]
        torch._foreach_copy_(grads, [w.gradient() for w in chunk])
        if chunk[0].group["hess_approx"] == "gradsq":
            products = torch._foreach_mul(grads, grads)
        else:
            moved = torch._foreach_sub([w.sample for w in chunk], [w.mean for w in chunk])
            products = torch._foreach_mul(grads, moved)
        if chunk[0].sums is None:
            for w, grad, product in zip(chunk, grads, products, strict=True):
                w.sums = grad, product
        else:
            sums = [w.sums for w in chunk if w.sums is not None]
            torch._foreach_add_([s for s, _ in sums], grads)
            torch._foreach_add_([s for _, s in sums], products)
        for w in chunk:
            w.grad = None
