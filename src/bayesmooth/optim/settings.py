"""IVON's settings: what it can choose before the first step, and how it sees later that one is wrong.

**Chosen**: h₀ from the weights and the length of training, β₂ from its steps. All weights start with the same noise σ₀,
and what counts is its size relative to the weights: L layers whose weights have root mean square s add noise of about

    C = √L σ₀/s

times the signal. A wrong label is memorised visit by visit, so the noise that prevents it grows with the way that
the weights can go: C = K √(α · epochs), up to a limit beyond which nothing is learned. A network without normalisation
layers bears less of it; one that has them needs more for two classes, whose wrong labels all point the same way. A
network that sees few numbers can hardly tell single examples apart, so it needs little. The constants were chosen on
half of the cells of `python -m benchmarks regret`, on those of `results/choices/tuning.txt`, and on `tables`;
docs/evidence-settings.md has the figures.

**Set by `IVON.auto`**: lr too, for one of four kinds of network.
- Pretrained, with normalisation layers whose gains are not ones, trained further or frozen: lr is the length of a step,
  whatever the gradients are (`rescale_lr="distance"`): LENGTH, and less in long runs, which memorise more; adapters,
  whose B starts at zero, go ADAPTERS times as far. Gradients grow with a new head, up to eightfold; at a fixed rate the
  same runs were too slow at the start or fell to chance later. C is smaller than in a new network, and smaller still
  for many classes, each of which has few examples.
- Pretrained, with depthwise convolutions: every tensor has its own length (`rescale_lr="per_tensor"`), DEPTHWISE times
  as far. Their few weights have large gradients, and one length for all hardly moves the wide layers between them.
- With normalisation layers that are new: RATE, as the constructor has it in every example.
- Without, and for a head alone: measured. A step lowers the loss by lr · ‖ĝ‖² = SHARE of it (Polyak's step), and lr is
  at most MOST, because gradients are small at the start and grow as the network learns.
`results/choices/finetuning.txt` has the runs that chose the constants, docs/evidence-finetuning.md what came of it.

**Checked**: whether the noise is in proportion to the weights, and whether the settings let them learn. The limits come
from a sweep of one setting at a time, `results/choices/ivon_settings.txt`; docs/evidence-optimizers.md has its table.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import hypot, inf, sqrt
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bayesmooth import randomness
from bayesmooth.calling import (
    call_model,
    move_inputs,
    statistics_kept,
    take_inputs,
    take_labels,
    take_logits,
)
from bayesmooth.errors import InputError
from bayesmooth.optim.groups import check_group
from bayesmooth.optim.samples import Weight
from bayesmooth.optim.sharding import read_norms, whole

LENGTHS = ("distance", "per_tensor")  # with these `rescale_lr`, lr is the length of a step
STRENGTH = 0.95  # K
LIMIT = 2.0  # of C
WITHOUT_NORMALISATION = 0.7  # times that much noise
TWO_CLASSES = 1.4  # times as much, with normalisation
MANY_INPUTS = 16  # d inputs of a fully connected network get (d/16)² times as much, at most once
NORM_BETA = 0.95  # of the running mean of ‖ĝ‖²
LEAST = 0.1  # a tensor's gradients count as at least this share of the size of all
RATE = 0.1  # lr for which these constants were chosen
SHORT_LIMIT = 1.4  # of C/factor in the three cases that follow
PRETRAINED = 0.7  # times as much where lr is a length that all tensors share
FEW_CLASSES = 10  # where lr is a length, K classes get √(10/K) times as much, at most once
HEAD = 1.4  # times as much for one matrix whose lr is measured: there is no further layer that adds noise
LENGTH = 0.67  # pretrained: of a step
SHORT_RUN = 8  # epochs; in longer runs a step is √(8/epochs) times as long
ADAPTERS = 2.0  # times as far, where matrices start at zero
DEPTHWISE = 4.0  # times as far, with depthwise convolutions, where each tensor has its own length
SHARE = 0.15  # without normalisation, of the loss: by how much a step lowers it
MOST = 0.2  # and the largest lr there
PROBES = 4  # batches whose gradients are measured
# h₀ must be positive, also where weight decay alone gives more precision than is wanted.
SMALLEST = 1e-6

START_NOISE = 2.0  # σ over the weights that the median matrix may have at the start
START_NOISE_NORMALISED = 4.0  # the same for networks that have normalisation layers
LATE_NOISE = 8.0  # the same later on, when the weights have grown around the noise
FIRST_STEP = 0.3  # share of the weights' size by which the first step may move them
LATER_STEP = 0.025  # and a later one
HESS_CHANGE = 0.05  # share of itself by which the Hessian may change in a step
LEAST_TRAVEL = 0.3  # σ by which the weights must move in 2/(1 − β₂) steps
EARLY = 100
BLOCK = 10  # steps whose losses are averaged
FALLEN, BACK, NOT_FALLEN = 0.93, 0.99, 0.97  # times the loss at the start
STAYS = 3  # blocks: good runs may come back to the start for one or two
SEVERAL = 1.0  # the loss at the start of three classes or more; that of two falls little in good runs with wrong labels
LEARNING = 0.9  # times the loss at the start: below, large steps do no harm
LOOKS = {1} | {EARLY << i for i in range(40)}  # the steps at which training is looked at
LARGE = 1_000_000  # weights from which a missing compiler is worth a warning
SLICE = 4096  # elements of a matrix that are compared before and after a step

_warned_slow = False


# ---- chosen before the first step ----


def choose_beta2(steps: int | None) -> float:
    """β₂ = 1 − 2/steps: by the end h has forgotten all but e⁻² of its start, as in the paper's 200,000 steps.

    >>> choose_beta2(200_000)
    0.99999
    """
    if steps is None or steps < 1:
        raise InputError(
            f"beta2='auto' with steps={steps}: needs the number of optimizer steps of the run, ≥ 1; "
            "give steps=, or a number for beta2"
        )
    return 1 - 2 / max(steps, 2)


def choose_hess_init(
    params: Iterable[Any],
    lr: float,
    ess: float,
    weight_decay: float,
    *,
    rescale_lr: bool | str = True,
    epochs: float | None,
    noise: float | None = None,
) -> float:
    """h₀ = 1/(λσ₀²) − δ for `params` in any form that an optimizer takes; `noise` multiplies σ₀, None is 1."""
    if not rescale_lr:
        raise InputError(
            "hess_init='auto' with rescale_lr=False: its rule is for rescaled learning rates; "
            "leave rescale_lr on, or give hess_init a number"
        )
    if epochs is None or not epochs > 0:
        raise InputError(
            f"hess_init='auto' with epochs={epochs}: needs how often the run visits each example, > 0; "
            "give epochs=, or a number for hess_init"
        )
    check_group({"lr": lr, "ess": ess, "weight_decay": weight_decay, "params": []})
    weights = [p.detach() for p in list_tensors(params) if p.requires_grad]
    size, layers = measure_matrices(weights)
    factor = 1.0 if noise is None else noise
    relative = choose_relative_noise(weights, lr, epochs, rescale_lr)
    std = factor * relative * size / sqrt(max(layers, 1))
    if not std > 0:
        raise InputError(
            f"hess_init='auto' with lr={lr}, noise={factor} and {layers} matrices that are not zero: there is "
            "nothing to measure the noise by; give hess_init a number, 0.1 to 1 is usual"
        )
    return max(1 / (ess * std**2) - weight_decay, SMALLEST)


def choose_relative_noise(
    weights: Iterable[Tensor], lr: float, epochs: float, rescale_lr: bool | str = True
) -> float:
    """C."""
    weights = list(weights)
    matrices = [weight for weight in weights if weight.ndim > 1]
    classes = max(matrices[-1].shape[0], 1) if matrices else FEW_CLASSES
    factor, limit = 1.0, LIMIT
    if rescale_lr in LENGTHS:
        lr, limit, factor = RATE, SHORT_LIMIT, sqrt(min(FEW_CLASSES / classes, 1))
        factor *= PRETRAINED if rescale_lr == "distance" else 1
    elif rescale_lr == "current" and len(matrices) == 1:
        factor, limit = HEAD, SHORT_LIMIT
    elif not any(map(is_gain, weights)):
        factor = WITHOUT_NORMALISATION
    elif classes <= 2:
        factor = TWO_CLASSES
    if matrices and matrices[0].ndim == 2 and rescale_lr not in LENGTHS:
        factor *= min(matrices[0].shape[1] / MANY_INPUTS, 1) ** 2
    return factor * min(STRENGTH * sqrt(lr * epochs), limit)


def count_examples(batches: Any) -> int:
    """How many examples a loader, or a list of batches, has."""
    if isinstance(batches, Iterator) or not hasattr(batches, "__len__") or not len(batches):
        raise InputError(
            f"batches: a {type(batches).__name__} without a length, or empty; give a loader or a list of batches"
        )
    if (data := getattr(batches, "dataset", None)) is not None and hasattr(data, "__len__"):
        return len(data)
    return sum(len(take_labels(batch)) for batch in batches)


def measure_gradients(
    model: nn.Module, optimizer: Any, batches: Any, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[list[float], list[float]]:
    """Loss and ‖ĝ‖² of a few batches, each at another sample of the weights; nothing of it stays."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    modes = {module: module.training for module in model.modules()}
    losses, squares = [], []
    # Loaders and dropout draw from the generators, and the noise is named by the number of draws.
    with torch.random.fork_rng(), statistics_kept(model):
        try:
            model.train()
            for batch in islice(batches, PROBES):
                with optimizer.sampled_params(), torch.enable_grad():
                    logits = take_logits(call_model(model, move_inputs(take_inputs(batch), model)))
                    value = loss(logits, take_labels(batch).to(logits.device))
                    found = torch.autograd.grad(value, weights, allow_unused=True)
                losses.append(float(value.detach()))
                squares.append(sum(float(whole(g.square().sum())) for g in found if g is not None))
        finally:
            for module, mode in modes.items():
                module.training = mode
            for group in optimizer.param_groups:
                group["draws"] = 0
    return losses, squares


