"""Draws of the weights passed over the data: expected, sampled and linearised noise."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.labelnoise.batches import Data, batches, count
from bayesmooth.labelnoise.result import LabelNoise, join
from bayesmooth.posterior import Posterior, chunks, evaluating
from bayesmooth.progress import bar
from bayesmooth.theory.links import Categorical

TOGETHER = 8  # linearised draws that share one pass at the mean
SAMPLES, BATCH_SIZE = 16, 256
AT_ONCE = 128 << 10  # bytes of pictures under them: the tangents of a small batch stay in the cache


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
    passes = count(data, how.get("batch_size", BATCH_SIZE)) * (how.get("samples", SAMPLES) + 1)
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
    tick: Callable[[int], None] = lambda batches: None,
) -> Iterator[LabelNoise]:
    """The label noise, one piece after the other, in memory that does not grow with the data.

    `data` is an `Examples`, an iterable of (inputs, labels) or (inputs, labels, index) batches in a fixed
    order, or a tensor of inputs. `samples` draws of the weights are averaged, `antithetic` in mirrored pairs,
    in which the first-order part of the noise, far larger than ε, cancels. `linearised` is the number of
    linearised draws (True: as many as samples); the first goes with `sampled`. The same seed gives the same
    noise, however the data is cut into batches. The model is in eval mode meanwhile: no dropout, and
    BatchNorm uses its running statistics for the mean and for every draw alike.
    """
    if samples < 2 or (antithetic and samples % 2):
        rule = "even and ≥ 2, as draws come in mirrored pairs" if antithetic else "≥ 2"
        raise InputError(f"samples={samples}: must be {rule}")
    device = next(model.parameters()).device
    tangents = samples if linearised is True else int(linearised)
    with evaluating(model), posterior.at_mean(model):
        for chunk in chunks(batches(data, batch_size), lambda batch: batch.inputs):
            on_device = [b.inputs.to(device) for b in chunk]

            def forward(inputs: list[Tensor] = on_device) -> Tensor:
                tick(len(inputs))
                return _logits(torch.cat([model(x) for x in inputs]))

            logits = forward()
            columns = _draws(model, posterior, forward, logits, samples, antithetic, seed)
            if tangents:
                columns |= _linear_draws(model, posterior, on_device, logits, tangents, seed)
            labels = [b.labels for b in chunk if b.labels is not None]
            yield LabelNoise(
                index=torch.cat([b.position for b in chunk]),
                label=torch.cat(labels) if labels else None,
                logits=logits.cpu(),
                **{name: column.cpu() for name, column in columns.items()},
            )


def _draws(
    model: nn.Module,
    posterior: Posterior,
    forward: Callable[[], Tensor],
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
            drawn = forward()
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
    inputs: list[Tensor],
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
        slopes = torch.cat([_slopes(model, x, tangents) for x in parts], 1)
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


def _split(inputs: Tensor, size: int) -> tuple[Tensor, ...]:
    """Pieces of up to `size` bytes, a power of two of them; flat rows have no feature maps, and stay together."""
    fit = size * len(inputs) // (inputs.numel() * inputs.element_size())
    rows = len(inputs) if inputs.ndim == 2 else 1 << max(fit, 1).bit_length() - 1
    return inputs.split(rows)  # type: ignore[no-any-return, no-untyped-call]


def _slopes(model: nn.Module, inputs: Tensor, tangents: dict[str, Tensor]) -> Tensor:
    """∇f·tangent of every tangent (T, B, K), at the weights that the model has now."""
    own = dict(model.named_parameters())
    at = {name: own[name].detach() for name in tangents}

    def logits(weights: dict[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(model, weights, (inputs,))
        return out

    def slope(tangent: dict[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.jvp(logits, (at,), (tangent,))[1]
        return out

    with warnings.catch_warnings():  # torch's own rules for forward mode use what it deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        slopes: Tensor = torch.func.vmap(slope)(tangents)
    return slopes


def _logits(out: Tensor) -> Tensor:
    if out.ndim != 2 or out.shape[1] < 2:
        raise InputError(
            f"the model's output has the shape {tuple(out.shape)}: must be (batch, classes ≥ 2)"
        )
    return out.float()
