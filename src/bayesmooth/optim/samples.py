"""The place of the weights, at their mean or at a sample, and the way of a sample's gradients to the step.

When a training context ends, mean and sample are exchanged: the caller sees the mean, and the update still finds the
sample. So the state is three tensors of the parameter's size (buffer, momentum, Hessian). The gradient of one sample
stays in `.grad`. Several samples are summed, and `.grad` is their average. Either way the caller may clip, mask,
unscale or remove it before the step; a change to an average changes each sample in it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optim.params import dense, find_param_name, locate_shard, shard, widen


class Place(Enum):
    """The place of a sample. It goes from MEAN to TRAINING to PENDING, and from there to another one or to the step."""

    MEAN = auto()  # the parameters hold the mean, and no sample has gradients in `.grad`
    TRAINING = auto()  # in a training context: the parameters hold a sample
    PENDING = auto()  # after it: the sample waits, its gradients in `.grad`
    EVALUATION = auto()  # in an evaluation context, which ends with the place before it


MEAN, TRAINING, PENDING, EVALUATION = Place


@dataclass(slots=True, eq=False)
class Weight:
    """One parameter with all that a step of it needs; tensors are this rank's shards.

    The parameter's memory holds the mean, and the buffer is free or holds a sample; while a sample is in the parameter,
    the mean is in the buffer. A parameter below float32 has a mean of its own, because updates would be lost to
    rounding; its buffer holds the sample.
    """

    param: Tensor  # the user's
    local: Tensor  # its memory
    group: dict[str, Any]
    state: dict[str, Any]
    momentum: Tensor
    hess: Tensor
    wide: Tensor | None  # the mean of a parameter below float32
    buffer: Tensor
    stream: int  # position among all parameters: names the noise
    sharded: bool  # the parameter is a DTensor
    offset: int | None  # of the shard in the whole tensor; None where it is not one piece of it
    backend: Any = None  # computes its sample and update
    held: bool = False  # the parameter holds a sample
    before: tuple[Tensor, int] | None = None  # gradient from before the sample, and its version
    pending: Tensor | None = None  # gradient of a single sample
    sums: tuple[Tensor, Tensor] | None = None  # over several samples: of ĝ, and of ĝ·(θ − m) or ĝ²

    @property
    def mean(self) -> Tensor:
        """The tensor that holds m."""
        if self.wide is not None:
            return self.wide
        return self.buffer if self.held else self.local

    @property
    def sample(self) -> Tensor:
        """The tensor that holds θ of a draw."""
        return self.local if self.held and self.wide is None else self.buffer

    @property
    def squared(self) -> bool:
        """Whether the Hessian comes from squared gradients."""
        return bool(self.group["hess_approx"] == "gradsq")

    @property
    def replaced(self) -> bool:
        """Whether the parameter got other memory since (`p.data = …`, `model.double()`)."""
        return not self.sharded and self.param.data_ptr() != self.local.data_ptr()

    def fits(self, group: dict[str, Any], state: dict[str, Any], stream: int) -> bool:
        """Whether it still describes its parameter; those of 16 bits and shards are read anew for every step."""
        same = self.group is group and self.stream == stream and self.hess is state.get("hess")
        plain = self.wide is None and not self.sharded and self.param.dtype == self.local.dtype
        return same and plain and not self.replaced

    def gradient(self) -> Tensor:
        """The pending gradient of the shard."""
        grad = self.pending
        assert grad is not None
        if grad.layout is not torch.strided:
            dense(grad, self.param, self.group)
        return shard(grad) if self.sharded else grad

    def add_up(self) -> None:
        """The pending gradient into the sums."""
        ĝ = self.gradient().to(self.hess.dtype)
        if self.sums is None:
            self.sums = torch.zeros_like(self.hess), torch.zeros_like(self.hess)
        self.sums[0].add_(ĝ)
        self.sums[1].add_(self.backend.product(ĝ, self.sample, self.mean, self.squared))
        self.pending = None

    def average(self, count: int) -> Tensor:
        """The average gradient of several samples, as `.grad` shows it."""
        assert self.sums is not None
        return (self.sums[0] / count).to(self.param.dtype)

    def show_average(self, count: int) -> None:
        """The average gradient into `.grad`."""
        if self.param.grad is None:
            self.param.grad = torch.zeros_like(self.param, requires_grad=False)
        shard(self.param.grad).copy_(self.average(count))

    def take_average(self, count: int) -> None:
        """The caller's changes to the average into the sums; GradScaler makes them without a new version."""
        assert self.sums is not None
        if (grad := self.param.grad) is None:
            return
        shown = self.average(count).to(self.hess.dtype)
        now = shard(dense(grad, self.param, self.group)).to(shown.dtype)
        # Gradients may cancel in the average, and be left as they were.
        factor = torch.where(shown == 0, (now == shown).to(now.dtype), now / shown)
        self.sums[1].mul_(factor.square() if self.squared else factor)
        self.sums[0].copy_(torch.where(now == shown, self.sums[0], now * count))


