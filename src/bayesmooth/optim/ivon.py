"""IVON, the improved variational online Newton method: Adam's cost, and a Gaussian over the weights (alg:ivon).

    1  ĝ ← ∇ℓ(θ),  θ ~ N(m, diag σ²)                       gradient at a sample
    2  ĥ ← ĝ·(θ − m)/σ²                                    reparametrised estimate of the Hessian's diagonal
    3  g ← β₁ g + (1 − β₁) ĝ
    4  h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    5  ḡ ← g/(1 − β₁ᵗ)
    6  m ← m − α (ḡ + δ m)/(h + δ)
    7  σ ← 1/√(λ (h + δ))

`sigma`, `sample` and `update` below are these lines, on vectors. `samples.py` knows where m and θ are, `backends.py`
computes the lines over many weights, and `reference.py` is the same algorithm as a plain loop.

References: Shen et al., "Variational Learning is Effective for Large Deep Networks", ICML 2024;
Yang et al., "Variational Learning Induces Adaptive Label Smoothing", arXiv 2502.07273 (2025).
"""

import math
import warnings
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
from bayesmooth.optim.backends import (
    Compiled,
    Kernels,
    Noise,
    Rule,
    Torch,
    Weight,
    split_weights,
)
from bayesmooth.optim.checkpoints import convert_ivon_opt, state_kept_wide
from bayesmooth.optim.groups import (
    add_group,
    check_alike,
    check_moved,
    choose_seed,
    read_beta1,
    without_graph,
)
from bayesmooth.optim.samples import (
    PENDING,
    TRAINING,
    Samples,
    collect_weights,
    tell_autograd,
)
from bayesmooth.optim.schedule import RunSchedule
from bayesmooth.optim.settings import (
    LENGTHS,
    LOOKS,
    RATE,
    Look,
    Watch,
    check_start,
    choose_beta2,
    choose_hess_init,
    choose_lr,
    choose_rescaling,
    count_examples,
    describe,
    schedule_ess,
    steps_done,
)
from bayesmooth.optim.sharding import agree_on_seed, read_norms, whole
from bayesmooth.posterior import Posterior, name_parameters
from bayesmooth.randomness import EVALUATION

Number = float | Tensor
NORM_BETA = 0.95  # of the running mean of ‖ĝ‖²
LEAST = 0.1  # a tensor's gradients count as at least this share of the size of all


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


def note_norms(weights: list[Weight], samples: int, scale: float) -> dict[Weight, float]:
    """The running root mean square of ‖ĝ‖ for each weight, with this step's; `scale` multiplies gradients."""
    if any(w.sums and hasattr(w.param, "to_local") for w in weights):
        raise InputError(
            "rescale_lr by lengths with several samples per step of sharded weights: their sums are local; "
            "take one sample, or rescale_lr='current'"
        )
    grads = {w: w.pending[0] for w in weights if w.pending}
    grads |= {w: w.sums[0] / samples for w in weights if w.sums}
    means = {}
    for w, norm in zip(grads, read_norms(list(grads.values())), strict=True):
        mean, weight = w.state.get("norm", 0.0), w.state.get("norm_weight", 0.0)
        w.state["norm"] = NORM_BETA * mean + (1 - NORM_BETA) * (scale * norm) ** 2
        w.state["norm_weight"] = NORM_BETA * weight + 1 - NORM_BETA
        means[w] = math.sqrt(w.state["norm"] / w.state["norm_weight"])
    return means


