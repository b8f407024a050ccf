"""Label noise of real networks: ε of every example, from a model and the Gaussian over its weights.

The paper calls three things label noise; here they have three names, all signed (K entries per example, which
sum to zero) and all with the sign of eq:labelnoiseGLMGD, ε = A′(f(m)) − E_q[A′(f(θ))]: positive where the
prediction at the mean is more certain than the averaged one.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesmooth.calling import (
    Inputs,
    call_model,
    evaluating,
    move_inputs,
    read_chunks,
    statistics_kept,
    take_inputs,
    take_labels,
    take_logits,
)
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.progress import bar
from bayesmooth.theory.links import Categorical
from bayesmooth.theory.noise import effective_labels, expected_noise, linearised_std

TOGETHER = 8  # linearised draws that share one pass at the mean
SAMPLES, BATCH_SIZE = 16, 256
PIECE = 128 << 10  # bytes of pictures under them: their tangents stay in the cache, which takes half of the time


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """The noise of N examples and what it came from; tensors on the CPU, N rows each."""

    index: Tensor
    """Positions in the data."""
    label: Tensor | None
    """Given labels, where the data has any."""
    logits: Tensor
    """f(m), at the mean of the posterior."""
    averaged: Tensor
    """E_q softmax(f(θ)), the posterior-averaged probabilities."""
    expected: Tensor
    """ε = softmax(f(m)) − E_q softmax(f(θ))  (eq:labelnoiseGLMGD)."""
    logit_variance: Tensor
    """Var_q f_k(θ): how much the posterior moves each logit."""
    sampled: Tensor | None = None
    """softmax(f(m)) − softmax(f(θ)), one draw θ: its mean over draws is ε."""
    linearised: Tensor | None = None
    """−A″(f) ∇f Σ^½e, the same draw to first order  (eq:taylor_noise_nn; the paper drops the minus)."""
    linearised_std: Tensor | None = None
    """The standard deviation of the linearised noise over draws; its mean is zero."""

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        shape = f"{len(self):,} examples × {self.logits.shape[1]} classes"
        return f"LabelNoise({shape}, mean magnitude {float(self.magnitude.mean()):.3g})"

    @property
    def probabilities(self) -> Tensor:
        """softmax(f(m)), the prediction at the mean."""
        return self.logits.softmax(-1)

    @property
    def magnitude(self) -> Tensor:
        """½‖ε‖₁: the probability mass that averaging moves, from 0 to 1. Knows nothing of the label."""
        return self.expected.abs().sum(-1) / 2

    @property
    def smoothed(self) -> Tensor:
        """y − ε, the smoothed labels: below 1 for a confident, correctly labelled example."""
        return nn.functional.one_hot(self._labels(), self.logits.shape[1]) - self.expected

    @property
    def true_class(self) -> Tensor:
        """ε_y, the entry of the given label."""
        return self.expected.gather(1, self._labels()[:, None]).squeeze(1)

    def _labels(self) -> Tensor:
        if self.label is None:
            raise InputError("the data had no labels; give a Source or batches (inputs, labels)")
        return self.label


def label_noise(
    model: nn.Module, posterior: Posterior, data: Any, *, quiet: bool = False, **settings: Any
) -> LabelNoise:
    """The label noise of every example of `data`, with the settings of `label_noise_chunks`.

    >>> model = nn.Linear(2, 3)
    >>> mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    >>> q = Posterior(mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    >>> label_noise(model, q, torch.zeros(5, 2), quiet=True).expected.shape
    torch.Size([5, 3])
    """
    rows = settings.get("batch_size", BATCH_SIZE) if _has_rows(data) else 1
    passes = -(-_count(data) // rows) * (settings.get("samples", SAMPLES) + 1)
    with bar(passes, description="label noise", quiet=quiet) as shown:
        done = 0

        def tick(batches: int) -> None:
            nonlocal done
            shown.update(done := done + batches)

        parts = list(label_noise_chunks(model, posterior, data, tick=tick, **settings))
    if not parts:
        raise InputError("the data is empty; give at least one example")
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(LabelNoise)}
    return LabelNoise(
        **{k: None if v[0] is None else torch.cat(v) for k, v in columns.items()}  # type: ignore[arg-type]
    )


@torch.no_grad()
def label_noise_chunks(
    model: nn.Module,
    posterior: Posterior,
    data: Any,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    linearised: int = 0,
    batch_size: int = BATCH_SIZE,
    batchnorm: Iterable[Any] | None = None,
    tick: Callable[[int], None] = lambda batches: None,
) -> Iterator[LabelNoise]:
    """The label noise, one piece after the other, in memory that does not grow with the data.

    `data` is a `Source`, a tensor of inputs, or an iterable of batches in a fixed order: (inputs, labels),
    (inputs, labels, index), or dicts of the model's arguments with "labels" among them. `samples` draws of the
    weights are averaged. They come in mirrored pairs, in which the first-order part of the noise, far larger than ε,
    cancels. `linearised` is the number of linearised draws; the first belongs to the same draw as `sampled`.
    The same seed gives the same noise, however the data is cut into batches.

    The model is in eval mode meanwhile: no dropout, and BatchNorm uses the running statistics that training left, for
    the mean and for every draw alike. With `batchnorm`, batches of training inputs (a list or a loader, read once per
    draw), the mean and each draw have their own; linearised draws keep the mean's.
    """
    if samples < 2 or samples % 2:
        raise InputError(f"samples={samples}: must be even and ≥ 2, as draws come in mirrored pairs")
    with evaluating(model), statistics_kept(model, batchnorm) as use_statistics, posterior.at_mean(model):
        for chunk in read_chunks(_read_batches(data, batch_size), lambda batch: batch.inputs):
            placed = [move_inputs(batch.inputs, model) for batch in chunk]
            use_statistics(None)
            logits = _read_logits(model, placed)
            tick(len(placed))

            def draw(number: int, inputs: list[Inputs] = placed) -> Tensor:
                with posterior.sample(model, number, seed=seed):
                    use_statistics(number)
                    drawn = _read_logits(model, inputs)
                tick(len(inputs))
                return drawn

            columns = _average(logits, map(draw, range(samples)), samples)
            if linearised:
                use_statistics(None)
                columns |= _linearise(model, posterior, placed, logits, linearised, seed)
            labels = [b.labels for b in chunk if b.labels is not None]
            yield LabelNoise(
                index=torch.cat([b.position for b in chunk]),
                label=torch.cat(labels) if labels else None,
                logits=logits.cpu(),
                **{name: column.cpu() for name, column in columns.items()},
            )


def exact_label_noise(logits: Tensor, cov: Tensor, labels: Tensor | None = None) -> LabelNoise:
    """The noise of logits that are Gaussian, N(logits, cov), as those of a linear model are: no sampling error.

    `cov` is (N, K), or (N, K, K) where the logits of an example are correlated.
    """
    noise = expected_noise(logits, cov, Categorical())
    correlated = cov.ndim > logits.ndim
    return LabelNoise(
        index=torch.arange(len(logits), device="cpu"),
        label=labels,
        logits=logits,
        averaged=logits.softmax(-1) - noise,
        expected=noise,
        logit_variance=cov.diagonal(dim1=-2, dim2=-1) if correlated else cov,
        linearised_std=linearised_std(logits, cov, Categorical()),
    )


def smoothed_labels_by_class(
    methods: Mapping[str, Callable[..., Tensor] | LabelNoise], logits: Tensor, labels: Tensor, **extra: Any
) -> dict[str, Tensor]:
    """For each method, (K, K): row c is the mean smoothed label of the examples labelled c.

    A method is a loss (its effective labels t = p − ∂L/∂z at these logits; `extra` goes to the losses) or a
    `LabelNoise` (its smoothed labels y − ε). A class without examples has a row of NaN.
    """
    rows = {}
    for name, method in methods.items():
        if isinstance(method, LabelNoise):
            own, values = method._labels(), method.smoothed
        else:
            own, values = labels, effective_labels(method, logits, labels, **extra)
        sums = values.new_zeros(values.shape[1], values.shape[1]).index_add_(0, own, values)
        rows[name] = sums / torch.bincount(own, minlength=values.shape[1])[:, None]
    return rows


# ---- the data as batches ----


class Batch(NamedTuple):
    """Some examples, with their positions in the data."""

    inputs: Inputs
    labels: Tensor | None
    position: Tensor


def _has_rows(data: Any) -> bool:
    """Whether it gives its inputs by position: a tensor, or a `Source`."""
    return isinstance(data, Tensor) or hasattr(data, "batch")


def _count(data: Any) -> int:
    """How many rows or batches there are; 0 where only reading will tell, as of a loader of a stream."""
    try:
        return len(data) if isinstance(data, Sized) else 0
    except TypeError:
        return 0


def _read_batches(data: Any, batch_size: int) -> Iterator[Batch]:
    """Any data as batches with positions."""
    if _has_rows(data):
        labels = getattr(data, "labels", None)
        take = data.__getitem__ if isinstance(data, Tensor) else data.batch
        for index in torch.split(torch.arange(len(data), device="cpu"), batch_size):
            yield Batch(take(index), None if labels is None else labels[index], index)
        return
    start = 0
    for batch in data:
        own = take_labels(batch)
        if own.is_floating_point() or own.is_complex():
            raise InputError(f"labels are {own.dtype}: must be whole numbers, the classes")
        position = torch.arange(start, start + len(own), device="cpu")
        if not isinstance(batch, Mapping) and len(batch) > 2:
            position = batch[2].cpu()
        start += len(own)
        yield Batch(take_inputs(batch), own.cpu().long(), position)


# ---- draws over the data ----


def _read_logits(model: nn.Module, inputs: list[Inputs]) -> Tensor:
    """The logits of all inputs, at the weights that the model has now."""
    logits = torch.cat([take_logits(call_model(model, each)) for each in inputs])
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InputError(f"the model's output has the shape {tuple(logits.shape)}: must be (batch, classes ≥ 2)")
    return logits.float()


def _average(logits: Tensor, draws: Iterable[Tensor], samples: int) -> dict[str, Tensor]:
    """The averages over draws of the logits."""
    probs = logits.softmax(-1)
    noise, shift, square = (torch.zeros_like(logits) for _ in range(3))
    sampled = probs
    for number, drawn in enumerate(draws):
        # differences to the mean are summed: in float32 a sum of probabilities would lose ε
        difference = probs - drawn.softmax(-1)
        sampled = difference if number == 0 else sampled
        noise += difference
        shift += drawn - logits
        square += (drawn - logits).square()
    # not over samples − 1: a mirrored pair has no freedom left to lose to its centre
    variance = (square / samples - (shift / samples).square()).clamp_min(0)
    return {
        "expected": noise / samples,
        "averaged": probs - noise / samples,
        "logit_variance": variance,
        "sampled": sampled,
    }


def _linearise(
    model: nn.Module, posterior: Posterior, inputs: list[Inputs], logits: Tensor, draws: int, seed: int
) -> dict[str, Tensor]:
    """−A″(f) ∇f σe by forward-mode differentiation, with the e of `Posterior.sample`; its rms over draws."""
    first, square = torch.zeros_like(logits), torch.zeros_like(logits)
    parts: list[Inputs] = []
    for x in inputs:
        pictures = isinstance(x, Tensor) and x.ndim > 2
        parts.extend(torch.split(x, max(PIECE // x[0].nbytes, 1)) if pictures else [x])  # type: ignore[arg-type, index]
    for start in range(0, draws, TOGETHER):
        numbers = range(start, min(start + TOGETHER, draws))
        moves = [posterior.deviations(model, number, seed=seed) for number in numbers]
        tangents = {name: torch.stack([move[name] for move in moves]) for name in moves[0]}
        slopes = torch.cat([_slopes(model, posterior, x, tangents) for x in parts], 1)
        noises = -Categorical().variance_times(logits, slopes)
        first = noises[0] if start == 0 else first
        square += noises.square().sum(0)
    return {"linearised": first, "linearised_std": (square / draws).sqrt()}


def _slopes(model: nn.Module, posterior: Posterior, inputs: Inputs, tangents: dict[str, Tensor]) -> Tensor:
    """∇f·tangent of every tangent (T, B, K), at the weights that the model has now."""
    called: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
    targets = posterior.targets(model)
    mean = {called[param]: param.detach() for param in targets.values()}
    given = ((inputs,), {}) if isinstance(inputs, Tensor) else ((), dict(inputs))

    def logits(weights: dict[str, Tensor]) -> Tensor:
        return take_logits(torch.func.functional_call(model, weights, *given))

    def slope(tangent: dict[str, Tensor]) -> Tensor:
        named = {called[targets[name]]: move for name, move in tangent.items()}
        out: Tensor = torch.func.jvp(logits, (mean,), (named,))[1]
        return out

    with warnings.catch_warnings():  # torch's own rules for forward mode use what it deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        slopes: Tensor = torch.func.vmap(slope)(tangents)
    return slopes