@dataclass(eq=False)
class Samples:
    """The samples around one mean, on their way to a step."""

    kept: dict[Tensor, Weight] = field(default_factory=dict)  # from step to step
    weights: list[Weight] = field(default_factory=list)  # of the training samples
    place: Place = MEAN
    count: int = 0  # samples with gradients
    number: int = 0  # of the one drawn last
    summed: bool = False  # gradients have left `.grad` for the sums

    def abandon(self) -> None:
        """The mean back into the parameters, and nothing of the samples kept."""
        if held := [w for w in self.weights if w.held]:
            restore(held)
        for w in self.weights:
            w.before = w.pending = w.sums = None
        self.place, self.weights, self.count, self.number, self.summed = MEAN, [], 0, 0, False

    def check_outside(self, call: str) -> None:
        """Refuse to read the mean inside a context."""
        if self.place in (TRAINING, EVALUATION):
            raise InputError(f"{call} inside a sampling context: the weights are a sample there; call it outside")

    @contextmanager
    def evaluating(self, weights: list[Weight]) -> Iterator[list[Weight]]:
        """An evaluation sample: weights with buffers of their own, as a training sample may be pending."""
        own = [replace(w, buffer=torch.empty_like(w.buffer), held=False) for w in weights]
        before, self.place = self.place, EVALUATION
        try:
            yield own
        finally:
            self.place = before
            restore(own)

    def begin(self, fresh: bool) -> int:
        """Begin a training sample; its number. Not `fresh`, it is the last one again, and gradients add up."""
        again = not fresh and self.count > 0
        if self.place is PENDING and (not again or self.summed):
            self.put_away()
        if again and any(w.sums and w.squared for w in self.weights):
            raise InputError(
                "fresh=False after several samples, or after zero_grad(), with hess_approx='gradsq': squares of "
                "gradients do not add up; compute all micro-batches of a sample inside one context"
            )
        if self.place is MEAN:
            for w in self.weights:
                grad = w.param.grad
                w.before = None if grad is None else (grad, grad._version)
        self.place, self.number = TRAINING, self.count - again
        return self.number

    def end(self, exchange: bool = True) -> None:
        """The draw is over, unless a `step` inside it was; `exchange` brings the mean back, and keeps the sample.

        It is pending with the gradients that it has got; without any it does not count.
        """
        if self.place is not TRAINING:
            return
        for w in self.weights:
            if w.replaced:
                name = find_param_name(w.param, w.group, w.stream)
                raise InputError(
                    f"parameter {name}: its data was replaced inside a sampling context (by `p.data = …` or "
                    "`model.double()`, say), and the sample is lost; do it outside the context"
                )
            grad = w.pending = w.param.grad
            if w.before and grad is w.before[0] and grad._version > w.before[1]:
                raise InputError(
                    "gradients at a sample were added to gradients from before it, which were taken at the mean or at "
                    "another sample; call optimizer.zero_grad() first (in the closure, if there is one); to accumulate "
                    "micro-batches, compute each inside `with optimizer.sampled_params(train=True, fresh=False):`"
                )
        if exchange:
            for chunk in split_weights(self.weights):
                chunk[0].backend.exchange(chunk)
            tell_autograd(self.weights)
        if not any(w.pending is not None for w in self.weights):
            self.place = MEAN
            return
        self.place, self.count = PENDING, self.number + 1
        if self.count > 1 or self.summed:
            self._sum_up()
            for w in self.weights:
                if w.sums:
                    w.show_average(self.count)

    def put_away(self) -> None:
        """Pending gradients into the sums, as the caller has left them, or as they were if they were cleared."""
        for w in self.weights:
            if w.sums:
                w.take_average(self.count)
            elif w.param.grad is not None:
                w.pending = w.param.grad
        self._sum_up()
        for w in self.weights:
            w.param.grad = None
        self.place = MEAN

    def keep_finite(self) -> None:
        """The caller is about to clear the gradients: keep the samples in the sums, if they are finite."""
        self.put_away()
        if not all(bool(w.sums[0].isfinite().all()) for w in self.weights if w.sums):
            self.abandon()

    def finish(self) -> list[Weight]:
        """The weights that have gradients, as the caller has left them."""
        if self.place is PENDING:
            for w in self.weights:
                if w.sums:
                    w.take_average(self.count)
                    w.sums = None if w.param.grad is None else w.sums
                else:
                    w.pending = w.param.grad
        return [w for w in self.weights if w.pending is not None or w.sums]

    def _sum_up(self) -> None:
        for w in self.weights:
            if w.pending is not None:
                w.add_up()
        self.summed = True


