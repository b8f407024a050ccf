"""IVON, the improved variational online Newton method: Adam's cost, and a Gaussian over the weights (alg:ivon).

    ĝ ← ∇ℓ(θ),  θ ~ N(m, diag σ²)                       gradient at a sample
    ĥ ← ĝ·(θ − m)/σ²                                    reparametrised estimate of the Hessian's diagonal
    g ← β₁ g + (1 − β₁) ĝ
    h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    m ← m − α (g/(1 − β₁ᵗ) + δ m)/(h + δ)
    σ ← 1/√(λ (h + δ))

This file says when samples are drawn, kept and used; `weights.py` has the arithmetic.

References: Shen et al., "Variational Learning is Effective for Large Deep Networks", ICML 2024;
Yang et al., "Variational Learning Induces Adaptive Label Smoothing", ICML 2025.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from bayesmooth.errors import InputError
from bayesmooth.optim.checks import check_group, seed_of
from bayesmooth.optim.diagnostics import diagnose, warn_of_drowning
from bayesmooth.optim.parameters import keep_dtypes
from bayesmooth.optim.sharding import agree_on_seed, average_over_ranks, whole
from bayesmooth.optim.weights import Weight, collect, norm, perturb, restore, update
from bayesmooth.posterior import Posterior, parameter_names

EVALUATION = 2**32 - 1  # a draw number that training never reaches


class IVON(Optimizer):
    """A drop-in for Adam or SGD that learns mean and variance of every weight.

    Let `step` draw the samples:

    >>> model = nn.Linear(4, 3)
    >>> optimizer = IVON(model.parameters(), lr=0.1, ess=1000, seed=0)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = nn.functional.cross_entropy(model(torch.ones(8, 4)), torch.zeros(8).long())
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)

    or draw them yourself:

    >>> with optimizer.sampled_params(train=True):
    ...     loss = closure()
    >>> optimizer.step()

    Several backward passes in one context add up. Several contexts before a `step` are several samples and are
    averaged. Gradients may be clipped or unscaled in the closure, or between context and `step`: what
    `.grad` holds at the `step` is what it uses (after several samples: its scale, for all of them).

    Arguments:
        lr: α. With `rescale_lr` it is multiplied by (h₀ + δ), so that learning rates of SGD with momentum carry
            over: 0.1 to 0.2.
        ess: λ, the effective sample size: the number of training examples. Smaller means more noise.
        hess_init: h₀. At the start σ = 1/√(λ(h₀ + δ)): only that product counts. A net that learns nothing has too
            much noise (raise h₀), one that memorises wrong labels too little (lower it); published recipes
            lie between 0.05 and 1, at 50,000 examples. `diagnostics()` compares σ with the weights.
        beta1, beta2: momenta of g and h. h learns over about 1/(1 − β₂) steps: for short runs take
            β₂ = 1 − 2/steps. β₂ = 1 keeps the covariance fixed.
        weight_decay: δ. The prior's precision is λδ.
        mc_samples: samples a step, each a call of the closure.
        hess_approx: 'price' is ĥ above; 'gradsq' is λĝ².
        clip_radius: bound on each entry of (g + δm)/(h + δ).
        sync: average gradients over ranks in `step`, for models that are not wrapped in DDP.
        debias: divide g by 1 − β₁ᵗ.
        rescale_lr: see lr.
        antithetic: draw the samples of a step in pairs mirrored about the mean.
        seed, generator: where the noise comes from; by default torch's seed. The global generator is not touched.
        fused: None takes the CPU kernels where they apply, False never, True fails where they do not.

    BatchNorm's running statistics are gathered under samples, as each forward pass sees them. They suit averaged
    predictions; before predicting at the mean, call `bayesmooth.posterior.recompute_batchnorm`.
    """

    _step_supports_amp_scaling = True  # GradScaler hands over its scale and its verdict

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        ess: float,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99999,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        hess_approx: str = "price",
        clip_radius: float = float("inf"),
        sync: bool = False,
        debias: bool = True,
        rescale_lr: bool = True,
        *,
        antithetic: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "ess": ess,
            "hess_init": hess_init,
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "mc_samples": mc_samples,
            "hess_approx": hess_approx,
            "clip_radius": clip_radius,
            "sync": sync,
            "debias": debias,
            "rescale_lr": rescale_lr,
            "antithetic": antithetic,
            "fused": fused,
            "seed": seed_of(seed, generator),
            "draws": 0,  # evaluation draws so far
        }
        super().__init__(params, defaults)
        self._forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, once their values and tensors have passed the checks."""
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1])
        except InputError:
            self.param_groups.pop()
            raise

    @contextmanager
    def sampled_params(self, train: bool = False, fresh: bool = True) -> Iterator[None]:
        """Inside, the weights are a draw from the posterior; afterwards the mean is back, bit for bit.

        `train` keeps the draw and its gradients for `step`. `fresh=False` enters the last training draw again, for
        micro-batches whose gradients add up. Inside another context, or a closure that `step` calls,
        nothing is drawn.
        """
        if self._drawn:
            yield
            return
        self._draw(train, fresh)
        try:
            yield
        except BaseException:
            self._abandon()
            raise
        self._leave(train)

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Update mean and variance from the samples since the last step; a closure is called at new ones."""
        loss = self._sampled_loss(closure) if closure is not None else None
        if self._overflowed():
            self._abandon()
        elif self._samples:
            self._update()
        else:
            self._refuse_gradients_at_the_mean()
        self._forget()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; but a sample whose gradients would be lost goes into the average first."""
        if self._pending and not self._drawn:
            self._fold()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the names in `model` (or those that the constructor was given)."""
        names = parameter_names(self.param_groups, model)
        mean, std = {}, {}
        for w in self._collect({}):
            if (name := names.get(w.param)) is not None:
                mean[name] = whole(w.state.get("mean", w.param))
                precision = w.group["ess"] * (whole(w.state["hess"]) + w.group["weight_decay"])
                std[name] = precision.rsqrt()
        return Posterior(mean, std)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """What to look at when training fails.

        noise_to_weight: σ over the weights, root mean squares. Far above 1, the noise drowns the signal.
        hess_moved: share of weights whose h is over 1 % from h₀. Near 0, the variance has not been learned: lower
            beta2 or train longer.
        std: σ, root mean square.
        steps: updates so far.
        """
        return diagnose(self._collect({}))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; but the state of 16-bit parameters stays in float32."""
        super().load_state_dict(state_dict)
        keep_dtypes(self, state_dict)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    # ---- samples: drawn → left (pending) → folded into the average, or used by the update ----

    def _forget(self) -> None:
        """No sample is under way."""
        self._weights: list[Weight] = []  # of the training samples since the last step
        self._samples = 0
        self._pending = False  # the last of them is not folded yet
        self._drawn: list[Weight] = []  # whose parameters hold a sample now
        self._norm = 0.0
        if not hasattr(self, "_buffers"):
            self._buffers: dict[Tensor, Tensor] = {}

    def _collect(self, buffers: dict[Tensor, Tensor]) -> list[Weight]:
        return collect(self.param_groups, self.state, buffers)

    @torch.no_grad()
    def _draw(self, train: bool, fresh: bool = True) -> None:
        if not train:
            self._drawn = self._collect({})
            for group in self.param_groups:
                group["draws"] += 1
            perturb(self._drawn, EVALUATION, train)
            return
        if self._pending and fresh:
            self._fold()
        if not self._samples:
            agree_on_seed(self.param_groups)
            self._weights = self._collect(self._buffers)
            warn_of_drowning(self._weights)
        self._samples += fresh or not self._samples
        self._drawn = self._weights
        perturb(self._drawn, self._samples - 1, train)

    @torch.no_grad()
    def _leave(self, train: bool) -> None:
        """The mean back into the parameters; a training sample stays pending."""
        restore(self._drawn, keep=train)
        self._drawn = []
        if train:
            self._hold()

    def _hold(self) -> None:
        self._pending = True
        for w in self._weights:
            w.grad = w.param.grad
        if self._samples > 1:
            self._norm = norm(self._weights)

    @torch.no_grad()
    def _abandon(self) -> None:
        """The mean back into the parameters, and nothing of the samples kept."""
        restore(self._drawn, keep=False)
        self._forget()

    @torch.no_grad()
    def _fold(self) -> None:
        """The pending sample into the average; its gradients make room for the next one's."""
        for w in self._weights:
            w.fold(inside=bool(self._drawn))
            w.grad = w.param.grad = None
        self._pending = False

    def _sampled_loss(self, closure: Callable[[], Tensor]) -> Tensor:
        """Mean loss over the samples. The last one stays in place: the update reads it there."""
        losses = []
        for _ in range(self.defaults["mc_samples"]):
            if self._drawn:
                self._leave(train=True)
            self._draw(train=True)
            try:
                with torch.enable_grad():
                    losses.append(closure())
            except BaseException:
                self._abandon()
                raise
        self._hold()
        return sum(losses[1:], losses[0]) / len(losses)

    # ---- the update ----

    def _overflowed(self) -> bool:
        """Whether GradScaler found an overflow in this step, or an earlier sample of it has one."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return False
        sums = [w.grad_sum for w in self._weights if w.grad_sum is not None]
        return bool(found) or not all(bool(total.isfinite().all()) for total in sums)

    def _update(self) -> None:
        for w in self._weights:
            w.grad = w.param.grad if w.param.grad is not None and self._pending else w.grad
        if self._samples > 1 and self._pending:
            self._rescale()
            for w in self._weights:
                w.fold(inside=bool(self._drawn))
        if self.defaults["sync"]:
            gradients = [t for w in self._weights for t in (w.grad, w.grad_sum, w.product_sum)]
            average_over_ranks([t for t in gradients if t is not None])
        grad_scale = getattr(self, "grad_scale", None)
        scale = 1.0 / float(grad_scale) if grad_scale is not None else 1.0
        update(self._weights, self._samples, inside=bool(self._drawn), scale=scale)

    def _rescale(self) -> None:
        """Clipping or unscaling since the last context reached `.grad` alone: do the same to the folded samples."""
        factor = norm(self._weights) / self._norm if self._norm else 1.0
        for w in self._weights:
            if factor != 1.0 and w.grad_sum is not None and w.product_sum is not None:
                w.grad_sum *= factor
                w.product_sum *= factor**2 if w.group["hess_approx"] == "gradsq" else factor

    def _refuse_gradients_at_the_mean(self) -> None:
        """A step without samples is for set-up calls only: those have no gradients, or lr = 0."""
        for w in self._collect({}):
            if w.param.grad is not None and float(w.group["lr"]) != 0.0:
                raise InputError(
                    "step() found gradients but no sample: they were taken at the mean; use step(closure), or "
                    "compute them inside `with optimizer.sampled_params(train=True):`"
                )
