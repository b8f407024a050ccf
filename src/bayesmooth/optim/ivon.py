"""IVON, the improved variational online Newton method: Adam's cost, and a Gaussian over the weights (alg:ivon).

    1  ĝ ← ∇ℓ(θ),  θ ~ N(m, diag σ²)                       gradient at a sample
    2  ĥ ← ĝ·(θ − m)/σ²                                    reparametrised estimate of the Hessian's diagonal
    3  g ← β₁ g + (1 − β₁) ĝ
    4  h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    5  ḡ ← g/(1 − β₁ᵗ)
    6  m ← m − α (ḡ + δ m)/(h + δ)
    7  σ ← 1/√(λ (h + δ))

`sample` and `update` below are these lines. They work on vectors: many weights are gathered into one, computed, and
scattered back. On the CPU the C kernels do the same in one pass over memory. `weights.py` has what is kept about each
weight and the life of a sample.

References: Shen et al., "Variational Learning is Effective for Large Deep Networks", ICML 2024;
Yang et al., "Variational Learning Induces Adaptive Label Smoothing", ICML 2025.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from bayesmooth.errors import InputError
from bayesmooth.optim import kernels
from bayesmooth.optim.auto import auto_beta2, auto_hess_init
from bayesmooth.optim.diagnostics import Look, check_start, diagnose, is_due, steps_of
from bayesmooth.optim.parameters import (
    add_group,
    check_alike,
    check_moved,
    momentum_of,
    seed_of,
    state_kept_wide,
)
from bayesmooth.optim.sharding import agree_on_seed, whole
from bayesmooth.optim.weights import (
    Samples,
    Weight,
    changed,
    chunks,
    collect,
    gather,
    in_layout_of,
    mark,
    noise,
    restore,
    scatter,
    tiles,
)
from bayesmooth.posterior import Posterior, parameter_names
from bayesmooth.randomness import EVALUATION

Number = float | Tensor


def sample(m: Tensor, h: Tensor, e: Tensor, λ: float, δ: float) -> Tensor:
    """θ ~ N(m, diag σ²), from e ~ N(0, I)."""
    σ = (λ * (h + δ)).rsqrt()
    return m.addcmul(σ, e)


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
    step = ḡ.add(m, alpha=δ) / (h + δ)
    m = m - α * (step.clamp(-radius, radius) if radius < math.inf else step)
    return m, g, h


def update_from_sample(
    m: Tensor, g: Tensor, h: Tensor, θ: Tensor, ĝ: Tensor, **numbers: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The update after one sample."""
    return update(m, g, h, ĝ, product(ĝ, θ, m, numbers["squared"]), **numbers)


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
    averaged; `fresh=False` enters the last sample again instead. Gradients may be clipped or unscaled in the closure,
    or between the context and `step`. If they are clipped once after several samples, the same factor is applied to all
    of them. `zero_grad()` keeps the samples so far for the average, unless the last one has a NaN or inf; an exception
    drops them all.

    A good start for any network and data: `lr=0.1`, `ess` = number of training examples, and the `epochs` and `steps`
    of the run, from which h₀ and β₂ follow.

    Arguments:
        lr: α. With `rescale_lr` it is multiplied by (h₀ + δ), so that learning rates of SGD with momentum carry
            over: 0.1 to 0.2.
        ess: λ, the effective sample size: the number of training examples. Smaller means more noise.
        hess_init: h₀. At the start σ = 1/√(λ(h₀ + δ)): only that product counts. A network that learns nothing has too
            much noise (raise h₀), one that memorises wrong labels has too little (lower it). Published recipes
            lie between 0.05 and 1, at 50,000 examples. `diagnostics()` compares σ with the weights.
            "auto" computes it from the weights and from `epochs`, the passes over the training set that the run
            will make (docs/settings.md); `noise` multiplies the σ that it sets. None is "auto" if `epochs` is given,
            and otherwise 1.
        beta1, beta2: momenta of g and h. h learns over about 1/(1 − β₂) steps: for short runs take
            β₂ = 1 − 2/steps, as "auto" does, given `steps`. β₂ = 1 keeps the covariance fixed. None is "auto" if
            `steps` is given, and otherwise 1 − 10⁻⁵.
        weight_decay: δ. The prior's precision is λδ.
        mc_samples: samples per step; the closure is called once for each.
        hess_approx: 'price' is ĥ above; 'gradsq' is λĝ².
        clip_radius: bound on each entry of (ḡ + δm)/(h + δ).
        sync: average gradients over ranks in `step`, for models that are not wrapped in DDP.
        debias: divide g by 1 − β₁ᵗ.
        rescale_lr: see lr.
        antithetic: draw the samples of a step in pairs mirrored about the mean.
        seed, generator: where the noise comes from; by default torch's seed, so that two optimizers draw the same
            noise. The global generator is not touched.
        fused: None chooses: the C kernels for float32 on the CPU, torch.compile on an accelerator, plain torch
            elsewhere. True: the kernels or an error. 'compile': torch.compile everywhere. False: plain torch.

    BatchNorm's running statistics are gathered under samples, as each forward pass sees them. They suit averaged
    predictions; before predicting at the mean, call `bayesmooth.posterior.recompute_batchnorm`.
    """

    _step_supports_amp_scaling = True  # GradScaler hands over its scale and its verdict

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        ess: float,
        hess_init: float | Literal["auto"] | None = None,
        beta1: float = 0.9,
        beta2: float | Literal["auto"] | None = None,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        hess_approx: str = "price",
        clip_radius: float = float("inf"),
        sync: bool = False,
        debias: bool = True,
        rescale_lr: bool = True,
        *,
        antithetic: bool = False,
        epochs: float | None = None,
        steps: int | None = None,
        noise: float | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        fused: bool | str | None = None,
    ) -> None:
        if hess_init is None:
            hess_init = "auto" if epochs is not None and rescale_lr else 1.0
        if beta2 is None:
            beta2 = "auto" if steps is not None else 0.99999
        if hess_init == "auto":
            if not rescale_lr:
                raise InputError(
                    "hess_init='auto' with rescale_lr=False: its rule is for rescaled learning rates; "
                    "leave rescale_lr on, or give hess_init a number"
                )
            params = list(params)  # type: ignore[assignment]
            hess_init = auto_hess_init(
                params, lr=lr, ess=ess, weight_decay=weight_decay, epochs=epochs, noise=noise
            )
        if beta2 == "auto":
            beta2 = auto_beta2(steps)
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
            "momentum": None,  # β₁ where a scheduler sets it
        }
        super().__init__(params, defaults)
        self._forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, once their values and tensors have passed the checks."""
        add_group(self, param_group, lambda _: check_alike(self.param_groups, "mc_samples", "sync"))

    @contextmanager
    def sampled_params(self, train: bool = False, fresh: bool = True) -> Iterator[None]:
        """Inside, the weights are a draw from the posterior; afterwards the mean is back, bit for bit.

        `train` keeps the draw and its gradients for `step`. `fresh=False` enters the last training draw again (the
        first time, a new one), for micro-batches whose gradients add up. Inside another context, or a closure that
        `step` calls, nothing is drawn. A `step(closure)` inside a training context takes that context's sample.
        """
        if self._sampled:
            yield
            return
        try:
            self._draw(fresh) if train else self._draw_for_evaluation()
            yield
            self._leave()
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
            if self._sampled:
                self._hold()
            if not self._samples.count:
                self._refuse_gradients_at_the_mean()
            elif not self._overflowed():
                self._samples.finish()
                self._update(1.0 / float(getattr(self, "grad_scale", None) or 1.0))
        finally:
            self._abandon()
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; but a sample whose gradients would be lost goes into the average first, if it is finite."""
        if self._samples.pending and not self._sampled:
            self._samples.fold() if self._samples.finite() else self._samples.drop()
        super().zero_grad(set_to_none)
        self._samples.forget_earlier()
        if not set_to_none:
            every = (p for group in self.param_groups for p in group["params"])
            self._zeros.update((p, p.grad._version) for p in every if p.grad is not None)

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
    def diagnostics(self) -> dict[str, Any]:
        """What to look at when training fails.

        noise_to_weight: σ over the weights, root mean squares. 0.5 to 2 is usual; far above, the noise drowns the
            signal.
        layers: the same for every weight matrix, by name (by position, if the constructor was given no names).
        hess_moved: share of weights whose h is over 1 % from h₀. Near 0, the variance has not been learned: lower
            beta2 or train longer.
        std: σ, root mean square.
        steps: updates so far.

        The optimizer itself looks at these figures before the first step and at steps 1, 100, 200, 400, …, and warns
        once for each setting that it finds wrong, with the number to change it to.
        """
        self._refuse_a_sample("diagnostics()")
        return diagnose(self._collect({}))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; but the state of 16-bit parameters stays in float32, and that of other shapes is refused.

        A state of the public `ivon-opt` package is taken too; a warning says what it does not tell.
        """
        with state_kept_wide(self):
            super().load_state_dict(converted(state_dict, self.param_groups))
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """No sample is under way."""
        self._samples = Samples([], sync=False)  # of training, since the last step
        self._sampled: list[Weight] = []  # whose parameters hold a sample now
        if not hasattr(self, "_buffers"):
            self._buffers: dict[Tensor, Tensor] = {}
            # Gradients that zero_grad left as zeros, by version.
            self._zeros: dict[Tensor, int] = {}
            self._warned: set[str] = set()  # the settings that were found wrong

    @torch.no_grad()
    def _draw(self, fresh: bool = True) -> None:
        if not self._samples.count:
            agree_on_seed(self.param_groups)
            weights = self._collect(self._buffers)
            check_start(weights)
            self._samples = Samples(weights, self.param_groups[0]["sync"])
        draw = self._samples.begin(fresh, self._zeros)
        self._sampled = self._samples.weights
        put_samples(self._sampled, draw, train=True)

    @torch.no_grad()
    def _draw_for_evaluation(self) -> None:
        self._sampled = self._collect({})
        for group in self.param_groups:
            group["draws"] += 1
        put_samples(self._sampled, EVALUATION, train=False)

    @torch.no_grad()
    def _leave(self) -> None:
        """The context is over; after a `step` inside it, the mean is back already."""
        if not self._sampled:
            return
        training = self._sampled is self._samples.weights
        replaced = restore(self._sampled, keep=training)
        self._sampled = []
        if replaced and (training or any(w.param.shape != w.local.shape for w in replaced)):
            self._refuse_other_memory(replaced[0])
        if training:
            self._samples.hold()

    @torch.no_grad()
    def _abandon(self) -> None:
        """The mean back into the parameters, and nothing of the samples kept."""
        restore(self._sampled, keep=False)
        self._forget()

    def _sampled_loss(self, closure: Callable[[], Any]) -> Any:
        """Mean loss over the samples. The last one stays in the parameters: the update reads it there."""
        self._refuse_a_scaler()
        count, inside = self.param_groups[0]["mc_samples"], bool(self._sampled)
        if inside and (count > 1 or self._sampled is not self._samples.weights):
            raise InputError(
                f"step(closure) inside a sampling context with mc_samples={count}: it can take one sample there, of a "
                "training context; call it outside"
            )
        losses = []
        for _ in range(count):
            if not inside:
                self._leave()
                self._draw()
            with torch.enable_grad():
                losses.append(closure())
            check_moved((w.param for w in self._sampled), losses[-1])
        silent = any(loss is None for loss in losses)
        return None if silent else sum(losses[1:], losses[0]) / len(losses)

    def _hold(self) -> None:
        """The sample that the parameters hold is the last one of this step."""
        if self._sampled is not self._samples.weights:
            raise InputError("step() inside an evaluation context; call it outside")
        if replaced := [w for w in self._sampled if w.replaced]:
            self._refuse_other_memory(replaced[0])
        self._samples.hold()

    def _update(self, scale: float) -> None:
        """The step itself; now and then with a look at what it does."""
        weights = self._samples.weights
        step = steps_of(weights) + 1
        look = Look(weights) if is_due(step) else None
        take_step(weights, self._samples.count, scale)
        for setting, problem in (look.problems(step) if look else {}).items():
            if setting not in self._warned:
                self._warned.add(setting)
                warnings.warn(problem, stacklevel=4)

    def _overflowed(self) -> bool:
        found = getattr(self, "found_inf", None)  # GradScaler's
        return found is not None and self._samples.overflowed(found)

    def _collect(self, buffers: dict[Tensor, Tensor]) -> list[Weight]:
        return collect(self.param_groups, self.state, buffers)

    def _refuse_a_sample(self, call: str) -> None:
        if self._sampled:
            raise InputError(
                f"{call} inside a sampling context: the weights are a sample there, not the mean; call it outside"
            )

    def _refuse_a_scaler(self) -> None:
        """It looks for overflows before a closure has made the gradients."""
        given = [vars(self).pop(name, None) for name in ("found_inf", "grad_scale")]
        if given[0] is not None:  # left in place, they would go into its next step
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

    def _refuse_other_memory(self, w: Weight) -> None:
        raise InputError(
            f"parameter #{w.stream}: its data was replaced inside a sampling context (by `p.data = …` or "
            "`model.double()`, say), and the sample is lost; do it outside the context"
        )


