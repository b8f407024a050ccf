"""IVON, the improved variational online Newton method: Adam's cost, and a Gaussian over the weights (alg:ivon).

    1  ĝ ← ∇ℓ(θ),  θ ~ N(m, diag σ²)                       gradient at a sample
    2  ĥ ← ĝ·(θ − m)/σ²                                    reparametrised estimate of the Hessian's diagonal
    3  g ← β₁ g + (1 − β₁) ĝ
    4  h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    5  ḡ ← g/(1 − β₁ᵗ)
    6  m ← m − α (ḡ + δ m)/(h + δ)
    7  σ ← 1/√(λ (h + δ))

`sigma`, `sample` and `update` below are these lines, on tensors. `IVON.step` draws, lets the closure compute gradients,
and updates. `samples.py` knows where m and θ are, `fused.py` computes the lines over many weights, and `reference.py`
is the same algorithm as a plain loop.

References: Shen et al., "Variational Learning is Effective for Large Deep Networks", ICML 2024;
Yang et al., "Variational Learning Induces Adaptive Label Smoothing", arXiv 2502.07273 (2025).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from bayesmooth.calling import recompute_batchnorm
from bayesmooth.errors import InputError
from bayesmooth.optim import settings
from bayesmooth.optim.checkpoints import convert_ivon_opt, state_kept_wide
from bayesmooth.optim.fused import Compiled, Kernels, Noise, Rule, Torch, fits_kernels
from bayesmooth.optim.groups import (
    add_group,
    check_alike,
    check_moved,
    choose_seed,
    without_graph,
)
from bayesmooth.optim.samples import (
    AT_A_SAMPLE,
    PENDING,
    TRAINING,
    Samples,
    Weight,
    make_weight,
    refuse_replaced,
    split_weights,
    tell_autograd,
)
from bayesmooth.optim.schedule import RunSchedule
from bayesmooth.optim.sharding import agree_on_seed, whole
from bayesmooth.posterior import Posterior, name_parameters
from bayesmooth.randomness import EVALUATION

Number = float | Tensor


def sigma(h: Tensor, λ: float, δ: float) -> Tensor:
    """σ = 1/√(λ(h + δ)), line 7."""
    return (λ * (h + δ)).rsqrt()


def sample(m: Tensor, h: Tensor, e: Tensor, λ: float, δ: float) -> Tensor:
    """θ ~ N(m, diag σ²), from e ~ N(0, I)."""
    return m.addcmul(sigma(h, λ, δ), e)


def product(ĝ: Tensor, θ: Tensor, m: Tensor, squared: bool) -> Tensor:
    """What line 2 averages over the samples of a step: ĝ·(θ − m), or ĝ² with hess_approx='gradsq'."""
    return ĝ * ĝ if squared else ĝ * (θ - m)


def update(
    m: Tensor,
    g: Tensor,
    h: Tensor,
    ĝ: Tensor,
    ĝΔ: Tensor,
    *,
    λ: float,
    δ: float,
    β1: float,
    β2: float,
    α: Number,
    radius: float,
    debias: Number,
    squared: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Lines 2 to 6: m, g and h after a step; ĝΔ is the `product` above, `debias` is 1 − β₁ᵗ."""
    precision = h + δ
    ĥ = λ * ĝΔ if squared else λ * ĝΔ * precision  # ĝ·(θ − m)/σ²
    g = g.lerp(ĝ, 1 - β1)
    d = (1 - β2) * (ĥ - h)  # so that no digits are lost to rounding where β₂ is close to 1
    h = (h + d).addcdiv(d * d, precision, value=0.5)
    ḡ = g / debias
    step = (ḡ + δ * m) / (h + δ)  # not by `alpha`: compiled, torch 2.13 keeps its first value
    m = m - α * (step.clamp(-radius, radius) if radius < math.inf else step)
    return m, g, h


