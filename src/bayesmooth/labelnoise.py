"""Label noise of real networks: ε of every example, from a model and the Gaussian over its weights.

The paper calls three things label noise; here they have three names, all signed (K entries per example, which
sum to zero) and all with the sign of eq:labelnoiseGLMGD, ε = A′(f(m)) − E_q[A′(f(θ))]: positive where the
prediction at the mean is more certain than the averaged one.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.calling import (
    Inputs,
    compute_logits,
    evaluating,
    read_chunks,
    statistics_kept,
    take_inputs,
    take_labels,
    take_logits,
)
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.progress import bar
from bayesmooth.theory.noise import effective_labels

TOGETHER = 8  # linearised draws that share one pass at the mean
PIECE = 128 << 10  # bytes of pictures under them: their tangents stay in the cache, which takes half of the time


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """The noise of N examples and the predictions behind it; tensors on the CPU, N rows each."""

    index: Tensor
    """Positions in the data."""
    logits: Tensor
    """f(m), at the mean of the posterior."""
    averaged: Tensor
    """E_q softmax(f(θ)), the posterior-averaged probabilities."""
    expected: Tensor
    """ε = softmax(f(m)) − E_q softmax(f(θ))  (eq:labelnoiseGLMGD)."""
    logit_variance: Tensor
    """Var_q f_k(θ): the variance of each logit under the posterior."""
    label: Tensor | None = None
    """Given labels, where the data has any."""
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


@torch.no_grad()
def label_noise(
    model: nn.Module,
    posterior: Posterior,
    data: Any,
    *,
    samples: int = 16,
    seed: int = 0,
    linearised: int = 0,
    batch_size: int = 256,
    batchnorm: Iterable[Any] | None = None,
    quiet: bool = False,
) -> LabelNoise:
    """The label noise of every example of `data`.

    `data` is a `Source`, a tensor of inputs, or an iterable of batches in a fixed order: (inputs, labels),
    (inputs, labels, index), or dicts of the model's arguments with "labels" among them. `samples` draws of the
    weights are averaged. They come in mirrored pairs, in which the first-order part of the noise, far larger than ε,
    cancels. `linearised` is the number of linearised draws; the first belongs to the same draw as `sampled`.
    The same seed gives the same noise, however the data is cut into batches.

    The model is in eval mode meanwhile: no dropout, and the mean and all draws have BatchNorm's running statistics of
    training. With `batchnorm`, as in `Posterior.predict`, each has its own; linearised draws keep the mean's.

    >>> model = nn.Linear(2, 3)
    >>> mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    >>> q = Posterior(mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    >>> label_noise(model, q, torch.zeros(5, 2), quiet=True).expected.shape
    torch.Size([5, 3])
    """
    if samples < 2 or samples % 2:
        raise InputError(f"samples={samples}: must be even and ≥ 2, as draws come in mirrored pairs")
    if linearised < 0 or batch_size < 1:
        raise InputError(f"linearised={linearised}, batch_size={batch_size}: must be ≥ 0, and ≥ 1")
    passes = -(-length_hint(data) // (batch_size if _has_rows(data) else 1)) * samples
    done, parts = 0, []
    with (
        bar(passes, description="label noise", quiet=quiet) as shown,
        evaluating(model),
        statistics_kept(model, batchnorm) as use_statistics,
        posterior.at_mean(model),
    ):

        def read_draws(inputs: list[Inputs]) -> Iterator[Tensor]:
            nonlocal done
            for draw in range(samples):
                with posterior.sample(model, draw, seed=seed):
                    use_statistics(draw)
                    logits = compute_logits(model, inputs).float()
                shown.update(done := done + len(inputs))
                yield logits

        for chunk in read_chunks(_read_batches(data, batch_size), lambda batch: batch[0]):
            inputs, labels, positions = zip(*chunk, strict=True)
            placed = [take_inputs(each, model) for each in inputs]
            use_statistics(None)
            logits = compute_logits(model, placed).float()
            if logits.ndim != 2:
                raise InputError(f"logits of shape {tuple(logits.shape)}: must be (examples, classes); flatten them")
            columns = {"logits": logits} | _average(logits, read_draws(placed), samples)
            if linearised:
                use_statistics(None)
                columns |= _linearise(model, posterior, placed, linearised, seed)
            columns["index"] = torch.cat(positions)
            if labels[0] is not None:
                columns["label"] = torch.cat(labels)
            parts.append({name: column.cpu() for name, column in columns.items()})
    if not any(len(part["index"]) for part in parts):
        raise InputError("the data is empty; give at least one example")
    return LabelNoise(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


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


def _has_rows(data: Any) -> bool:
    """Whether it gives its inputs by position: a tensor, or a `Source`."""
    return isinstance(data, Tensor) or hasattr(data, "batch")


def _read_batches(data: Any, batch_size: int) -> Iterator[tuple[Inputs, Tensor | None, Tensor]]:
    """Any data as batches of inputs, labels, and positions in the data."""
    if _has_rows(data):
        labels = getattr(data, "labels", None)
        take = data.__getitem__ if isinstance(data, Tensor) else data.batch
        for index in torch.split(torch.arange(len(data), device="cpu"), batch_size):
            yield take(index), None if labels is None else labels[index], index
        return
    start = 0
    for batch in data:
        own = take_labels(batch)
        if own.is_floating_point() or own.is_complex():
            raise InputError(f"labels are {own.dtype}: must be whole numbers, the classes")
        given = not isinstance(batch, Mapping) and len(batch) > 2
        position = batch[2].cpu() if given else torch.arange(start, start + len(own), device="cpu")
        start += len(own)
        yield take_inputs(batch), own.cpu(), position


# ---- draws over the data ----


def _average(logits: Tensor, draws: Iterable[Tensor], samples: int) -> dict[str, Tensor]:
    """The averages over draws of the logits."""
    probs = logits.softmax(-1)
    noise, shift, square = (torch.zeros_like(logits) for _ in range(3))
    sampled = probs
    for number, drawn in enumerate(draws):
        # differences to the mean are summed: in float32 a sum of probabilities would lose ε
        difference = probs - drawn.softmax(-1)
        sampled = sampled if number else difference
        noise += difference
        shift += drawn - logits
        square += (drawn - logits).square()
    # not over samples − 1: a mirrored pair has no freedom left to lose to its centre
    variance = (square / samples - (shift / samples).square()).clamp_min(0)
    noise /= samples
    return {"expected": noise, "averaged": probs - noise, "logit_variance": variance, "sampled": sampled}


def _linearise(
    model: nn.Module, posterior: Posterior, inputs: list[Inputs], draws: int, seed: int
) -> dict[str, Tensor]:
    """−A″(f) ∇f σe by forward-mode differentiation, with the e of `Posterior.sample`; its rms over draws."""
    parts, first, squares = list[Inputs](), list[Tensor](), list[Tensor]()
    for x in inputs:
        pictures = isinstance(x, Tensor) and x.ndim > 2
        parts.extend(torch.split(x, max(PIECE // x[0].nbytes, 1)) if pictures else [x])  # type: ignore[arg-type, index]
    for start in range(0, draws, TOGETHER):
        numbers = range(start, min(start + TOGETHER, draws))
        moves = [posterior.deviations(model, number, seed=seed) for number in numbers]
        tangents = {name: torch.stack([move[name] for move in moves]) for name in moves[0]}
        noises = -torch.cat([_differentiate(model, posterior, x, tangents) for x in parts], 1)
        first.append(noises[0])
        squares.append(noises.square().sum(0))
    return {"linearised": first[0], "linearised_std": (torch.stack(squares).sum(0) / draws).sqrt()}


def _differentiate(model: nn.Module, posterior: Posterior, inputs: Inputs, tangents: dict[str, Tensor]) -> Tensor:
    """∇softmax(f)·tangent of every tangent (T, B, K), at the weights that the model has now."""
    called: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
    targets = posterior.targets(model)
    mean = {called[param]: param.detach() for param in targets.values()}
    given = ((inputs,), {}) if isinstance(inputs, Tensor) else ((), dict(inputs))

    def predict(weights: dict[str, Tensor]) -> Tensor:
        return take_logits(torch.func.functional_call(model, weights, *given)).float().softmax(-1)

    def differentiate(tangent: dict[str, Tensor]) -> Tensor:
        named = {called[targets[name]]: move for name, move in tangent.items()}
        out: Tensor = torch.func.jvp(predict, (mean,), (named,))[1]
        return out

    with warnings.catch_warnings():  # torch's own rules for forward mode use deprecated calls
        warnings.simplefilter("ignore", DeprecationWarning)
        slopes: Tensor = torch.func.vmap(differentiate)(tangents)
    return slopes