def restore(weights: list[Weight]) -> None:
    """The mean back, bit for bit, also into memory that took the parameter's place; the samples are lost."""
    for chunk in split_weights(w for w in weights if w.held):
        torch._foreach_copy_([w.local for w in chunk], [w.mean for w in chunk])
        for w in chunk:
            w.held = False
    for w in weights:
        if w.replaced and w.param.shape == w.local.shape:
            w.param.data.copy_(w.mean)
    tell_autograd(weights)


def tell_autograd(weights: list[Weight]) -> None:
    """Memory was written behind torch's back: older graphs and autocast's copies are out of date."""
    torch.autograd.graph.increment_version([w.param for w in weights])
    torch.clear_autocast_cache()


def split_weights(weights: Iterable[Weight], key: Callable[[Weight], object] = lambda w: None) -> list[list[Weight]]:
    """Chunks: weights of one group, backend, device, dtype and `key`, of the size that the backend likes.

    Sizes are those of whole parameters, so that the chunks are the same however a model is sharded.
    """
    chunks: list[list[Weight]] = []
    open_: dict[object, tuple[list[Weight], int]] = {}
    for w in weights:
        of = id(w.group), w.backend, w.local.device, w.hess.dtype, w.local.dtype, key(w)
        chunk, size = open_.get(of, ([], 0))
        more = w.param.numel()
        if not chunk or size + more > w.backend.limit:
            chunk, size = [], 0
            chunks.append(chunk)
        chunk.append(w)
        open_[of] = chunk, size + more
    return chunks


@torch.inference_mode(False)  # an evaluation draw may be the first to come here; training follows
def make_weight(param: Tensor, group: dict[str, Any], state: dict[str, Any], stream: int) -> Weight:
    """A parameter with its state: a new one where there is none, one that fits where a dtype has changed."""
    dtype, mean = widen(param.dtype), None
    if not state:
        state["step"] = 0
        state["momentum"] = torch.zeros_like(param, dtype=dtype, requires_grad=False)
        state["hess"] = torch.full_like(param, group["hess_init"], dtype=dtype, requires_grad=False)
    if state["momentum"].dtype != dtype:
        state["momentum"], state["hess"] = state["momentum"].to(dtype), state["hess"].to(dtype)
    if param.dtype == dtype:
        state.pop("mean", None)
    else:
        mean = state.setdefault("mean", param.detach().to(dtype))
        stale = param.detach() != mean.to(param.dtype)  # somebody has set the parameter: believe it
        mean.copy_(torch.where(stale, param.detach().to(dtype), mean))
    local, momentum, hess = (shard(t) for t in (param.data, state["momentum"], state["hess"]))
    wide = None if mean is None else shard(mean)
    buffer, sharded = torch.empty_like(momentum), hasattr(param, "to_local")
    return Weight(param, local, group, state, momentum, hess, wide, buffer, stream, sharded, locate_shard(param)[1])