# ---- the lines above, over all weights ----


def put_samples(weights: list[Weight], draw: int, train: bool) -> None:
    """θ into the parameters, m into the buffers (with a mean in float32: θ before rounding)."""
    for chunk in chunks(weights):
        group = chunk[0].group
        name, sign = draw, 1.0
        if group["antithetic"] and train:
            name, sign = draw // 2, 1.0 - 2.0 * (draw % 2)
        steps = [w.state["step"] if train else group["draws"] for w in chunk]
        λ, δ = float(group["ess"]), float(group["weight_decay"])
        if chunk[0].path == "kernels":
            mark(chunk, sampled=True)
            jobs = [w.job(step) for w, step in zip(chunk, steps, strict=True)]
            rule = kernels.Rule(ess=λ, decay=δ, sign=sign)
            kernels.run("sample", jobs, rule, group["seed"], name)
            continue
        _sample_in_torch(chunk, noise(chunk, steps, name, sign), λ, δ)
    changed(weights)


def _sample_in_torch(chunk: list[Weight], e: Tensor, λ: float, δ: float) -> None:
    locals_, buffers = [w.local for w in chunk], [w.buffer for w in chunk]
    wide = chunk[0].master is not None
    if not wide:
        torch._foreach_copy_(buffers, locals_)
        mark(chunk, sampled=True)
    columns = [[w.hess for w in chunk], [w.mean for w in chunk], [w.sample for w in chunk]]
    at = 0
    for like, means, samples in tiles(chunk, *columns):
        h, m, θ = gather(like, means, samples)
        compute(chunk, sample, [θ], m, h, e[at : at + h.numel()], λ, δ)
        scatter(like, (θ, samples))
        at += h.numel()
    if wide:
        mark(chunk, sampled=True)
        torch._foreach_copy_(locals_, buffers)


