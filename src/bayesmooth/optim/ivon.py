"""IVON, the improved variational online Newton method: Adam's cost, and a Gaussian over the weights (alg:ivon).

    ĝ ← ∇ℓ(θ),  θ ~ N(m, diag σ²)                       gradient at a sample
    ĥ ← ĝ·(θ − m)/σ²                                    reparametrised estimate of the Hessian's diagonal
    g ← β₁ g + (1 − β₁) ĝ
    h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    m ← m − α (g/(1 − β₁ᵗ) + δ m)/(h + δ)
    σ ← 1/√(λ (h + δ))

This file is what users see. `samples.py` says what becomes of a sample, `arithmetic.py` computes.

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
from bayesmooth.optim.arithmetic import perturb, restore
from bayesmooth.optim.checks import check_alike, check_group, seed_of
from bayesmooth.optim.diagnostics import diagnose, warn_of_drowning
from bayesmooth.optim.parameters import check_moved, state_kept_wide
from bayesmooth.optim.samples import Samples
from bayesmooth.optim.sharding import agree_on_seed, whole
from bayesmooth.optim.weights import Weight, collect
from bayesmooth.posterior import Posterior, parameter_names
from bayesmooth.randomness import EVALUATION


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
    `.grad` holds at the `step` is what it uses (after several samples, unless each was clipped: its scale, for all
    of them). `zero_grad()` keeps the samples so far, unless there is a NaN or inf in the last; an exception drops them.

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
        seed, generator: where the noise comes from; by default torch's seed, so that two optimizers draw alike. The
            global generator is not touched.
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
            check_alike(self.param_groups, "mc_samples", "sync")
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
        try:
            self._draw(fresh) if train else self._draw_for_evaluation()
            yield
            self._leave(train)
        except BaseException:
            self._abandon()
            raise

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update mean and variance from the samples since the last step; a closure is called at new ones.

        Returns the mean of what the closure returned; parameters without a gradient stay at their mean.
        """
        try:
            loss = self._sampled_loss(closure) if closure is not None else None
            if not self._samples.count:
                self._refuse_gradients_at_the_mean()
            elif not self._overflowed():
                self._samples.update(float(getattr(self, "grad_scale", None) or 1.0))
        finally:
            self._abandon()
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; but a sample whose gradients would be lost goes into the average first, if it is finite."""
        if self._samples.pending and not self._drawn:
            self._samples.fold() if self._samples.finite() else self._samples.drop()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the names in `model` (or those that the constructor was given)."""
        self._refuse_a_sample("posterior()")
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
        self._refuse_a_sample("diagnostics()")
        return diagnose(self._collect({}))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; but the state of 16-bit parameters stays in float32, and that of other shapes is refused."""
        with state_kept_wide(self):
            super().load_state_dict(state_dict)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """No sample is under way."""
        self._samples = Samples([], sync=False)  # of training, since the last step
        self._drawn: list[Weight] = []  # whose parameters hold a sample now
        if not hasattr(self, "_buffers"):
            self._buffers: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def _draw(self, fresh: bool = True) -> None:
        if not self._samples.count:
            agree_on_seed(self.param_groups)
            weights = self._collect(self._buffers)
            warn_of_drowning(weights)
            self._samples = Samples(weights, self.param_groups[0]["sync"])
        self._drawn = self._samples.weights
        self._samples.draw(fresh)

    @torch.no_grad()
    def _draw_for_evaluation(self) -> None:
        self._drawn = self._collect({})
        for group in self.param_groups:
            group["draws"] += 1
        perturb(self._drawn, EVALUATION, train=False)

    @torch.no_grad()
    def _leave(self, train: bool) -> None:
        self._samples.leave() if train else restore(self._drawn, keep=False)
        self._drawn = []

    @torch.no_grad()
    def _abandon(self) -> None:
        """The mean back into the parameters, and nothing of the samples kept."""
        restore(self._drawn, keep=False)
        self._forget()

    def _sampled_loss(self, closure: Callable[[], Any]) -> Any:
        """Mean loss over the samples. The last one stays in place: the update reads it there."""
        losses = []
        for _ in range(self.param_groups[0]["mc_samples"]):
            if self._drawn:
                self._leave(train=True)
            self._draw()
            with torch.enable_grad():
                losses.append(closure())
            check_moved((w.param for w in self._drawn), losses[-1])
        self._samples.hold()
        silent = any(loss is None for loss in losses)
        return None if silent else sum(losses[1:], losses[0]) / len(losses)

    def _overflowed(self) -> bool:
        found = getattr(self, "found_inf", None)  # GradScaler's
        return found is not None and self._samples.overflowed(found)

    def _collect(self, buffers: dict[Tensor, Tensor]) -> list[Weight]:
        return collect(self.param_groups, self.state, buffers)

    def _refuse_a_sample(self, call: str) -> None:
        if self._drawn:
            raise InputError(
                f"{call} inside a sampling context: the weights are a sample there, not the mean; call it outside"
            )

    def _refuse_gradients_at_the_mean(self) -> None:
        """A step without samples is for set-up calls only: those have no gradients, or lr = 0."""
        every = [(group, param) for group in self.param_groups for param in group["params"]]
        if any(param.grad is not None and float(group["lr"]) != 0.0 for group, param in every):
            raise InputError(
                "step() found gradients but no sample: they were taken at the mean; use step(closure), or "
                "compute them inside `with optimizer.sampled_params(train=True):`"
            )