def read_numbers(group: dict[str, Any], t: int, rescaling: float) -> dict[str, Any]:
    """The other symbols of the algorithm, for step t of a parameter group; `rescaling` multiplies lr."""
    β1 = read_beta1(group)
    return {
        "λ": float(group["ess"]),
        "δ": float(group["weight_decay"]),
        "β1": β1,
        "β2": group["beta2"],
        "α": float(group["lr"]) * rescaling,
        "radius": group["clip_radius"],
        "debias": 1.0 - β1**t if group["debias"] else 1.0,
        "squared": group["hess_approx"] == "gradsq",
    }


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
    averaged; `fresh=False` enters the last sample again instead. Gradients may be clipped or unscaled in the closure,
    or between the context and `step`. If they are clipped once after several samples, the same factor is applied to all
    of them. `zero_grad()` keeps the samples so far for the average, unless the last one has a NaN or inf; an exception
    drops them all.

    A good start for any network and data: `lr=0.1`, `ess` = number of training examples, `weight_decay=1e-3`, and the
    `epochs` and `steps` of the run, from which h₀ and β₂ follow. `schedule` lets lr fall to zero.

    Arguments:
        lr: α. With `rescale_lr` it is multiplied by (h₀ + δ), so that learning rates of SGD with momentum carry
            over: 0.1 to 0.2. In a short run h falls to a seventh of h₀ whatever the data say, and steps grow as much;
            `rescale_lr="current"` takes the mean of h + δ instead of h₀ + δ, so that lr means the same throughout.
            `rescale_lr="distance"` divides that by the running root mean square of ‖ĝ‖, over all weights together: lr
            is then the length of a step in the direction of ĝ, however large the gradients become. "per_tensor" divides
            by that of each tensor instead, so that the weights of all tensors move by the same amount.
        ess: λ, the effective sample size: the number of training examples. Smaller means more noise.
        hess_init: h₀. At the start σ = 1/√(λ(h₀ + δ)): only that product counts. A network that learns nothing has too
            much noise (raise h₀), one that memorises wrong labels has too little (lower it). Published recipes
            lie between 0.05 and 1, at 50,000 examples. `diagnostics()` compares σ with the weights.
            Left out, it follows from the weights and from `epochs`, the passes over the training set that the run
            will make (docs/settings.md); `noise` multiplies the σ that this sets. Without `epochs` it is 1, as in the
            public package. "auto" is another word for leaving it out, and then `epochs` must be given.
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
        spread: what σ does over the run. None is line 7, where σ grows as h falls: in a short run by e. With
            "constant", "growing" and "falling" h gives σ its relative shape only, and its size is a schedule over
            `steps`: it stays as at the start, or grows or falls by e.
        antithetic: draw the samples of a step in pairs mirrored about the mean.
        state_dtype: "bfloat16" keeps g and h in 16 bits, rounded at random so that small changes count on average:
            beyond weights and gradients, the memory is 2 times float32 weights instead of 3. Computed in float32, by
            torch: the C kernels do not have it. None keeps float32.
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
        hess_init: float | Literal["auto"] | None = None,
        beta1: float = 0.9,
        beta2: float | Literal["auto"] | None = None,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        hess_approx: str = "price",
        clip_radius: float = float("inf"),
        sync: bool = False,
        debias: bool = True,
        rescale_lr: bool | Literal["current", "distance", "per_tensor"] = True,
        *,
        antithetic: bool = False,
        state_dtype: Literal["bfloat16"] | None = None,
        spread: Literal["constant", "growing", "falling"] | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        noise: float | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        fused: bool | str | None = None,
    ) -> None:
        if hess_init == "auto" or (hess_init is None and epochs is not None and rescale_lr):
            params = list(params)  # type: ignore[assignment]
            hess_init = choose_hess_init(
                params,
                lr,
                ess,
                weight_decay,
                rescale_lr=rescale_lr,
                epochs=epochs,
                noise=noise,
            )
        elif noise is not None:
            raise InputError(
                f"noise={noise} with hess_init={hess_init}: it multiplies the noise that 'auto' chooses, and has no "
                "effect here; leave it out, or give epochs and no hess_init"
            )
        if beta2 == "auto" or (beta2 is None and steps is not None):
            beta2 = choose_beta2(steps)
        if beta2 is None and epochs is not None:
            warnings.warn(
                f"epochs={epochs:g} without steps: beta2 stays 0.99999, which is right for 200,000 steps; give "
                f"steps={epochs:g} * len(loader)",
                stacklevel=2,
            )
        defaults = {
            "lr": lr,
            "ess": ess,
            "hess_init": 1.0 if hess_init is None else hess_init,
            "beta1": beta1,
            "beta2": 0.99999 if beta2 is None else beta2,
            "weight_decay": weight_decay,
            "mc_samples": mc_samples,
            "hess_approx": hess_approx,
            "clip_radius": clip_radius,
            "sync": sync,
            "debias": debias,
            "rescale_lr": rescale_lr,
            "antithetic": antithetic,
            "state_dtype": state_dtype,
            "spread": spread,
            "length": None if spread is None else (ess, steps),  # λ at the start, steps of the run
            "fused": fused,
            "seed": choose_seed(seed, generator),
            "draws": 0,  # evaluation draws so far
            "momentum": None,  # β₁ where a scheduler sets it
        }
        super().__init__(params, defaults | self._own)
        self.steps = steps  # of the run, as far as it was said
        self._samples, self._watch = Samples(), Watch()

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
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
        quiet: bool = False,
        **settings: Any,
    ) -> "IVON":
        """IVON for the trainable weights of a model, pretrained or not, with settings that suit it; prints them.

        `ess` is the number of examples, h₀ and β₂ are those of `epochs=` and `steps=` above at lr = 0.1. lr itself is
        the length of a step in a pretrained network (`rescale_lr="distance"`, or "per_tensor" with depthwise
        convolutions), 0.1 in a new one with normalisation layers, and measured on a few batches in any other
        (`rescale_lr="current"`); `settings.py` has the rules. It is the largest of the run: let it fall to zero on a
        cosine after a warm-up over a tenth of the steps. Model, generators and gradients are left as they were.

        Arguments:
            batches: the training loader, or a list of batches: (inputs, labels), or dicts with "labels".
            epochs: how often the run will visit each example.
            loss: of logits and labels.
            quiet: print nothing.
            settings: of the constructor, to be used instead: `noise=1.4`, `lr=0.1`, `seed=0`, …
        """
        weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        given: dict[str, Any] = {
            "lr": RATE,
            "ess": count_examples(batches),
            "epochs": epochs,
            "steps": max(round(epochs * len(batches)), 1),
            "weight_decay": 1e-3,
            "rescale_lr": choose_rescaling(model),
        } | settings
        optimizer = cls(weights, **given)
        if "lr" not in settings:
            lr = choose_lr(model, optimizer, batches, epochs, loss)
            for holder in (optimizer.defaults, *optimizer.param_groups):
                holder["lr"] = lr
        if not quiet:
            chosen = optimizer.param_groups[0]
            names = ("lr", "ess", "hess_init", "beta2", "weight_decay")
            values = ", ".join(f"{name}={chosen[name]:.4g}" for name in names)
            print(f"IVON: {values}, for {given['steps']} steps")
        return optimizer

    @contextmanager
    def sampled_params(self, train: bool = False, fresh: bool = True) -> Iterator[None]:
        """Inside, the weights are a draw from the posterior; afterwards the mean is back, bit for bit.

        `train` keeps the draw and its gradients for `step`. `fresh=False` enters the last training draw again (the
        first time, a new one), for micro-batches whose gradients add up. Inside another context, or a closure that
        `step` calls, nothing is drawn. A `step(closure)` inside a training context takes that context's sample.
        """
        if self._samples.place.is_sample:
            yield
            return
        try:
            self._draw(fresh) if train else self._draw_for_evaluation()
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
            loss = self._sampled_loss(closure) if closure is not None else None
            ready = samples.finish(getattr(self, "found_inf", None))
            if not samples.count:
                self._refuse_gradients_at_the_mean()
            elif ready:
                step = steps_done(samples.weights) + 1
                look = Look(samples.weights) if step in LOOKS else None
                self._update(1.0 / float(getattr(self, "grad_scale", None) or 1.0))
                self._watch.judge(self, step, look, loss if getattr(loss, "ndim", 1) == 0 else None)
        finally:
            samples.abandon()
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; but a sample whose gradients would be lost goes into the average first, if it is finite."""
        samples = self._samples
        if samples.place is PENDING:
            samples.fold() if samples.is_finite() else samples.drop()
        super().zero_grad(set_to_none)
        samples.note_zeros(
            [] if set_to_none else [p for g in self.param_groups for p in g["params"]]
        )

    def schedule(
        self, model: nn.Module | None = None, batches: Any = None, warmup: float = 0.0
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
        names, mean, std = name_parameters(self.param_groups, model), {}, {}
        for w in self._weights("posterior()"):
            if (name := names.get(w.param)) is not None:
                λ, δ = float(w.group["ess"]), float(w.group["weight_decay"])
                mean[name] = whole(w.state.get("mean", w.param))
                std[name] = sigma(whole(w.state["hess"]).to(w.mean.dtype), λ, δ)
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

        The optimizer itself looks at these figures before the first step and at steps 1, 100, 200, 400, …, and warns
        once for each setting that it finds wrong, with the number to change it to.
        """
        return describe(self._weights("diagnostics()"))

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
        self._samples, self._watch = Samples(), Watch()

    def _check(self, group: dict[str, Any]) -> None:
        """What a group must have besides sound values and tensors."""
        check_alike(self.param_groups, "mc_samples", "sync")

    def _backend(self, local: Tensor, group: dict[str, Any], fits: bool) -> Torch:
        """Who computes a weight's sample and update; `fits` says that the kernels can."""
        fused = group["fused"]
        if fused is True and not fits:
            raise InputError(
                "fused=True: the kernels need dense float32 weights on the CPU, state_dtype=None, and a compiler when "
                f"bayesmooth was installed; found {local.dtype} on {local.device}; use fused=None"
            )
        if fits and fused in (None, True):
            return KERNELS
        accelerated = fused is None and local.device.type != "cpu"
        return COMPILED if fused == "compile" or accelerated else TORCH

    def _weights(self, call: str) -> list[Weight]:
        """Every weight, at its mean."""
        self._samples.move("read", call)
        return collect_weights(self.param_groups, self.state, {}, self._backend)

    @torch.no_grad()
    def _draw(self, fresh: bool = True) -> None:
        """A training sample into the parameters."""
        samples = self._samples
        if not samples.count:
            if dist.is_available() and dist.is_initialized():
                agree_on_seed(self.param_groups)
            weights = collect_weights(self.param_groups, self.state, samples.buffers, self._backend)
            if not steps_done(weights):
                check_start(weights)
            for group in self.param_groups:
                if group.get("length"):
                    group["ess"] = schedule_ess(group, self._mean_hess(group), steps_done(weights))
            samples.weights, samples.sync = weights, self.param_groups[0]["sync"]
        self._sample(samples.weights, samples.draw(fresh))

    @torch.no_grad()
    def _draw_for_evaluation(self) -> None:
        weights = collect_weights(self.param_groups, self.state, {}, self._backend)
        for group in self.param_groups:
            group["draws"] += 1
        self._samples.evaluate(weights)
        self._sample(weights, None)

    def _sample(self, weights: list[Weight], number: int | None) -> None:
        """θ into the parameters: training sample `number` of this step, or one for evaluation."""
        for chunk in split_weights(weights):
            group = chunk[0].group
            if number is None:
                noise = Noise(group["seed"], EVALUATION, [group["draws"]] * len(chunk))
            else:
                noise = Noise(group["seed"], number, [w.state["step"] for w in chunk])
                if group["antithetic"]:
                    noise = noise._replace(draw=number // 2, sign=1.0 - 2.0 * (number % 2))
            λ, δ = float(group["ess"]), float(group["weight_decay"])
            chunk[0].backend.sample(chunk, noise, λ, δ)
        tell_autograd(weights)

    def _sampled_loss(self, closure: Callable[[], Any]) -> Any:
        """Mean loss over the samples. The last one stays in the parameters: the update reads it there."""
        if getattr(self, "found_inf", None) is not None:
            self._refuse_a_scaler()
        samples, count = self._samples, self.param_groups[0]["mc_samples"]
        inside = samples.place.is_sample
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
        """The step of all weights that have gradients; the others stay at their mean."""
        weights = [w for w in self._samples.weights if w.pending or w.sums]
        factors = self._rescaling(weights, scale)
        chunks = split_weights(weights, lambda w: (w.state["step"], w.sums is None, factors[w]))
        for chunk in chunks:
            group, t = chunk[0].group, chunk[0].state["step"] + 1
            numbers = read_numbers(group, t, factors[chunk[0]])
            chunk[0].backend.update(chunk, self._samples.count, scale, **numbers)
            for w in chunk:
                w.state["step"] = t
        tell_autograd(weights)

    def _rescaling(self, weights: list[Weight], scale: float) -> dict[Weight, float]:
        """What `rescale_lr` multiplies lr by, for each weight."""
        levels = {id(group): self._level(group) for group in self.param_groups}
        factors = {w: levels[id(w.group)] for w in weights}
        if any(group["rescale_lr"] in LENGTHS for group in self.param_groups):
            norms = note_norms(weights, self._samples.count, scale)
            size = sum(w.param.numel() for w in weights)
            total = math.hypot(*norms.values())
            for w, norm in norms.items():
                if w.group["rescale_lr"] == "per_tensor":
                    share = math.sqrt(w.param.numel() / size)
                    factors[w] *= share / max(norm, LEAST * share * total) if total else 0.0
                elif w.group["rescale_lr"] == "distance":
                    factors[w] *= 1 / total if total else 0.0
        return factors

    def _level(self, group: dict[str, Any]) -> float:
        """h + δ as `rescale_lr` takes it for a group: at the start, or its mean by now."""
        kind, δ = group["rescale_lr"], float(group["weight_decay"])
        if kind is False:
            return 1.0
        return float(group["hess_init"] if kind is True else self._mean_hess(group)) + δ

    def _mean_hess(self, group: dict[str, Any]) -> float:
        """Mean of h over a group, by one reading from its device."""
        found = [self.state[p]["hess"] for p in group["params"] if "hess" in self.state[p]]
        sums = [whole(h.sum(dtype=torch.promote_types(h.dtype, torch.float32))) for h in found]
        total = float(torch.stack([each.to(sums[0]) for each in sums]).sum())
        return total / float(sum(h.numel() for h in found))

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