def choose_rescaling(model: nn.Module) -> bool | str:
    """What lr means for a network: `rescale_lr`. A pretrained one has gains of normalisations that are not ones."""
    gains = [p.detach() for p in model.parameters() if is_gain(p.detach())]
    trained = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    if not gains or len(trained) < 2:  # a single matrix is a linear model
        return "current"
    if all(bool((whole(gain) == 1).all()) for gain in gains):
        return True
    return "per_tensor" if any(map(is_depthwise, model.modules())) else "distance"


def choose_lr(
    model: nn.Module,
    optimizer: Any,
    batches: Any,
    epochs: float,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> float:
    """lr, the largest of the run: for new normalisations RATE, for pretrained ones a distance, for others measured."""
    kind = optimizer.param_groups[0]["rescale_lr"]
    if kind is True:
        return RATE
    if kind in LENGTHS:
        matrices = [p.detach() for p in model.parameters() if p.requires_grad and p.ndim > 1]
        adapters = measure_matrices(matrices)[1] < len(matrices)  # B starts at zero
        further = DEPTHWISE if kind == "per_tensor" else ADAPTERS if adapters else 1.0
        return further * LENGTH * sqrt(min(SHORT_RUN / epochs, 1))
    losses, squares = measure_gradients(model, optimizer, batches, loss)
    value, square = (fmean(numbers) if numbers else 0.0 for numbers in (losses, squares))
    if not (0 < square < inf and 0 < value < inf):
        raise InputError(
            f"{len(losses)} batches have a loss of {value} and gradients of size {sqrt(square)}: there is nothing to "
            "measure lr by; give lr="
        )
    return min(SHARE * value / square, MOST)


def make_optimizer(
    kind: Any,
    model: nn.Module,
    batches: Any,
    epochs: float,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    quiet: bool = False,
    **settings: Any,
) -> Any:
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
    chosen: dict[str, Any] = {
        "lr": RATE,
        "ess": count_examples(batches),
        "epochs": epochs,
        "steps": max(round(epochs * len(batches)), 1),
        "weight_decay": 1e-3,
        "rescale_lr": choose_rescaling(model),
    } | settings
    optimizer = kind(weights, **chosen)
    if "lr" not in settings:
        lr = choose_lr(model, optimizer, batches, epochs, loss)
        for holder in (optimizer.defaults, *optimizer.param_groups):
            holder["lr"] = lr
    if not quiet:
        group = optimizer.param_groups[0]
        names = ("lr", "ess", "hess_init", "beta2", "weight_decay")
        values = ", ".join(f"{name}={group[name]:.4g}" for name in names)
        print(f"IVON: {values}, for {chosen['steps']} steps")
    return optimizer


def find_rates(
    optimizer: Any, weights: list[Weight], samples: int, scale: float
) -> dict[Weight, float]:
    """What `rescale_lr` multiplies lr by, for each weight."""
    levels = {id(group): read_level(group, optimizer.state) for group in optimizer.param_groups}
    rates = {w: levels[id(w.group)] for w in weights}
    if any(group["rescale_lr"] in LENGTHS for group in optimizer.param_groups):
        norms = note_norms(weights, samples, scale)
        size = sum(w.param.numel() for w in weights)
        total = hypot(*norms.values())
        for w, norm in norms.items():
            if w.group["rescale_lr"] == "per_tensor":
                share = sqrt(w.param.numel() / size)
                rates[w] *= share / max(norm, LEAST * share * total) if total else 0.0
            elif w.group["rescale_lr"] == "distance":
                rates[w] *= 1 / total if total else 0.0
    return rates


def read_level(group: dict[str, Any], state: Any) -> float:
    """h + δ as `rescale_lr` takes it for a group: at the start, or its mean by now."""
    kind, δ = group["rescale_lr"], float(group["weight_decay"])
    if kind is False:
        return 1.0
    if kind is True:
        return float(group["hess_init"]) + δ
    found = [state[p]["hess"] for p in group["params"] if "hess" in state[p]]
    sums = [whole(h.sum()) for h in found]
    total = float(torch.stack([each.to(sums[0]) for each in sums]).sum())
    return total / float(sum(h.numel() for h in found)) + δ


def note_norms(weights: list[Weight], samples: int, scale: float) -> dict[Weight, float]:
    """The running root mean square of ‖ĝ‖ for each weight, with this step's; `scale` multiplies gradients."""
    if any(w.sums and hasattr(w.param, "to_local") for w in weights):
        raise InputError(
            "rescale_lr by lengths with several samples per step of sharded weights: their sums are local; "
            "take one sample, or rescale_lr='current'"
        )
    grads = {w: w.pending for w in weights if w.pending is not None}
    grads |= {w: w.sums[0] / samples for w in weights if w.sums}
    means = {}
    for w, norm in zip(grads, read_norms(list(grads.values())), strict=True):
        mean, weight = w.state.get("norm", 0.0), w.state.get("norm_weight", 0.0)
        w.state["norm"] = NORM_BETA * mean + (1 - NORM_BETA) * (scale * norm) ** 2
        w.state["norm_weight"] = NORM_BETA * weight + 1 - NORM_BETA
        means[w] = sqrt(w.state["norm"] / w.state["norm_weight"])
    return means


def steps_done(weights: list[Weight]) -> int:
    """Updates so far."""
    return max((w.state["step"] for w in weights), default=0)


def is_depthwise(module: nn.Module) -> bool:
    """Whether it is a convolution of each channel on its own."""
    return isinstance(module, _ConvNd) and module.groups == module.in_channels > 1


def is_gain(weight: Tensor) -> bool:
    """Whether it can be the gain of a normalisation: a vector of ones, or of many positive numbers.

    Biases have both signs or are 0; but those of a few classes may all be positive by chance.
    """
    if weight.ndim != 1 or weight.numel() < 2:
        return False
    low, high = (float(whole(bound)) for bound in (weight.min(), weight.max()))
    return low == high == 1 or (low > 0 and weight.numel() >= 16)


def measure_matrices(weights: Iterable[Tensor]) -> tuple[float, int]:
    """Root mean square of all weights in matrices and kernels, and how many of these there are.

    Matrices of zeros do not count: they pass no signal on.
    """
    matrices = [weight for weight in weights if weight.ndim > 1]
    squares = [(float(whole(m.double().square().sum())), m.numel()) for m in matrices]
    passing = [(square, size) for square, size in squares if square > 0]
    total = sum(size for _, size in passing)
    return sqrt(sum(square for square, _ in passing) / max(total, 1)), len(passing)


def list_tensors(params: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in what an optimizer takes: tensors, named tensors, or groups of those."""
    for entry in params:
        if isinstance(entry, Mapping):
            inside = entry["params"]
            yield from list_tensors([inside] if isinstance(inside, Tensor) else inside)
        else:
            yield entry[1] if isinstance(entry, tuple) else entry


# ---- checked later ----


def compare_layers(weights: list[Weight]) -> dict[str, float]:
    """σ over the weights, root mean squares, for every matrix that is not zero."""
    matrices = [w for w in weights if w.local.ndim > 1 and bool(w.local.any())]
    return {w.name: rms(w.std()) / rms(w.mean) for w in matrices}


def describe(weights: list[Weight]) -> dict[str, Any]:
    """The figures that `IVON.diagnostics` documents."""
    size = sum(w.local.numel() for w in weights) or 1
    moved = sum(
        int(((w.hess - h0).abs() > 0.01 * h0).sum())
        for w in weights
        for h0 in [w.group["hess_init"]]
    )
    # Line 4 with ĥ = 0: what decay leaves of h₀, whatever the data.
    left = sum(
        w.local.numel() * w.group["hess_init"] * (b + (1 - b) ** 2 / 2) ** w.state["step"]
        for w in weights
        for b in [w.group["beta2"]]
    )
    std = rms(*(w.std() for w in weights))
    return {
        "noise_to_weight": std / max(rms(*(w.mean for w in weights)), 1e-30),
        "layers": compare_layers(weights),
        "hess_moved": moved / size,
        "hess_from_data": 1 - left / max(sum(float(w.hess.sum()) for w in weights), 1e-30),
        "std": std,
        "steps": steps_done(weights),
    }


def check_start(weights: list[Weight]) -> None:
    """Before the first step: is there more noise than this network bears, and is this the slow installation?"""
    if steps_done(weights):
        return
    _warn_if_slow(weights)
    ratios = compare_layers(weights)
    ratio = median(ratios.values()) if ratios else 0.0
    if ratio > (START_NOISE_NORMALISED if any(is_gain(w.local) for w in weights) else START_NOISE):
        group = weights[0].group
        worst = max(ratios, key=lambda name: ratios[name])
        warnings.warn(
            f"the posterior's noise is {ratio:.1f} times the weights (median of {len(ratios)} matrices; in {worst} "
            f"{ratios[worst]:.1f} times), from ess={group['ess']:g} and hess_init={group['hess_init']:.3g}: little is "
            f"learned; raise hess_init to about {group['hess_init'] * ratio**2:.2g}, or ess",
            stacklevel=2,
        )


class Watch:
    """Looks at a run as it goes, and warns once for each setting that it finds wrong."""

    def __init__(self) -> None:
        self.course, self.warned = Course(), set[str]()

    def before(self, weights: list[Weight]) -> "tuple[int, Look | None]":
        """Before an update: its number, and a look at the weights at some of them."""
        step = steps_done(weights) + 1
        return step, Look(weights) if step in LOOKS else None

    def after(self, optimizer: Any, watched: "tuple[int, Look | None]", loss: Any) -> None:
        """After an update; `watched` is what `before` returned, `loss` what the closure did."""
        (step, look), group, steps = watched, optimizer.param_groups[0], optimizer.steps
        found = self.course.add(loss, group, steps)
        if look:
            late = steps is not None and 2 * step > steps
            found |= look.problems(step, self.course.learning, late)
        if step == steps and step >= EARLY:
            found |= check_end(group, optimizer.defaults["lr"])
        for setting, problem in found.items():
            if setting not in self.warned:
                self.warned.add(setting)
                warnings.warn(problem, stacklevel=_find_caller())


class Course:
    """The loss over the run, as far as closures return it; read from the device once per BLOCK steps."""

    def __init__(self) -> None:
        self.block: list[Tensor] = []
        self.means: list[float] = []
        self.start = inf
        self.lr = 0.0  # the largest so far

    def add(self, loss: Any, group: dict[str, Any], steps: int | None) -> dict[str, str]:
        """The loss of one more step; what is wrong, at the end of a block."""
        if isinstance(loss, Tensor) and loss.ndim == 0:
            self.block.append(loss.detach())
        if len(self.block) < BLOCK:
            return {}
        if not self.means:
            self.start = fmean(map(float, self.block[:5]))
        self.means.append(float(torch.stack(self.block).mean()))
        self.block = []
        self.lr = max(self.lr, float(group.get("initial_lr", group["lr"])))
        return self._find_problems(steps)

    @property
    def learning(self) -> bool:
        """Whether the loss is clearly below its start; unknown counts as yes."""
        return not self.means or self.means[-1] < LEARNING * self.start

    def _find_problems(self, steps: int | None) -> dict[str, str]:
        """A loss that had fallen and is back where it started, or that has not fallen in half of the run's steps."""
        lr, low, done = self.lr, min(self.means), BLOCK * len(self.means)
        if self.start < SEVERAL:
            return {}
        if low < FALLEN * self.start and min(self.means[-STAYS:]) >= BACK * self.start:
            return {
                "loss": f"the loss had fallen from {self.start:.2f} to {low:.2f} and is back at {self.means[-1]:.2f}: "
                f"lower lr from {lr:.3g} to about {lr / 3:.2g}"
            }
        if not steps or low < NOT_FALLEN * self.start or done < max(steps / 2, 4 * BLOCK):
            return {}
        change = f"raise lr from {lr:.3g} to about {3 * lr:.2g}"
        if self.means[-1] > self.start:  # too slow a run is a little below it
            change = f"lower lr from {lr:.3g} to about {lr / 3:.2g}"
        return {
            "loss": f"the loss is {self.means[-1]:.2f} after {done} of {steps} steps, and was {self.start:.2f} at the "
            f"start: {change}, or set noise=0.5"
        }


class Look:
    """A look at some weights before a step and after it, at steps 1, 100, 200, 400, …: what it costs does not count."""

    def __init__(self, weights: list[Weight]) -> None:
        self.weights = [w for w in weights if w.local.ndim > 1 and bool(w.mean.any())]
        self.before = [(_slice(w.mean), _slice(w.hess)) for w in self.weights]

    def problems(self, step: int, learning: bool, late: bool = False) -> dict[str, str]:
        """What is wrong after it, and which number to change to what; by the name of the setting.

        `late` says that more than half of the run is over: a schedule has lowered lr by then.
        """
        if not self.weights:
            return {}
        group = self.weights[0].group
        pairs = list(zip(self.weights, self.before, strict=True))
        moved = [rms(_slice(w.mean) - m) for w, (m, _) in pairs]
        size = [rms(w.mean) for w in self.weights]
        std = [rms(w.std()) for w in self.weights]
        share = median(d / s for d, s in zip(moved, size, strict=True))
        if step == 1:
            return _too_fast(group, share, FIRST_STEP)
        decay = group["weight_decay"]
        restless = median(rms((_slice(w.hess) - h) / (h + decay)) for w, (_, h) in pairs)
        found = _hessian(group, restless)
        if step == EARLY and float(group["lr"]) > 0 and not found:
            way = median(d / s for d, s in zip(moved, std, strict=True))
            found |= {} if late else _too_slow(group, way)
            # Adapters go far, relative to where they start, in good runs too.
            found |= {} if learning else _too_fast(group, share, LATER_STEP)
        found |= _noise(
            self.weights[0], median(s / m for s, m in zip(std, size, strict=True)), median(std)
        )
        return found


def check_end(group: dict[str, Any], lr: float) -> dict[str, str]:
    """At the last step: a rate that never fell leaves the mean where the noise of the last steps put it."""
    if float(group["lr"]) <= 0.5 * float(group.get("initial_lr", lr)):
        return {}
    return {
        "schedule": f"the last of the steps has lr={float(group['lr']):g}, which should have fallen to zero: make "
        "schedule = optimizer.schedule(model, loader), and call schedule.step() after every step; in a recipe, "
        "write name = 'cosine' under [schedule]"
    }


def _too_fast(group: dict[str, Any], share: float, limit: float) -> dict[str, str]:
    if share <= limit:
        return {}
    lr = float(group.get("initial_lr", group["lr"]))
    return {
        "lr": f"a step moved the weights by {share:.0%} of their size: lower lr from {lr:g} to about "
        f"{lr * 0.1 * limit / share:.1g}, or begin with a warm-up"
    }


def _hessian(group: dict[str, Any], share: float) -> dict[str, str]:
    if share <= HESS_CHANGE:
        return {}
    beta2 = 1 - max((1 - group["beta2"]) * 0.1 * HESS_CHANGE / share, 1e-3)
    return {
        "beta2": f"the Hessian's estimate changes by {share:.0%} in a step, too fast to be trusted: raise beta2 from "
        f"{group['beta2']:g} to about {beta2:.3f}; 1 − 2/steps is best"
    }


def _too_slow(group: dict[str, Any], moved: float) -> dict[str, str]:
    """`moved` is the step in units of σ; a schedule may have lowered the rate of this very step."""
    if group["beta2"] >= 1 or group["rescale_lr"] in LENGTHS:  # good runs by lengths move less
        return {}
    lr, horizon = float(group.get("initial_lr", group["lr"])), 2 / (1 - group["beta2"])
    way = moved * horizon * lr / float(group["lr"])
    if way >= LEAST_TRAVEL:
        return {}
    return {
        "lr": f"the weights move by {way:.2g} σ in 2/(1 − beta2) = {horizon:.0f} steps, less than their noise: "
        f"raise lr from {lr:g} to about {min(10 * LEAST_TRAVEL * lr / max(way, 1e-9), 0.5):.1g}"
    }


def _noise(w: Weight, ratio: float, std: float) -> dict[str, str]:
    if ratio <= LATE_NOISE:
        return {}
    group = w.group
    decay, h0 = group["weight_decay"], group["hess_init"]
    start = float(
        w.backend.rule.sigma(
            torch.full((), h0, dtype=torch.float64, device="cpu"), group["ess"], decay
        )
    )
    if std > 3 * start:
        change = f"raise beta2 from {group['beta2']:g} to 1 − 2/steps, because h has fallen since the start"
    elif decay > 1e-3:
        change = f"lower weight_decay from {decay:g} to about {decay / ratio:.1g}, because the weights have shrunk"
    else:
        change = f"raise hess_init from {h0:.3g} to about {h0 * ratio**2:.2g}"
    return {"noise": f"the posterior's noise is {ratio:.1f} times the weights by now: {change}"}


def _warn_if_slow(weights: list[Weight]) -> None:
    """Once: without the C kernels a step on the CPU takes several times as long."""
    global _warned_slow
    slow = [w for w in weights if w.local.device.type == "cpu" and w.group["fused"] is None]
    if randomness.KERNELS or _warned_slow or sum(w.local.numel() for w in slow) < LARGE:
        return
    _warned_slow = True
    warnings.warn(
        "bayesmooth was installed without a C compiler, so that IVON's steps on the CPU take about five times as long; "
        "install one (gcc or clang) and run `pip install --force-reinstall --no-deps --no-cache-dir --no-binary "
        "bayesmooth bayesmooth`; fused=False silences this",
        stacklevel=2,
    )


def _find_caller() -> int:
    """The stacklevel of the first line that is neither ours nor torch's, whose schedulers and hooks wrap `step`."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in ("bayesmooth", "torch"):
        level, frame = level + 1, frame.f_back
    return level + 1


def rms(*tensors: Tensor) -> float:
    """Root mean square of all entries together."""
    squares = sum(float(t.detach().float().square().sum()) for t in tensors)
    return float((squares / (sum(t.numel() for t in tensors) or 1)) ** 0.5)


def _slice(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)[:SLICE].float().clone()