def take_step(weights: list[Weight], samples: int, scale: float) -> None:
    """The update of all weights that have gradients; the others stay at their mean."""
    moved = [w for w in weights if w.grad is not None or w.sums is not None]
    for chunk in chunks(moved, key=lambda w: (w.state["step"], w.sums is None)):
        group, t = chunk[0].group, chunk[0].state["step"] + 1
        numbers = numbers_of(group, t)
        if chunk[0].path == "kernels" and chunk[0].sums is None:
            _take_step_in_kernels(chunk, numbers, scale / samples)
        else:
            _take_step_in_torch(chunk, numbers, samples, scale)
        for w in chunk:
            w.state["step"] = t
    changed(moved)


def numbers_of(group: dict[str, Any], t: int) -> dict[str, Any]:
    """The symbols of the algorithm, for step t of a group."""
    δ = float(group["weight_decay"])
    rescaled = group["hess_init"] + δ if group["rescale_lr"] else 1.0
    β1 = momentum_of(group)
    return {
        "λ": float(group["ess"]),
        "δ": δ,
        "β1": β1,
        "β2": group["beta2"],
        "α": float(group["lr"]) * rescaled,
        "radius": group["clip_radius"],
        "debias": 1.0 - β1**t if group["debias"] else 1.0,
        "squared": group["hess_approx"] == "gradsq",
    }


