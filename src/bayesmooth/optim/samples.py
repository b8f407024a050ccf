"""The samples that IVON takes between two steps: each is in place → pending → folded into the average, or used at once.

In place, the parameters hold it. Pending, they hold the mean again, and `.grad` what the caller does to its gradients.
Folded, it is in the sums, and `.grad` has room for the next.
"""

import torch
from torch import Tensor

from bayesmooth.optim.arithmetic import perturb, restore, update
from bayesmooth.optim.parameters import global_norm
from bayesmooth.optim.sharding import average_over_ranks, mean_over_ranks, on_any_rank
from bayesmooth.optim.weights import Weight


class Samples:
    """One or more draws around the same mean."""

    def __init__(self, weights: list[Weight], sync: bool) -> None:
        self.weights = weights
        self.sync = sync  # gradients are averaged over ranks
        self.count = 0
        self.pending = False
        self.in_place = False
        self.norm = 0.0  # of the pending gradients, when their context ended
        self.each_clipped = False

    def draw(self, fresh: bool) -> None:
        """The next sample into place; or the last one again, whose gradients then add up."""
        if self.pending and fresh:
            self.fold()
        self.count += fresh or not self.count
        self.in_place = True
        perturb(self.weights, self.count - 1, train=True)

    def leave(self) -> None:
        """The mean back into the parameters."""
        restore(self.weights, keep=True)
        self.in_place = False
        self.hold()

    def hold(self) -> None:
        """The sample is pending, with the gradients that it has got; without any it is none."""
        for w in self.weights:
            w.grad = w.param.grad
            w.version = w.grad._version if w.grad is not None else 0
        gradients = self.gradients()
        self.pending = bool(gradients) or self.sync
        self.count -= not self.pending
        if self.count > 1:
            self.norm = global_norm(gradients)

    def fold(self) -> None:
        """The pending sample into the average."""
        for w in self.weights:
            now = w.param.grad
            if now is not None:  # else the caller has cleared it, and the reference is what is left
                self.each_clipped |= now is not w.grad or now._version != w.version
                w.grad = now
        self._average()
        for w in self.weights:
            w.fold(self.in_place)
            w.param.grad = None
        self.pending = False

    def drop(self) -> None:
        """Without the pending sample."""
        self.pending = False
        self.count -= 1

    def finite(self) -> bool:
        """Whether the pending gradients are, on every rank."""
        bad = not all(bool(grad.isfinite().all()) for grad in self.gradients())
        return not self._on_any_rank(bad)

    def overflowed(self, found: Tensor) -> bool:
        """Whether GradScaler found an overflow in the pending gradients, or an earlier sample has one."""
        sums = [w.grad_sum for w in self.weights if w.grad_sum is not None]
        return self._on_any_rank(bool(found) or not all(bool(s.isfinite().all()) for s in sums))

    def update(self, scale: float) -> None:
        """One step from all samples; gradients are divided by a GradScaler's scale first."""
        if self.pending:
            for w in self.weights:
                w.grad = w.param.grad
            if self.count > 1 and not self.each_clipped:
                self._rescale()
            self._average()
            if self.count > 1:
                for w in self.weights:
                    w.fold(self.in_place)
        update(self.weights, self.count, self.in_place, 1.0 / scale)

    def gradients(self) -> list[Tensor]:
        """Those that are pending."""
        return [w.gradient() for w in self.weights if w.grad is not None]

    def _rescale(self) -> None:
        """Clipping or unscaling since the last context reached `.grad` alone: do the same to the folded samples."""
        factor = global_norm(self.gradients()) / self.norm if self.norm else 1.0
        factor = mean_over_ranks(factor, self._device()) if self.sync else factor
        for w in self.weights:
            if factor != 1.0 and w.grad_sum is not None and w.product_sum is not None:
                w.grad_sum *= factor
                w.product_sum *= factor**2 if w.group["hess_approx"] == "gradsq" else factor

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
