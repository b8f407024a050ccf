"""IVON, the improved variational online Newton method: Adam's cost, and a Gaussian over the weights (alg:ivon).

    1  ĝ ← ∇ℓ(θ),  θ ~ N(m, diag σ²)                       gradient at a sample
    2  ĥ ← ĝ·(θ − m)/σ²                                    reparametrised estimate of the Hessian's diagonal
    3  g ← β₁ g + (1 − β₁) ĝ
    4  h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    5  ḡ ← g/(1 − β₁ᵗ)
    6  m ← m − α (ḡ + δ m)/(h + δ)
    7  σ ← 1/√(λ (h + δ))

`sigma`, `sample` and `update` below are these lines, on tensors. `IVON.step` draws, lets the closure compute gradients,
and updates. `samples.py` holds m and θ, `fused.py` computes the lines over many weights, and `reference.py`
is the same algorithm as a plain loop.

References: Shen et al., "Variational Learning is Effective for Large Deep Networks", ICML 2024;
Yang et al., "Variational Learning Induces Adaptive Label Smoothing", arXiv 2502.07273 (2025).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from bayesmooth.errors import InputError
from bayesmooth.optim import settings
from bayesmooth.optim.fused import choose_backend
from bayesmooth.optim.params import CheckedOptimizer, agree_on_seed, call_closure, choose_seed, whole
from bayesmooth.optim.samples import Place, Samples, Weight, make_weight, split_weights, tell_autograd
from bayesmooth.optim.schedule import RunSchedule, warn_if_rate_stays
from bayesmooth.posterior import Posterior, name_parameters
from bayesmooth.randomness import EVALUATION


def sigma(h: Tensor, λ: float, δ: float) -> Tensor:
    """σ = 1/√(λ(h + δ)), line 7."""
    return (λ * (h + δ)).rsqrt()


def sample(m: Tensor, h: Tensor, e: Tensor, λ: float, δ: float) -> Tensor:
    """θ ~ N(m, diag σ²), from e ~ N(0, I)."""
    return m.addcmul(sigma(h, λ, δ), e)


def product(ĝ: Tensor, θ: Tensor, m: Tensor, squared: bool) -> Tensor:
    """The product that line 2 averages over the samples of a step: ĝ·(θ − m), or ĝ² with hess_approx='gradsq'."""
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
    α: float | Tensor,
    radius: float,
    debias: float,
    squared: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Lines 2 to 6: m, g and h after a step; ĝΔ is the `product` above, `debias` is 1 − β₁ᵗ."""
    precision = h + δ
    ĥ = λ * ĝΔ if squared else λ * ĝΔ * precision  # ĝ·(θ − m)/σ²
    g = g.lerp(ĝ, 1 - β1)
    d = (1 - β2) * (ĥ - h)  # so that no digits are lost to rounding where β₂ is close to 1
    h = (h + d).addcdiv(d * d, precision, value=0.5)
    ḡ = g / debias
    step = (ḡ + δ * m) / (h + δ)
    m = m - α * (step.clamp(-radius, radius) if radius < math.inf else step)
    return m, g, h