def _take_step_in_torch(
    chunk: list[Weight], numbers: dict[str, Any], samples: int, scale: float
) -> None:
    columns = [[w.hess for w in chunk], [w.momentum for w in chunk], [w.mean for w in chunk]]
    sums = [w.sums for w in chunk if w.sums is not None]
    if sums:
        columns += [[s for s, _ in sums], [s for _, s in sums]]
    else:
        columns += [[in_layout_of(w.hess, w.gradient()) for w in chunk], [w.sample for w in chunk]]
    # The new mean overwrites θ in the parameter.
    overwrite = not sums and chunk[0].sample is chunk[0].local
    for like, momenta, means, *rest in tiles(chunk, *columns):
        h, g, m, ĝ, last = gather(like, momenta, means, *rest)
        if scale != samples:
            ĝ = ĝ * (scale / samples)
        if sums:
            ĝΔ = last * ((scale**2 if numbers["squared"] else scale) / samples)
            compute(chunk, update, [m, g, h], m, g, h, ĝ, ĝΔ, **numbers)
        else:
            into = [last if overwrite else m, g, h]
            compute(chunk, update_from_sample, into, m, g, h, last, ĝ, **numbers)
        home = (last, rest[1]) if overwrite else (m, means)
        scatter(like, (h, like), (g, momenta), home)
    if not overwrite and chunk[0].mean is not chunk[0].local:
        torch._foreach_copy_([w.local for w in chunk], [w.mean for w in chunk])
    mark(chunk, sampled=False)