RULE = Rule(sigma, sample, product, update)
TORCH, COMPILED, KERNELS = Torch(RULE), Compiled(RULE), Kernels(RULE)


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

    Several backward passes in one context add up. Several contexts before a `step` are several samples, and are
    averaged; `fresh=False` enters the last sample again instead. Gradients may be clipped, masked, unscaled or removed
    in the closure, or between the context and `step`. After several samples `.grad` is their average, and what is done
    to it is done to all of them. `zero_grad()` keeps the samples so far, unless they have a NaN or inf; an exception
    drops them.

    `bayesmooth.fit` trains several of these and lets held-out labels choose; `IVON.auto` is one of them.

    Arguments:
        lr: α. With `rescale_lr` it is multiplied by (h₀ + δ), so that m moves by lr · ḡ where h is h₀. ḡ is an average
            of gradients and SGD's momentum of 0.9 a sum, ten times as large: lr = 0.1 here is 0.01 there. With `noise`
            a step moves each tensor by about lr of its size: 0.01 to 0.1.
        ess: λ, the effective sample size: the number of training examples. Smaller means more noise.
        hess_init: h₀. At the start σ = 1/√(λ(h₀ + δ)): only that product counts. A network that learns nothing has too
            much noise (raise h₀), one that memorises wrong labels has too little (lower it). Published recipes
            lie between 0.05 and 1, at 50,000 examples. `diagnostics()` compares σ with the weights.
        beta1, beta2: momenta of g and h. h learns over about 1/(1 − β₂) steps. Left out, β₂ = 1 − 2/steps; without
            `steps` it is 1 − 10⁻⁵, as in the public package, which is right for 200,000 steps. β₂ = 1 keeps the
            covariance fixed.
        weight_decay: δ. The prior's precision is λδ. The default is the public package's; the paper has 1e-3, and so
            have all figures in these pages.
        mc_samples: samples per step; the closure is called once for each.
        hess_approx: 'price' is ĥ above; 'gradsq' is λĝ².
        clip_radius: bound on each entry of (ḡ + δm)/(h + δ).
        sync: average gradients over ranks in `step`, for models that are not wrapped in DDP.
        debias: divide g by 1 − β₁ᵗ.
        rescale_lr: see lr.
        noise: c. Noise and step are then relative to the size of each tensor, so that they mean the same in every
            network (`settings.py` has the formulas): σ = noise × size/√L for each of L matrices. 0.3 to 3. More of it
            resists wrong labels, and needs a larger lr. It replaces hess_init, rescale_lr and weight_decay.
        steps: of the run. `schedule` needs them, and β₂ follows from them.
        antithetic: draw the samples of a step in pairs mirrored about the mean.
        seed, generator: where the noise comes from; by default torch's seed, so that two optimizers draw the same
            noise. The global generator is not touched.
        fused: None chooses: the C kernels for float32 on the CPU, torch.compile on an accelerator, plain torch
            elsewhere. True: the kernels or an error. 'compile': torch.compile everywhere. False: plain torch.

    BatchNorm's running statistics are gathered under samples, as each forward pass sees them. They suit averaged
    predictions; for those at the mean, `schedule` computes them anew at the end, or `recompute_batchnorm` whenever you
    like.
    """

    _step_supports_amp_scaling = True  # GradScaler hands over its scale and its verdict
    _own: dict[str, Any] = {}  # noqa: RUF012  settings that a subclass adds, set before IVON's __init__

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        ess: float,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float | Literal["auto"] | None = None,
        weight_decay: float | None = None,
        mc_samples: int = 1,
        hess_approx: str = "price",
        clip_radius: float = float("inf"),
        sync: bool = False,
        debias: bool = True,
        rescale_lr: bool = True,
        *,
        antithetic: bool = False,
        steps: int | None = None,
        noise: float | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        fused: bool | str | None = None,
    ) -> None:
        if noise is not None and (hess_init != 1.0 or weight_decay or not rescale_lr):
            raise InputError(
                f"noise={noise} with hess_init={hess_init}, weight_decay={weight_decay}, rescale_lr={rescale_lr}: "
                "noise and step are relative to the weights then, which replaces these; leave them out"
            )
        if weight_decay is None:
            weight_decay = 1e-4 if noise is None else 0.0
        if beta2 == "auto" or (beta2 is None and steps is not None):
            beta2 = settings.choose_beta2(steps)
        defaults = {
            "lr": lr,
            "ess": ess,
            "hess_init": hess_init,
            "beta1": beta1,
            "beta2": 0.99999 if beta2 is None else beta2,
            "weight_decay": weight_decay,
            "mc_samples": mc_samples,
            "hess_approx": hess_approx,
            "clip_radius": clip_radius,
            "sync": sync,
            "debias": debias,
            "rescale_lr": rescale_lr,
            "noise": noise,
            "antithetic": antithetic,
            "fused": fused,
            "seed": choose_seed(seed, generator),
            "draws": 0,  # evaluation draws so far
            "momentum": None,  # β₁ where a scheduler sets it
        }
        super().__init__(params, defaults | self._own)
        self.steps = steps  # of the run, as far as it was said
        self._samples = Samples()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, once their values and tensors have passed the checks."""
        add_group(self, param_group, self._check)

    @classmethod
    def auto(
        cls,
        model: nn.Module,
        batches: Any,
        epochs: float,
        *,
        lr: float = 0.03,
        noise: float = 1.0,
        **options: Any,
    ) -> "IVON":
        """IVON for the trainable weights of a model and one run, with nothing chosen by the data: `fit` does that.

        `ess` and `steps` follow from `batches`, the training loader or a list of batches, and from `epochs`. lr is the
        largest of the run: let it fall to zero on a cosine after a warm-up, `optimizer.schedule(model, loader)`.
        """
        weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        given = {
            "ess": settings.count_examples(batches),
            "steps": max(round(epochs * len(batches)), 1),
            "noise": noise,
        }
        return cls(weights, lr, **(given | options))

    # ---- draw, gradient, update ----

    @contextmanager
    def sampled_params(self, train: bool = False, fresh: bool = True) -> Iterator[None]:
        """Inside, the weights are a draw from the posterior; afterwards the mean is back, bit for bit.

        `train` keeps the draw and its gradients for `step`. `fresh=False` enters the last training draw again (the
        first time, a new one), for micro-batches whose gradients add up. Inside another context, or a closure that
        `step` calls, nothing is drawn. A `step(closure)` inside a training context takes that context's sample.
        """
        if self._samples.place in AT_A_SAMPLE:
            yield
            return
        try:
            self._draw(train, fresh)
            yield
            self._samples.leave()
        except BaseException:
            self._samples.abandon()
            raise

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update mean and variance from the samples since the last step; a closure is called at new ones.

        Returns the mean of what the closure returned, of a tuple, dict or the like the last one; parameters without a
        gradient stay at their mean.
        """
        samples = self._samples
        try:
            loss = None if closure is None else self._call_at_samples(closure)
            samples.move("step", "step()")
            if samples.place is TRAINING:  # the update reads the last sample in the parameters
                if replaced := [w for w in samples.drawn if w.replaced]:
                    refuse_replaced(replaced[0])
                samples.hold()
            overflow = getattr(self, "found_inf", None)  # GradScaler's verdict
            if not samples.count:
                self._refuse_gradients_at_the_mean()
            elif overflow is None or not samples.on_any_rank(bool(overflow)):
                self._update(1.0 / float(getattr(self, "grad_scale", None) or 1.0))
        finally:
            samples.abandon()
        return loss

    @torch.no_grad()
    def _draw(self, train: bool = True, fresh: bool = True) -> None:
        """A sample into the parameters: the next one of this step, or one for evaluation."""
        samples, number = self._samples, 0
        weights = samples.weights if train and samples.count else self._collect()
        if train:
            if not samples.count:
                if dist.is_available() and dist.is_initialized():
                    agree_on_seed(self.param_groups)
                if not any(w.state["step"] for w in weights):
                    settings.warn_if_slow(weights)
                samples.weights = weights
            number = samples.begin(fresh)
        else:
            weights = samples.evaluate(weights)
            for group in self.param_groups:
                group["draws"] += 1
        for chunk in split_weights(weights):
            group = chunk[0].group
            noise = Noise(group["seed"], EVALUATION, group["draws"])
            if train:
                noise = Noise(group["seed"], number, None)
                if group["antithetic"]:
                    noise = Noise(group["seed"], number // 2, None, 1.0 - 2.0 * (number % 2))
            λ, δ = float(group["ess"]), float(group["weight_decay"])
            chunk[0].backend.draw(chunk, noise, λ, δ)
        tell_autograd(weights)

    def _call_at_samples(self, closure: Callable[[], Any]) -> Any:
        """Mean loss over the samples. The last one stays in the parameters: the update reads it there."""
        if getattr(self, "found_inf", None) is not None:
            self._refuse_a_scaler()
        samples, count = self._samples, self.param_groups[0]["mc_samples"]
        inside = samples.place in AT_A_SAMPLE
        if inside and (count > 1 or samples.place is not TRAINING):
            raise InputError(
                f"step(closure) inside a sampling context with mc_samples={count}: it can take one sample there, of a "
                "training context; call it outside"
            )
        losses = []
        for index in range(count):
            if index > 0:
                samples.leave()
            if not inside:
                self._draw()
            with torch.enable_grad():
                losses.append(without_graph(closure()))
            check_moved([w.param for w in samples.weights], losses[-1])
        if len(losses) > 1 and all(isinstance(loss, Tensor | float) for loss in losses):
            return sum(losses[1:], losses[0]) / len(losses)
        return losses[-1]

    def _update(self, scale: float) -> None:
        """The step of all weights that have gradients, each multiplied by `scale`; the others stay at their mean."""
        count, weights = self._samples.count, self._samples.finish()
        rates = {
            w: w.group["hess_init"] + float(w.group["weight_decay"])
            if w.group["rescale_lr"]
            else 1.0
            for w in weights
        }
        if relative := [w for w in weights if w.group["noise"] is not None]:
            rates |= settings.find_rates(relative, count, scale)
        for chunk in split_weights(weights, lambda w: (w.state["step"], w.sums is None)):
            group, t = chunk[0].group, chunk[0].state["step"] + 1
            β1 = float(group["beta1"] if group["momentum"] is None else group["momentum"])
            chunk[0].backend.update(
                chunk,
                [rates[w] for w in chunk],
                count,
                scale,
                λ=float(group["ess"]),
                δ=float(group["weight_decay"]),
                β1=β1,
                β2=group["beta2"],
                α=float(group["lr"]),
                radius=group["clip_radius"],
                debias=1.0 - β1**t if group["debias"] else 1.0,
                squared=group["hess_approx"] == "gradsq",
            )
            for w in chunk:
                w.state["step"] = t
        tell_autograd(weights)
        if self.steps is not None:
            settings.warn_if_rate_stays(self, weights)

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; but samples whose gradients would be lost are kept for the average first, if they are finite."""
        samples = self._samples
        if samples.place is PENDING:
            samples.keep_finite()
        super().zero_grad(set_to_none)
        for w in samples.weights:
            w.before = None
        params = [] if set_to_none else [p for g in self.param_groups for p in g["params"]]
        samples.zeroed = {p: p.grad._version for p in params if p.grad is not None}

    # ---- around training ----

    def schedule(
        self, model: nn.Module | None = None, batches: Any = None, warmup: float = 0.05
    ) -> RunSchedule:
        """What every run needs: call its `step()` after each of the `steps` that the constructor was given.

        lr falls to zero on a cosine, after rising over the share `warmup`. After the last step BatchNorm's statistics
        in `model` are computed anew at the mean of the weights, from `batches`, the training loader: training gathers
        them at samples.
        """
        if self.steps is None:
            raise InputError("schedule() without steps: give the constructor those of the run")
        if model is not None and batches is None:
            raise InputError("schedule(model): give the training loader, schedule(model, loader)")

        def finish() -> None:
            if model is not None:
                recompute_batchnorm(model, batches)

        return RunSchedule(self, self.steps, finish, warmup=warmup)

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the names in `model` (or those that the constructor was given)."""
        self._samples.move("read", "posterior()")
        names, mean, std = name_parameters(self.param_groups, model), {}, {}
        for w in self._collect():
            if (name := names.get(w.param)) is not None:
                λ, δ = float(w.group["ess"]), float(w.group["weight_decay"])
                mean[name] = whole(w.state.get("mean", w.param))
                std[name] = sigma(whole(w.state["hess"]), λ, δ)
        return Posterior(mean, std)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, Any]:
        """What to look at when training fails.

        noise_to_weight: σ over the weights, root mean squares. 0.5 to 2 is usual; far above, the noise drowns the
            signal.
        layers: the same for every weight matrix, by name (by position, if the constructor was given no names).
        hess_moved: share of weights whose h is over 1 % from h₀. Near 0, the variance has not been learned: lower
            beta2 or train longer.
        hess_from_data: share of the mean of h that the data gave; the rest is what decay has left of h₀. Short runs
            have a few per cent: there σ is a schedule, and its relative shape is what is learned.
        std: σ, root mean square.
        steps: updates so far.
        """
        self._samples.move("read", "diagnostics()")
        return settings.describe(self._collect())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; but the state of 16-bit parameters stays in float32, and that of other shapes is refused.

        A state of the public `ivon-opt` package is taken too; a warning says what it does not tell.
        """
        self._samples.move("read", "load_state_dict()")
        with state_kept_wide(self):
            super().load_state_dict(convert_ivon_opt(state_dict, self.param_groups))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"steps": self.steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._samples = Samples()

    def _check(self, group: dict[str, Any]) -> None:
        """What a group must have besides sound values and tensors."""
        check_alike(self.param_groups, "mc_samples", "sync")

    def _choose_backend(self, w: Weight) -> Torch:
        """Who computes a weight's sample and update."""
        fused, device = w.group["fused"], w.local.device
        fits = fits_kernels(w)
        if fused is True and not fits:
            raise InputError(
                "fused=True: the kernels need dense float32 weights on the CPU, and a compiler when bayesmooth was "
                f"installed; found {w.local.dtype} on {device}; use fused=None"
            )
        if fits and fused in (None, True):
            return KERNELS
        accelerated = fused is None and device.type != "cpu"
        return COMPILED if fused == "compile" or accelerated else TORCH

    def _collect(self) -> list[Weight]:
        """Every weight that takes gradients, kept from step to step; frozen ones are never touched."""
        kept, weights, stream = self._samples.kept, [], -1
        for group in self.param_groups:
            for param in group["params"]:
                stream += 1
                if not param.requires_grad:
                    continue
                w, state = kept.get(param), self.state[param]
                form = stream, id(group), id(state.get("hess")), param.dtype
                if w is None or w.form != form or w.wide is not None or w.sharded or w.replaced:
                    w = kept[param] = make_weight(param, group, state, stream, w)
                    w.form = stream, id(group), id(state["hess"]), param.dtype
                    w.backend = self._choose_backend(w)
                    w.limit = w.backend.limit(w.local.device)
                weights.append(w)
        if relative := [w for w in weights if w.group["noise"] is not None]:
            settings.follow_sizes(relative)
        return weights

    def _refuse_a_scaler(self) -> None:
        """It looks for overflows before a closure has made the gradients."""
        for name in ("found_inf", "grad_scale"):  # left in place, they would go into its next step
            vars(self).pop(name, None)
        raise InputError(
            "step(closure) with a GradScaler: it checks the gradients before the closure computes them; compute "
            "them inside `with optimizer.sampled_params(train=True):`, then call scaler.step(optimizer)"
        )

    def _refuse_gradients_at_the_mean(self) -> None:
        """A step without samples is for set-up calls only: those have no gradients, or lr = 0."""
        every = [(group, param) for group in self.param_groups for param in group["params"]]
        if any(param.grad is not None and float(group["lr"]) != 0.0 for group, param in every):
            raise InputError(
                "step() found gradients but no sample: they were taken at the mean; use step(closure), or "
                "compute them inside `with optimizer.sampled_params(train=True):`"
            )
