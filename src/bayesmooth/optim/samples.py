"""Where the weights are, at their mean or at a sample, and the way of a sample's gradients to the step.

When a training context ends, mean and sample are exchanged: the caller sees the mean, and the update still finds the
sample. So the state is three tensors of the parameter's size (buffer, momentum, Hessian). The gradients of the last
sample stay in `.grad`, where the caller may clip or unscale them; those of earlier ones are folded into two sums.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optim.backends import (
    Torch,
    Weight,
    fits_kernels,
    note_sample,
    split_weights,
)
from bayesmooth.optim.groups import find_state_dtype
from bayesmooth.optim.sharding import (
    average_over_ranks,
    global_norm,
    mean_over_ranks,
    on_any_rank,
    shard,
    start,
)

Choose = Callable[[Tensor, dict[str, Any], bool], Torch]


class Place(Enum):
    """Where the life of a sample is."""

    MEAN = auto()  # the parameters hold the mean, and no sample has unused gradients
    TRAINING = auto()  # in a training context: the parameters hold a sample
    PENDING = auto()  # after it: the last sample waits, its gradients in `.grad`, for a step
    EVALUATION = auto()  # in an evaluation context
    EVALUATION_WHILE_PENDING = auto()

    @property
    def is_sample(self) -> bool:
        """Whether the caller sees a sample, not the mean."""
        return self not in (MEAN, PENDING)


MEAN, TRAINING, PENDING, EVALUATION, EVALUATION_WHILE_PENDING = Place
# What may happen, and from where to where it leads.
MOVES: dict[str, dict[Place, Place]] = {
    "draw": {MEAN: TRAINING, PENDING: TRAINING},
    "hold": {TRAINING: PENDING},  # the context ends, or the step begins
    "fold": {PENDING: MEAN, TRAINING: MEAN},  # also of a draw without gradients: it does not count
    "evaluate": {MEAN: EVALUATION, PENDING: EVALUATION_WHILE_PENDING},
    "resume": {EVALUATION: MEAN, EVALUATION_WHILE_PENDING: PENDING},
    "step": {MEAN: MEAN, PENDING: PENDING, TRAINING: TRAINING},
    "read": {MEAN: MEAN, PENDING: PENDING},
}
REFUSALS = {
    "step": "{} inside an evaluation context; call it outside",
    "read": "{} inside a sampling context: the weights are a sample there, not the mean; call it outside",
}


class Samples:
    """The samples around one mean, on their way to a step."""

    def __init__(self) -> None:
        self.buffers: dict[Tensor, Tensor] = {}
        self.zeroed: dict[Tensor, int] = {}  # gradients that zero_grad left as zeros, by version
        self.forget()

    def forget(self) -> None:
        """No sample is under way."""
        self.place = MEAN
        self.weights: list[Weight] = []  # of the training samples
        self.drawn: list[Weight] = []  # whose parameters hold a sample, if any do
        self.count = 0
        self.sync = False  # gradients are averaged over ranks
        self.norm = 0.0  # of the pending gradients, when their context ended
        self.each_clipped = False

    def move(self, name: str, call: str = "") -> None:
        """Go to where the move leads from here, or refuse."""
        if self.place not in MOVES[name]:
            raise InputError(REFUSALS[name].format(call))
        self.place = MOVES[name][self.place]

    def draw(self, fresh: bool) -> int:
        """Begin a training sample; its number. Not `fresh`, it is the last one again, and gradients add up."""
        if self.place is PENDING and fresh:
            self.fold()
        if self.place is MEAN:
            for w in self.weights:
                grad, w.before = w.param.grad, None
                if grad is not None and self.zeroed.get(w.param) != grad._version:
                    w.before = grad, grad._version
        self.move("draw")
        self.drawn = self.weights
        self.count += fresh or not self.count
        return self.count - 1

    def evaluate(self, weights: list[Weight]) -> None:
        """Begin an evaluation sample, of weights with buffers of their own."""
        self.move("evaluate")
        self.drawn = weights

    def leave(self) -> None:
        """The context is over; after a `step` inside it, the mean is back already."""
        if self.place is TRAINING:
            replaced = [w for w in self.drawn if w.replaced]
            for chunk in split_weights(self.drawn):
                chunk[0].backend.exchange(chunk)
            bring_back(self.drawn, replaced)
            if replaced:
                refuse_replaced(replaced[0])
            self.hold()
        elif self.place.is_sample:
            replaced = restore(self.drawn)
            self.move("resume")
            for w in replaced:
                if w.param.shape != w.local.shape:
                    refuse_replaced(w)

    def abandon(self) -> None:
        """The mean back into the parameters, and nothing of the samples kept."""
        if held := [w for w in self.drawn if w.held]:
            restore(held)
        self.forget()

    def hold(self) -> None:
        """The draw is over, and pending with the gradients that it has got; without any it does not count."""
        mixed = False
        for w in self.weights:
            grad = w.param.grad
            w.pending = None if grad is None else (grad, grad._version)
            if w.before and w.pending:
                mixed |= grad is w.before[0] and w.pending[1] > w.before[1]
        if mixed:
            raise InputError(
                "gradients at a sample were added to gradients from before it, which were taken at the mean or at "
                "another sample; call optimizer.zero_grad() first (in the closure, if there is one); to accumulate "
                "micro-batches, compute each inside `with optimizer.sampled_params(train=True, fresh=False):`"
            )
        if self.sync or any(w.pending is not None for w in self.weights):
            self.move("hold")
        else:
            self.drop()
        if self.count > 1:
            self.norm = global_norm(self.gradients())

    def note_zeros(self, params: list[Tensor]) -> None:
        """The caller has cleared the gradients; those of these parameters are there, and zero."""
        for w in self.weights:
            w.before = None
        self.zeroed.update((p, p.grad._version) for p in params if p.grad is not None)

    def fold(self) -> None:
        """The pending sample into the average."""
        for w in self.weights:
            now = w.param.grad
            if now is not None:  # else the caller has cleared it, and the reference is what is left
                seen = w.pending or (None, 0)
                self.each_clipped |= now is not seen[0] or now._version != seen[1]
                w.pending = now, now._version
        self._add_up()
        for w in self.weights:
            w.param.grad = None
        self.move("fold")

    def drop(self) -> None:
        """Without the last sample."""
        for w in self.weights:
            w.pending = None
        self.count -= 1
        self.move("fold")

    def finish(self, found: Tensor | None = None) -> bool:
        """Everything ready for the update, with the gradients that the caller made of them; False if they overflowed.

        `found` is GradScaler's verdict.
        """
        self.move("step", "step()")
        if self.place is TRAINING:
            # The last sample stays in the parameters, where the update reads it.
            if replaced := [w for w in self.drawn if w.replaced]:
                refuse_replaced(replaced[0])
            self.hold()
        if found is not None and self.count and self._overflowed(found):
            return False
        if self.place is PENDING:
            for w in self.weights:
                w.pending = None if w.param.grad is None else (w.param.grad, 0)
            if self.count > 1 and not self.each_clipped:
                self._rescale()
            if self.count > 1 or any(w.sums is not None for w in self.weights):
                self._add_up()
            elif self.sync:
                self._average()
        return True

    def is_finite(self) -> bool:
        """Whether the pending gradients are finite, on every rank."""
        bad = not all(bool(grad.isfinite().all()) for grad in self.gradients())
        return not self._on_any_rank(bad)

    def gradients(self) -> list[Tensor]:
        """Those that are pending."""
        return [w.gradient() for w in self.weights if w.pending is not None]

    def _add_up(self) -> None:
        """Pending gradients into the sums."""
        if self.sync:
            self._average()
        pending = [w for w in self.weights if w.pending is not None]
        for w in pending:
            if w.sums is None:
                zeros = torch.zeros_like(w.hess, dtype=w.mean.dtype)
                w.sums = zeros, zeros.clone()
        for chunk in split_weights(pending):
            chunk[0].backend.fold(chunk)

    def _overflowed(self, found: Tensor) -> bool:
        """Whether GradScaler found an overflow in the pending gradients, or an earlier sample has one."""
        sums = [w.sums[0] for w in self.weights if w.sums is not None]
        return self._on_any_rank(bool(found) or not all(bool(s.isfinite().all()) for s in sums))

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
        found = on_any_rank([w.pending is not None for w in self.weights], self._device())
        for w, somewhere in zip(self.weights, found, strict=True):
            if somewhere and w.pending is None:
                w.pending = torch.zeros_like(w.param), 0
        average_over_ranks(self.gradients())

    def _on_any_rank(self, flag: bool) -> bool:
        return on_any_rank([flag], self._device())[0] if self.sync else flag

    def _device(self) -> torch.device:
        return next((w.local.device for w in self.weights), torch.device("cpu"))


def restore(weights: list[Weight]) -> list[Weight]:
    """The mean back into the parameters, bit for bit; the samples are lost. Returns those with other memory."""
    replaced = [w for w in weights if w.replaced]
    for chunk in split_weights(w for w in weights if w.held):
        torch._foreach_copy_([w.local for w in chunk], [w.mean for w in chunk])
        note_sample(chunk, held=False)
    bring_back(weights, replaced)
    return replaced


def bring_back(weights: list[Weight], replaced: list[Weight]) -> None:
    """The mean into memory that took the parameters' place too, if it has the same shape."""
    for w in replaced:
        if w.param.shape == w.local.shape:
            w.param.data.copy_(w.mean)
    tell_autograd(weights)