class IVON(CheckedOptimizer):
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

    Backward passes in one context add up; several contexts before a `step` are several samples, and are averaged.
    Gradients may be clipped, masked, unscaled or removed in the closure, or between the context and `step`; after
    several samples `.grad` is their average, and a change to it changes each. `zero_grad()` keeps the samples so
    far, unless they have a NaN or inf; an exception drops them. BatchNorm's running statistics are gathered under
    samples, which suits averaged predictions; for those at the mean `schedule` computes them anew at the end.

    Arguments:
        lr: α. With `rescale_lr` it is multiplied by (h₀ + δ), so that m moves by lr · ḡ where h is h₀. ḡ is an average
            of gradients and SGD's momentum of 0.9 a sum, ten times as large: lr = 0.1 here is 0.01 there. With `noise`
            a step moves each tensor by about lr of its size: 0.01 to 0.1.
        ess: λ, the effective sample size: the number of training examples. Smaller means more noise.
        hess_init: h₀. At the start σ = 1/√(λ(h₀ + δ)): only that product counts. A network that learns nothing has too
            much noise (raise h₀), one that memorises wrong labels has too little. Published recipes lie between 0.05
            and 1, at 50,000 examples. `diagnostics()` compares σ with the weights.
        beta1, beta2: momenta of g and h. h learns over about 1/(1 − β₂) steps. Left out, β₂ = 1 − 2/steps; without
            `steps` it is 1 − 10⁻⁵, which is right for 200,000 steps. β₂ = 1 keeps the covariance fixed.
        weight_decay: δ; the prior's precision is λδ. The default is the public package's; the paper has 1e-3.
        mc_samples: samples per step; the closure is called once for each.
        hess_approx: 'price' is ĥ above; 'gradsq' is λĝ².
        clip_radius: bound on each entry of (ḡ + δm)/(h + δ).
        sync: of the public package, and False: DDP averages gradients over ranks.
        debias: divide g by 1 − β₁ᵗ.
        noise: c. Noise and step are then relative to the size of each tensor, so that they mean the same in every
            network (`settings.py` has the formulas): σ = noise × size/√L for each of L matrices. 0.3 to 2. More of it
            resists wrong labels, and needs a larger lr. It replaces hess_init, rescale_lr and weight_decay.
        steps: of the run. `schedule` needs them, and β₂ follows from them.
        seed, generator: the source of the noise; by default torch's seed. The global generator is not touched.
        fused: None chooses: the C kernels for float32 on the CPU, plain torch elsewhere. True: the kernels or an error.
            False: plain torch.
    """

    alike = ("mc_samples",)
    replaced = ("hess_init", "weight_decay", "rescale_lr")
    _step_supports_amp_scaling = True  # GradScaler hands over its scale and its verdict

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        ess: float,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float | None = None,
        weight_decay: float | None = None,
        mc_samples: int = 1,
        hess_approx: str = "price",
        clip_radius: float = float("inf"),
        sync: bool = False,
        debias: bool = True,
        rescale_lr: bool = True,
        *,
        steps: int | None = None,
        noise: float | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        fused: bool | None = None,
    ) -> None:
        if noise is not None and (hess_init != 1.0 or weight_decay or not rescale_lr):
            raise InputError(
                f"noise={noise} with hess_init={hess_init}, weight_decay={weight_decay}, rescale_lr={rescale_lr}: "
                "noise and step are relative to the weights then, which replaces these; leave them out"
            )
        if weight_decay is None:
            weight_decay = 1e-4 if noise is None else 0.0
        defaults = {
            "lr": lr,
            "ess": ess,
            "hess_init": hess_init,
            "beta1": beta1,
            "beta2": settings.choose_beta2(steps) if beta2 is None else beta2,
            "weight_decay": weight_decay,
            "mc_samples": mc_samples,
            "hess_approx": hess_approx,
            "clip_radius": clip_radius,
            "sync": sync,
            "debias": debias,
            "rescale_lr": rescale_lr,
            "noise": noise,
            "fused": fused,
            "seed": choose_seed(seed, generator),
            "draws": 0,  # evaluation draws so far
            "momentum": None,  # β₁ where a scheduler sets it
        }
        super().__init__(params, defaults)
        self.steps = steps  # of the run, as far as it was said
        self._samples = Samples()

    @classmethod
    def auto(cls, model: nn.Module, batches: Any, epochs: float, **options: Any) -> "IVON":
        """IVON for the trainable weights of a model and one run, with nothing chosen by the data: `fit` does that.

        `ess` and `steps` follow from `batches`, the training loader or a list of batches, and from `epochs`. lr, the
        largest of the run, is 0.03, and noise 1, unless `options` say otherwise; `schedule` lets lr fall to zero.
        """
        weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        chosen = {"lr": 0.03, "noise": 1.0, "ess": settings.count_examples(batches)}
        chosen["steps"] = settings.count_steps(batches, epochs)
        return cls(weights, **(chosen | options))

    # ---- draw, gradient, update ----

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update mean and variance from the samples since the last step; a closure is called at new ones.

        Returns the mean of the results of the closure, of a tuple, dict or the like the last one; parameters without a
        gradient stay at their mean.
        """
        samples = self._samples
        if samples.place is Place.EVALUATION:
            raise InputError("step() inside an evaluation context; call it outside")
        try:
            loss = None if closure is None else self._call_at_samples(closure)
            samples.end(exchange=False)  # the update reads the last sample in the parameters
            if samples.count and not getattr(self, "found_inf", None):  # GradScaler's verdict
                self._update(1.0 / float(getattr(self, "grad_scale", None) or 1.0))
            elif not samples.count and self._could_move():
                raise InputError(
                    "step() found gradients but no sample: they were taken at the mean; use step(closure), or "
                    "compute them inside `with optimizer.sampled_params(train=True):`"
                )
        finally:
            samples.abandon()
        return loss

    def _call_at_samples(self, closure: Callable[[], Any]) -> Any:
        """Mean loss over the samples of this step, or at that of the training context that `step` is called in."""
        samples, count, losses = self._samples, self.param_groups[0]["mc_samples"], []
        inside = samples.place is Place.TRAINING
        if inside and count > 1:
            raise InputError(f"step(closure) in a context takes one sample, not mc_samples={count}: call it outside")
        _, overflow = [vars(self).pop(name, None) for name in ("grad_scale", "found_inf")]  # or they stay for ever
        if overflow is not None:
            raise InputError(
                "step(closure) with a GradScaler: it checks the gradients before the closure computes them; compute "
                "them inside `with optimizer.sampled_params(train=True):`, then call scaler.step(optimizer)"
            )
        for _ in range(count):
            if not inside:
                samples.end()
                self._draw_next()
            losses.append(call_closure(closure, self.param_groups))
        if count > 1 and all(isinstance(loss, Tensor | float) for loss in losses):
            return sum(losses[1:], losses[0]) / count
        return losses[-1]

    def _could_move(self) -> bool:
        """Whether there are gradients to lose: a set-up call, as checkpointing makes one, has none, or lr = 0."""
        moving = [group["params"] for group in self.param_groups if float(group["lr"]) != 0.0]
        return any(param.grad is not None for params in moving for param in params)

    @contextmanager
    def sampled_params(self, train: bool = False, fresh: bool = True) -> Iterator[None]:
        """Inside, the weights are a draw from the posterior; afterwards the mean is back, bit for bit.

        `train` keeps the draw and its gradients for `step`. `fresh=False` enters the last training draw again (the
        first time, a new one), for micro-batches whose gradients add up. Inside another context, or a closure that
        `step` calls, nothing is drawn. A `step(closure)` inside a training context takes that context's sample.
        """
        samples = self._samples
        if samples.place in (Place.TRAINING, Place.EVALUATION):
            yield
        elif train:
            try:
                self._draw_next(fresh)
                yield
                samples.end()
            except BaseException:
                samples.abandon()
                raise
        else:
            with samples.evaluating(self._collect()) as weights:
                for group in self.param_groups:
                    group["draws"] += 1
                self._draw(weights, None)
                yield

    def _draw_next(self, fresh: bool = True) -> None:
        """The next sample of this step into the parameters; not `fresh`, the last one again."""
        samples = self._samples
        if not samples.count:
            if dist.is_available() and dist.is_initialized():
                agree_on_seed(self.param_groups)
            samples.weights = self._collect()
        self._draw(samples.weights, samples.begin(fresh))

    def _collect(self) -> list[Weight]:
        """Every weight that takes gradients, kept from step to step; frozen ones are never touched."""
        kept, weights = self._samples.kept, []
        every = [(group, param) for group in self.param_groups for param in group["params"]]
        for stream, (group, param) in enumerate(every):
            if param.requires_grad:
                w, state = kept.get(param), self.state[param]
                if w is None or not w.fits(group, state, stream):
                    w = kept[param] = make_weight(param, group, state, stream)
                    w.backend = choose_backend(w, sample, product, update)
                weights.append(w)
        if relative := [w for w in weights if w.group["noise"] is not None]:
            settings.follow_sizes(relative)
        return weights

    @torch.no_grad()
    def _draw(self, weights: list[Weight], number: int | None) -> None:
        """θ into the parameters: sample `number` of this step, or one for evaluation."""
        for chunk in split_weights(weights):
            group, λ, δ = chunk[0].group, float(chunk[0].group["ess"]), float(chunk[0].group["weight_decay"])
            if number is None:
                name = EVALUATION, [group["draws"]] * len(chunk)
            else:
                name = number, [w.state["step"] for w in chunk]
            chunk[0].backend.draw(chunk, group["seed"], *name, λ, δ)
        tell_autograd(weights)

    def _update(self, scale: float) -> None:
        """Lines 2 to 6 for all weights that have gradients, each multiplied by `scale`; the others stay at m."""
        count, weights = self._samples.count, self._samples.finish()
        relative = [w for w in weights if w.group["noise"] is not None]
        rates = settings.find_rates(relative, count, scale) if relative else {}
        for chunk in split_weights(weights, lambda w: (w.state["step"], w.sums is None)):
            group, t = chunk[0].group, chunk[0].state["step"] + 1
            δ = float(group["weight_decay"])
            β1 = float(group["beta1"] if group["momentum"] is None else group["momentum"])
            rate = group["hess_init"] + δ if group["rescale_lr"] else 1.0
            chunk[0].backend.update(
                chunk,
                [rates.get(w, rate) for w in chunk],
                count,
                scale,
                λ=float(group["ess"]),
                δ=δ,
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
        if self.steps is not None and any(w.state["step"] == self.steps for w in weights):
            warn_if_rate_stays(self)

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """No gradients; samples whose gradients would be lost are kept for the average first, if they are finite.

        `.grad` is None afterwards, also with `set_to_none=False`: zeros could not be told from gradients at the mean.
        """
        if self._samples.place is Place.PENDING:
            self._samples.keep_finite()
        super().zero_grad()
        for w in self._samples.weights:
            w.before = None

    # ---- around training ----

    def schedule(self, model: nn.Module | None = None, batches: Any = None, warmup: float = 0.05) -> RunSchedule:
        """The schedule that a run needs: call its `step()` after each of the `steps` that the constructor was given.

        lr falls to zero on a cosine, after rising over the share `warmup`. After the last step BatchNorm's statistics
        in `model` are computed anew at the mean of the weights, from `batches`, the training loader.
        """
        return RunSchedule(self, self.steps, model, batches, warmup)

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the names in `model` (or those that the constructor was given)."""
        self._samples.check_outside("posterior()")
        names, mean, std = name_parameters(self.param_groups, model), {}, {}
        for w in self._collect():
            if (name := names.get(w.param)) is not None:
                mean[name] = whole(w.state.get("mean", w.param))
                std[name] = sigma(whole(w.state["hess"]), float(w.group["ess"]), float(w.group["weight_decay"]))
        return Posterior(mean, std)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, Any]:
        """Figures to look at when training fails.

        noise_to_weight, layers: σ over the weights, root mean squares, of all and of every matrix. 0.5 to 2 is usual;
            far above, noise drowns the signal.
        hess_moved: share of weights whose h is over 1 % from h₀. Near 0, lower beta2 or train longer.
        hess_from_data: share of the mean of h that the data gave; the rest comes from h₀, after decay. Short runs
            have a few per cent: there σ is a schedule, and only its relative shape is learned.
        std, steps: the root mean square of σ; updates so far.
        """
        self._samples.check_outside("diagnostics()")
        stds = {w: sigma(w.hess, float(w.group["ess"]), w.group["weight_decay"]) for w in self._collect()}
        return settings.describe_weights(stds)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, with the state of 16-bit parameters in float32."""
        self._samples.check_outside("load_state_dict()")
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"steps": self.steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._samples = Samples()