def _take_step_in_kernels(chunk: list[Weight], numbers: dict[str, Any], scale: float) -> None:
    grads = [in_layout_of(w.local, w.gradient().to(w.local.dtype)) for w in chunk]
    jobs = [w.job(0, grad, numbers["debias"]) for w, grad in zip(chunk, grads, strict=True)]
    rule = kernels.Rule(
        ess=numbers["λ"],
        decay=numbers["δ"],
        beta1=numbers["β1"],
        keep1=1.0 - numbers["β1"],
        keep2=1.0 - numbers["β2"],
        lr=numbers["α"],
        radius=numbers["radius"],
        scale=scale,
        squared=numbers["squared"],
    )
    mark(chunk, sampled=False)
    kernels.run("update", jobs, rule)


def compute(
    chunk: list[Weight], lines: Callable[..., Any], into: list[Tensor], *args: Any, **numbers: Any
) -> None:
    """The results of the lines into these vectors, compiled where the chunk asks for it and this machine can."""
    global _compilable
    if chunk[0].path == "compile" and _compilable:
        like = args[0]
        changing = {"α", "debias"}  # a tensor may change without compiling again, a float may not
        given = {
            name: like.new_tensor(value, device="cpu") if name in changing else value
            for name, value in numbers.items()
        }
        try:
            _compiled(lines)(into, *args, **given)
            return
        except Exception as problem:
            _compilable = False
            reason = next(iter(str(problem).strip().splitlines()), "no reason given")
            warnings.warn(
                f"IVON's update could not be compiled here ({type(problem).__name__}: {reason}); torch computes it "
                "uncompiled, more slowly; fused=False silences this",
                stacklevel=2,
            )
    _write(lines, into, *args, **numbers)


def _write(lines: Callable[..., Any], into: list[Tensor], *args: Any, **numbers: Any) -> None:
    values = lines(*args, **numbers)
    for target, value in zip(into, values if isinstance(values, tuple) else (values,), strict=True):
        target.copy_(value)


_compilable = True  # until it fails


@functools.cache
def _compiled(lines: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(functools.partial(_write, lines), dynamic=True)


# ---- the public package ----


def converted(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The state itself, or what a state of the public `ivon-opt` package says, in our form."""
    saved = state_dict["param_groups"]
    if not all(isinstance(group.get("hess"), Tensor) for group in saved):
        return state_dict
    state: dict[int, dict[str, Any]] = {}
    made = []
    for group, own in zip(saved, groups, strict=False):
        sizes = [param.numel() for param in own["params"]]
        if sum(sizes) != group["hess"].numel() or len(sizes) != len(group["params"]):
            raise InputError(
                f"the state has {group['hess'].numel()} weights in a group of {sum(sizes)}: it is another model's; "
                "start without it"
            )
        t = math.ceil(math.log(1e-8) / math.log(group["beta1"])) if group["beta1"] > 0 else 1
        pieces = zip(group["momentum"].split(sizes), group["hess"].split(sizes), strict=True)
        for index, param, (g, h) in zip(group["params"], own["params"], pieces, strict=True):
            state[index] = {"step": t, "momentum": g.view(param.shape), "hess": h.view(param.shape)}
        known = {key: group[key] for key in own.keys() & group.keys() - {"momentum"}}
        made.append({**own, **known})
    kept = ", ".join(f"{name}={groups[0][name]!r}" for name in ("seed", "debias", "rescale_lr"))
    warnings.warn(
        "the state is that of the public IVON package, which saves no step count: the momentum's bias correction is "
        f"taken to be over, and noise starts anew; its settings are loaded, and this optimizer's {kept} and "
        f"hess_approx={groups[0]['hess_approx']!r} are kept",
        stacklevel=3,
    )
    return {"state": state, "param_groups": made}
