"""Draws of the weights passed over the data: expected, sampled and linearised noise."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.labelnoise.result import LabelNoise, join
from bayesmooth.posterior import Posterior, evaluating, statistics_kept
from bayesmooth.posterior.batchnorm import Statistics
from bayesmooth.posterior.calling import (
    Inputs,
    call_model,
    move_inputs,
    read_chunks,
    take_inputs,
    take_logits,
)
from bayesmooth.progress import bar
from bayesmooth.theory.links import Categorical

TOGETHER = 8  # linearised draws that share one pass at the mean
SAMPLES, BATCH_SIZE = 16, 256
AT_ONCE = 128 << 10  # bytes of pictures under them: the tangents of a small batch stay in the cache


@runtime_checkable
class Indexed(Protocol):
    """Labelled examples that give their inputs by position, like `bayesmooth.data.Examples`."""

    @property
    def labels(self) -> Tensor:
        """(N,) class numbers."""

    def batch(self, index: Tensor) -> Tensor:
        """The inputs at these positions."""


Data = Indexed | Tensor | Iterable[Any]


class Batch(NamedTuple):
    """Some examples, with their positions in the data."""

    inputs: Inputs
    labels: Tensor | None
    position: Tensor


def label_noise(
    model: nn.Module, posterior: Posterior, data: Data, *, quiet: bool = False, **how: Any
) -> LabelNoise:
    """The label noise of every example of `data`, with the settings of `label_noise_chunks`.

    >>> model = nn.Linear(2, 3)
    >>> mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    >>> q = Posterior(mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    >>> label_noise(model, q, torch.zeros(5, 2), quiet=True).expected.shape
    torch.Size([5, 3])
    """
    passes = _count(data, how.get("batch_size", BATCH_SIZE)) * (how.get("samples", SAMPLES) + 1)
    with bar(passes, description="label noise", quiet=quiet) as shown:
        done = 0

        def tick(batches: int) -> None:
            nonlocal done
            shown.update(done := done + batches)

        pieces = label_noise_chunks(model, posterior, data, tick=tick, **how)
        return join(list(pieces))


@torch.no_grad()
def label_noise_chunks(
    model: nn.Module,
    posterior: Posterior,
    data: Data,
    *,
    samples: int = SAMPLES,
    antithetic: bool = True,
    seed: int = 0,
    linearised: int = 0,
    batch_size: int = BATCH_SIZE,
    batchnorm: Iterable[Any] | None = None,
    tick: Callable[[int], None] = lambda batches: None,
) -> Iterator[LabelNoise]:
    """The label noise, one piece after the other, in memory that does not grow with the data.

    `data` is an `Examples`, a tensor of inputs, or an iterable of batches in a fixed order: (inputs, labels),
    (inputs, labels, index), or dicts of the model's arguments with "labels" among them. `samples` draws of the
    weights are averaged, `antithetic` in mirrored pairs, in which the first-order part of the noise, far larger
    than ε, cancels. `linearised` is the number of linearised draws (True: as many as samples); the first belongs to
    the same draw as `sampled`. The same seed gives the same noise, however the data is cut into batches.

    The model is in eval mode meanwhile: no dropout, and BatchNorm uses the running statistics that training left, for
    the mean and for every draw alike. With `batchnorm`, batches of training inputs (a list or a loader, read once per
    draw), the mean and each draw have their own; linearised draws keep the mean's.
    """
    if samples < 2 or (antithetic and samples % 2):
        rule = "even and ≥ 2, as draws come in mirrored pairs" if antithetic else "≥ 2"
        raise InputError(f"samples={samples}: must be {rule}")
    tangents = samples if linearised is True else int(linearised)
    statistics = Statistics(model, batchnorm)
    with evaluating(model), statistics_kept(model), posterior.at_mean(model):
        for chunk in read_chunks(_batches(data, batch_size), lambda batch: batch.inputs):
            placed = [move_inputs(batch.inputs, model) for batch in chunk]

            def forward(draw: int | None = None, inputs: list[Inputs] = placed) -> Tensor:
                statistics.use(draw)
                tick(len(inputs))
                return torch.cat([_logits(model, x) for x in inputs])

            logits = forward()
            columns = _draws(model, posterior, forward, logits, samples, antithetic, seed)
            if tangents:
                statistics.use()
                columns |= _linear_draws(model, posterior, placed, logits, tangents, seed)
            labels = [b.labels for b in chunk if b.labels is not None]
            yield LabelNoise(
                index=torch.cat([b.position for b in chunk]),
                label=torch.cat(labels) if labels else None,
                logits=logits.cpu(),
                **{name: column.cpu() for name, column in columns.items()},
            )


def _batches(data: Data, batch_size: int) -> Iterator[Batch]:
    """Any data as batches with positions."""
    if isinstance(data, Indexed | Tensor):
        labels = None if isinstance(data, Tensor) else data.labels
        take = data.__getitem__ if isinstance(data, Tensor) else data.batch
        for index in torch.split(torch.arange(_length(data), device="cpu"), batch_size):
            yield Batch(take(index), None if labels is None else labels[index], index)
        return
    start = 0
    for batch in data:
        given, *at = _labels(batch)
        position = at[0] if at else torch.arange(start, start + len(given), device="cpu")
        start += len(given)
        yield Batch(take_inputs(batch), given.cpu(), position.cpu())


def _labels(batch: Any) -> list[Tensor]:
    """Labels, and positions where there are any, of a loader's batch."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return [batch["labels"]]
    if isinstance(batch, tuple | list) and 2 <= len(batch) <= 3:
        return [*batch[1:]]
    raise InputError(
        f"a batch is a {type(batch).__name__}: must be (inputs, labels), (inputs, labels, index) or a dict "
        "with 'labels'"
    )


def _length(data: Indexed | Tensor) -> int:
    return len(data if isinstance(data, Tensor) else data.labels)


def _count(data: Data, batch_size: int) -> int:
    """How many batches, 0 where only reading will tell."""
    if isinstance(data, Indexed | Tensor):
        return -(-_length(data) // batch_size)
    return len(data) if isinstance(data, Sized) else 0


def _draws(
    model: nn.Module,
    posterior: Posterior,
    forward: Callable[[int], Tensor],
    logits: Tensor,
    samples: int,
    antithetic: bool,
    seed: int,
) -> dict[str, Tensor]:
    """The averages over draws, each of which passes over the whole chunk."""
    probs = logits.softmax(-1)
    noise, shift, square = (torch.zeros_like(logits) for _ in range(3))
    sampled = probs
    for number in range(samples):
        with posterior.sample(model, number, seed=seed, antithetic=antithetic):
            drawn = forward(number)
        # differences to the mean are summed: in float32 a sum of probabilities would lose ε
        difference = probs - drawn.softmax(-1)
        sampled = difference if number == 0 else sampled
        noise += difference
        moved = drawn - logits
        shift += moved
        square.addcmul_(moved, moved)
    centre = shift / samples
    # a mirrored pair has no freedom left to lose to its centre
    freedom = 1.0 if antithetic else samples / (samples - 1)
    variance = (square / samples - centre.square()).clamp_min(0) * freedom
    expected = noise / samples
    return {
        "expected": expected,
        "averaged": probs - expected,
        "logit_variance": variance,
        "sampled": sampled,
    }


def _linear_draws(
    model: nn.Module,
    posterior: Posterior,
    inputs: list[Inputs],
    logits: Tensor,
    draws: int,
    seed: int,
) -> dict[str, Tensor]:
    """−A″(f) ∇f σe by forward-mode differentiation, and its root mean square over draws."""
    first, square = torch.zeros_like(logits), torch.zeros_like(logits)
    parts = [part for x in inputs for part in _split(x, AT_ONCE)]
    for start in range(0, draws, TOGETHER):
        numbers = range(start, min(start + TOGETHER, draws))
        tangents = _tangents(model, posterior, numbers, seed)
        slopes = torch.cat([_slopes(model, posterior, x, tangents) for x in parts], 1)
        noises = -Categorical().variance_times(logits, slopes)
        first = noises[0] if start == 0 else first
        square += noises.square().sum(0)
    return {"linearised": first, "linearised_std": (square / draws).sqrt()}


def _tangents(
    model: nn.Module, posterior: Posterior, numbers: range, seed: int
) -> dict[str, Tensor]:
    """σe of these draws, stacked, by parameter: the same e as in `Posterior.sample`."""
    draws = [posterior.deviations(model, number, seed=seed) for number in numbers]
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def _split(inputs: Inputs, size: int) -> tuple[Inputs, ...]:
    """Pictures in pieces of up to `size` bytes, a power of two of them; flat rows have no feature maps to cache."""
    if not isinstance(inputs, Tensor) or inputs.ndim == 2:
        return (inputs,)
    fit = size * len(inputs) // (inputs.numel() * inputs.element_size())
    return tuple(torch.split(inputs, 1 << max(fit, 1).bit_length() - 1))


def _slopes(
    model: nn.Module, posterior: Posterior, inputs: Inputs, tangents: dict[str, Tensor]
) -> Tensor:
    """∇f·tangent of every tangent (T, B, K), at the weights that the model has now."""
    called: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
    targets = posterior.targets(model)
    args = (inputs,) if isinstance(inputs, Tensor) else ()
    kwargs = {} if isinstance(inputs, Tensor) else dict(inputs)

    def logits(weights: dict[str, Tensor]) -> Tensor:
        named = {called[targets[name]]: weight for name, weight in weights.items()}
        return take_logits(torch.func.functional_call(model, named, args, kwargs))

    def slope(tangent: dict[str, Tensor]) -> Tensor:
        at = {name: targets[name].detach() for name in tangent}
        out: Tensor = torch.func.jvp(logits, (at,), (tangent,))[1]
        return out

    with warnings.catch_warnings():  # torch's own rules for forward mode use what it deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        slopes: Tensor = torch.func.vmap(slope)(tangents)
    return slopes


def _logits(model: nn.Module, inputs: Inputs) -> Tensor:
    logits = take_logits(call_model(model, inputs))
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InputError(
            f"the model's output has the shape {tuple(logits.shape)}: must be (batch, classes ≥ 2)"
        )
    return logits.float()
