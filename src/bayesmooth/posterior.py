"""The Gaussian over weights: sample it, predict with its average, save it. Needs no optimizer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.calling import compute_logits, evaluating, read_chunks, statistics_kept, take_inputs
from bayesmooth.errors import InputError, require
from bayesmooth.files import name_errors, write_atomically
from bayesmooth.randomness import PREDICTION, check_seed, standard_normal
from bayesmooth.theory.links import Link

FORMAT = "bayesmooth.posterior.1"  # of its file
# parts that DDP, torch.compile, FSDP and activation checkpointing put into the names of a model's parameters
WRAPPERS = re.compile(r"\b(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass(frozen=True)
class Posterior:
    """q(θ) = N(mean, diag std²), by the names of the model's parameters.

    Parameters that it does not name (frozen ones) are points: sampling leaves them as they are. The model may be
    compiled, or wrapped in DDP, when the posterior was not, and the other way round.

    >>> model = nn.Linear(2, 3)
    >>> mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    >>> posterior = Posterior(mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    >>> posterior.predict(model, torch.zeros(5, 2), samples=8).shape
    torch.Size([5, 3])
    """

    mean: Mapping[str, Tensor]
    std: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if not self.mean or self.mean.keys() != self.std.keys():
            raise InputError("a weight with only a mean or only a std, or no weight at all; give both for every weight")
        for name, mean in self.mean.items():
            std = self.std[name]
            if std.shape != mean.shape:
                shapes = f"mean of shape {tuple(mean.shape)}, std of shape {tuple(std.shape)}"
                raise InputError(f"{name}: {shapes}; they must be equal")
            if not bool((mean.isfinite() & std.isfinite() & (std >= 0)).all()):
                raise InputError(
                    f"{name}: mean and std must be finite, and std ≥ 0; training diverged, or a damaged file"
                )

    @contextmanager
    def sample(self, model: nn.Module, index: int = 0, *, seed: int = 0) -> Iterator[None]:
        """Inside, the model's weights are draw number `index`; afterwards the old ones are back.

        Draws 2i and 2i + 1 are mirror images about the mean; those of different pairs are independent.
        """
        moves = self.deviations(model, index // 2, seed=seed, sign=1.0 - 2.0 * (index % 2))
        draws = {name: move.add_(self.mean[name].to(move)) for name, move in moves.items()}
        with _weights(self.targets(model), draws):
            yield

    def deviations(self, model: nn.Module, index: int = 0, *, seed: int = 0, sign: float = 1.0) -> dict[str, Tensor]:
        """σe of pair number `index`, by this posterior's names; `sample` adds it to the mean, or subtracts it."""
        check_seed(seed)
        noise = {
            name: standard_normal(param.detach(), seed=seed, stream=stream, step=index, draw=PREDICTION, sign=sign)
            for stream, (name, param) in enumerate(self.targets(model).items())
        }
        return {name: e.mul_(self.std[name].to(e)) for name, e in noise.items()}

    @contextmanager
    def at_mean(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model's weights are the mean; afterwards the old ones are back."""
        with _weights(self.targets(model), self.mean):
            yield

    @torch.no_grad()
    def predict(
        self,
        model: nn.Module,
        inputs: Any,
        samples: int = 64,
        *,
        link: Link | None = None,
        seed: int = 0,
        batchnorm: Iterable[Any] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """E_q[A′(f(θ))] over `samples` draws, one row per example: class probabilities, for a model of logits.

        `inputs` is a batch or an iterable of batches. A batch is a tensor, a dict of the model's arguments (its
        "labels" are left out), or (inputs, labels, …) as a loader gives it. The model returns logits, or an object
        that has them as `.logits`; their last axis is that of the classes, and A′ is the softmax. Another `link` is
        `Bernoulli()` for networks trained with binary cross-entropy, or `Gaussian()` for regression (both in
        `bayesmooth.theory`).

        Averages are float32, of a float64 model float64. Batches are read once, CHUNK_BYTES of them at a time, and
        all draws pass over these: memory grows neither with the samples nor with the inputs. `tick` is called after
        each draw, when the weights are back.

        The model is in eval mode meanwhile. BatchNorm layers use the running statistics that training left, gathered
        under samples; with `batchnorm`, batches of training inputs (a list or a loader, read once per draw), each
        draw computes its own.
        """
        if samples < 1:
            raise InputError(f"samples={samples}: must be ≥ 1; use at_mean for the mean's prediction")
        averages = []
        batches = [inputs] if isinstance(inputs, Tensor | Mapping) else inputs
        with evaluating(model), statistics_kept(model, batchnorm) as use_statistics:
            for chunk in read_chunks((take_inputs(batch, model) for batch in batches), lambda batch: batch):
                total = torch.zeros((), dtype=torch.float32, device="cpu")
                for index in range(samples):
                    with self.sample(model, index, seed=seed):
                        use_statistics(index)
                        logits = compute_logits(model, chunk, softmax=link is None)
                        total = (logits.softmax(-1) if link is None else link.mean(logits)) + total
                    tick()
                averages.append(total / samples)
        if not averages:
            raise InputError("inputs: no batches; give one at least")
        return torch.cat(averages)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; its folder is made if it is missing."""
        tensors = {
            f"{part}.{name}": t.detach().clone(memory_format=torch.contiguous_format)
            for part, values in (("mean", self.mean), ("std", self.std))
            for name, t in values.items()  # clones, as a file takes no two views of the same memory
        }
        serialize = require("safetensors.torch", "train").save  # its own writer has another error for a full disk
        write_atomically(Path(path), serialize(tensors, {"format": FORMAT}))

    @classmethod
    def load(cls, path: str | Path) -> "Posterior":
        """Read a file that `save` wrote."""
        safetensors = require("safetensors", "train")
        parts: dict[str, dict[str, Tensor]] = {"mean": {}, "std": {}}
        named = name_errors(path, "posterior", "; write it with save()")
        with named, safetensors.safe_open(str(path), "pt") as file:
            form = (file.metadata() or {}).get("format")
            if form != FORMAT:
                raise InputError(f"format {form!r}, expected {FORMAT!r}")
            for key in file.keys():  # noqa: SIM118
                part, _, name = key.partition(".")
                parts[part][name] = file.get_tensor(key)
            return cls(**parts)

    def targets(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's parameters that this posterior names, by its own names, in the model's order."""
        own = dict(model.named_parameters(remove_duplicate=False))
        plain = {WRAPPERS.sub("", name): name for name in reversed(own)}  # without wrappers; the first name counts
        posterior_names = {name if name in own else plain.get(WRAPPERS.sub("", name)): name for name in self.mean}
        for key, name in posterior_names.items():
            shape = tuple(self.mean[name].shape)
            if key is None or tuple(own[key].shape) != shape:
                other = "not a parameter" if key is None else f"of shape {tuple(own[key].shape)}"
                raise InputError(
                    f"{name}: {other} in this {type(model).__name__}, of shape {shape} in the posterior; "
                    "it belongs to another model"
                )
        targets: dict[str, Tensor] = {posterior_names[k]: param for k, param in own.items() if k in posterior_names}
        plain_names = [name for name, p in targets.items() if type(p.data) is Tensor]  # torch places shards
        if shared := find_overlap([targets[name] for name in plain_names]):
            raise InputError(
                f"{' and '.join(plain_names[i] for i in shared)}: share memory, and one place cannot hold two draws; "
                "tie weights by using one Parameter, under one of its names"
            )
        return targets


def name_parameters(groups: list[dict[str, Any]], model: nn.Module | None = None) -> dict[Tensor, str]:
    """The names of an optimizer's parameters: those in the model, or those that its constructor got."""
    if model is not None:
        own = {param: name for name, param in model.named_parameters()}
        named = {p: own[p] for group in groups for p in group["params"] if p in own}
        if not named:
            raise InputError(
                f"posterior(model): this {type(model).__name__} has none of the optimizer's parameters (a copy has its "
                "own); give the model that is trained, and copy the posterior's weights with at_mean or sample"
            )
        return named
    if not all("param_names" in group for group in groups):
        raise InputError(
            "the optimizer does not know its parameters' names; call posterior(model), or build it from "
            "model.named_parameters()"
        )
    return {param: name for group in groups for param, name in zip(group["params"], group["param_names"], strict=True)}


@contextmanager
def _weights(params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Other values in the same storage, and the old ones back, bit for bit, also where the storage was changed."""
    places = {name: params[name].data for name in values}
    before = {name: place.clone() for name, place in places.items()}
    try:
        for name, place in places.items():
            place.copy_(values[name])
        torch.clear_autocast_cache()  # it holds copies of the last weights
        yield
    finally:
        for name, place in places.items():
            place.copy_(before[name])
            now = params[name].data
            if now.data_ptr() != place.data_ptr():  # p.data = …, or model.double()
                params[name].data = place.to(now)
        torch.clear_autocast_cache()


def find_overlap(tensors: Sequence[Tensor]) -> list[int]:
    """The positions of the first two tensors whose memory meets; of one, if it is expanded; of none.

    >>> find_overlap([torch.zeros(2), torch.zeros(3).expand(2, 3)])
    [1]
    """
    spans = []
    for place, tensor in enumerate(tensors):
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        length = 1 + sum((size - 1) * stride for size, stride in pairs)  # from the first element to the last
        if length < tensor.numel():
            return [place]
        if tensor.numel() and (start := tensor.data_ptr()):
            spans.append((str(tensor.device), start, start + length * tensor.element_size(), place))
    for (device, _, end, one), (at, start, _, other) in pairwise(sorted(spans)):
        if device == at and start < end:
            return [one, other]
    return []