def refuse_replaced(w: Weight) -> None:
    """A sample cannot be followed into other memory."""
    raise InputError(
        f"parameter #{w.stream}: its data was replaced inside a sampling context (by `p.data = …` or "
        "`model.double()`, say), and the sample is lost; do it outside the context"
    )


def tell_autograd(weights: list[Weight]) -> None:
    """Memory was written behind autograd's back: a backward pass through an older forward must notice."""
    torch.autograd.graph.increment_version([w.param for w in weights])
    torch.clear_autocast_cache()  # it holds copies of the last weights


# ---- the weights ----


def collect_weights(
    groups: list[dict[str, Any]], state: Any, buffers: dict[Tensor, Tensor], choose: Choose
) -> list[Weight]:
    """Every parameter that takes gradients. Frozen ones are never touched."""
    every = [(group, param) for group in groups for param in group["params"]]
    return [
        _weight(param, group, state[param], buffers, stream, choose)
        for stream, (group, param) in enumerate(every)
        if param.requires_grad
    ]


def _weight(
    param: Tensor,
    group: dict[str, Any],
    state: dict[str, Any],
    buffers: dict[Tensor, Tensor],
    stream: int,
    choose: Choose,
) -> Weight:
    if not state or state["momentum"].dtype != param.dtype or "mean" in state:
        _prepare(param, group, state)
    narrow = "mean" in state
    tensors = [param.data, state["momentum"], state["hess"], *([state["mean"]] if narrow else [])]
    offset: int | None = 0
    if hasattr(param, "to_local"):
        offset, tensors = start(param), [shard(tensor) for tensor in tensors]
    local, momentum, hess, mean = tensors[0], tensors[1], tensors[2], tensors[3 if narrow else 0]
    form = mean.shape, mean.dtype, mean.device
    buffer = buffers.get(param)
    if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != form:
        buffer = buffers[param] = torch.empty_like(momentum, dtype=mean.dtype)
    backend = choose(local, group, offset is not None and fits_kernels(*tensors, buffer))
    place = mean, buffer, stream, offset
    return Weight(param, local, group, state, momentum, hess, *place, backend, narrow)


@torch.inference_mode(False)  # an evaluation draw may be the first to come here; training follows
def _prepare(param: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    """State where there is none; state that fits, where a dtype has changed."""
    wide, kept = torch.promote_types(param.dtype, torch.float32), find_state_dtype(param, group)
    if not state:
        state["step"] = 0
        state["momentum"] = torch.zeros_like(param, dtype=kept, requires_grad=False)
        state["hess"] = torch.full_like(param, group["hess_init"], dtype=kept, requires_grad=False)
    if state["momentum"].dtype != kept:
        state["momentum"], state["hess"] = state["momentum"].to(kept), state["hess"].to(kept)
    if param.dtype == wide:
        state.pop("mean", None)
        return
    mean = state.setdefault("mean", param.detach().to(wide))
    stale = param.detach() != mean.to(param.dtype)  # somebody has set the parameter: believe it
    mean.copy_(torch.where(stale, param.detach().to(wide), mean))
