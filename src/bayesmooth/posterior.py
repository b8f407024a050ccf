"""The Gaussian over weights: sample it, predict with its average, save it. Needs no optimizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.randomness import PREDICTION, standard_normal

FORMAT = "bayesmooth.posterior.1"
CHUNK_BYTES = 64 << 20  # inputs kept while all draws pass over them: each draw is made once a chunk

Part = TypeVar("Part")


@dataclass(frozen=True)
class Posterior:
    """q(θ) = N(mean, diag std²), by the names of the model's parameters.

    Parameters that it does not name (frozen ones) are points: sampling leaves them as they are.

    >>> model = nn.Linear(2, 3)
    >>> mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    >>> posterior = Posterior(mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    >>> posterior.predict(model, torch.zeros(5, 2), samples=8).shape
    torch.Size([5, 3])
    """

    mean: Mapping[str, Tensor]
    std: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if self.mean.keys() != self.std.keys():
            odd = sorted(self.mean.keys() ^ self.std.keys())
            raise InputError(f"{odd[0]}: has only a mean or only a std; give both for every weight")
        for name, std in self.std.items():
            if std.shape != self.mean[name].shape:
                raise InputError(
                    f"{name}: mean of shape {tuple(self.mean[name].shape)}, std of shape "
                    f"{tuple(std.shape)}; they must be equal"
                )
            if not bool((std >= 0).all()):
                raise InputError(f"{name}: std has negative or NaN entries; it must be ≥ 0")

    @contextmanager
    def sample(
        self, model: nn.Module, index: int = 0, *, seed: int = 0, antithetic: bool = False
    ) -> Iterator[None]:
        """Inside, the model's weights are draw number `index`; afterwards they are what they were.

        With `antithetic`, draws 2i and 2i + 1 are mirror images about the mean.
        """
        pair, sign = (index // 2, 1.0 - 2.0 * (index % 2)) if antithetic else (index, 1.0)
        draws = {
            name: moved.add_(self.mean[name].to(moved))
            for name, moved in self.deviations(model, pair, seed=seed, sign=sign).items()
        }
        with _weights(model, draws):
            yield

    def deviations(
        self, model: nn.Module, index: int = 0, *, seed: int = 0, sign: float = 1.0
    ) -> dict[str, Tensor]:
        """σe of draw number `index`, by the names of the model's parameters: what `sample` adds to the mean."""
        noise = {
            name: standard_normal(
                param.detach(), seed=seed, stream=stream, step=index, draw=PREDICTION, sign=sign
            )
            for stream, (name, param) in enumerate(self._targets(model).items())
        }
        return {name: e.mul_(self.std[name].to(e)) for name, e in noise.items()}

    @contextmanager
    def at_mean(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model's weights are the mean; afterwards they are what they were."""
        self._targets(model)
        with _weights(model, self.mean):
            yield

    @torch.no_grad()
    def predict(
        self,
        model: nn.Module,
        inputs: Tensor | Iterable[Tensor],
        samples: int = 64,
        *,
        antithetic: bool = True,
        seed: int = 0,
        batchnorm: Iterable[Tensor] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Class probabilities averaged over `samples` draws, for a batch or an iterable of batches.

        They are float32, of a float64 model float64. Batches are read once, CHUNK_BYTES of them at a time, and all
        draws pass over these: memory grows neither with the samples nor with the inputs. `tick` is called after each
        draw, when the weights are back.

        The model is in eval mode meanwhile. BatchNorm layers use the running statistics that training left, gathered
        under samples; with `batchnorm`, batches of training inputs (a list, read once a draw), each draw computes
        its own.
        """
        if samples < 1:
            raise InputError(
                f"samples={samples}: must be ≥ 1; use at_mean for the mean's prediction"
            )
        if isinstance(batchnorm, Iterator):
            raise InputError(
                f"batchnorm: a {type(batchnorm).__name__} is empty after the first draw; "
                "give a list or a loader"
            )
        batches = [inputs] if isinstance(inputs, Tensor) else inputs
        averages = []
        with evaluating(model), statistics_kept(model):
            for chunk in chunks(batches, lambda batch: batch):
                total = torch.zeros(())
                for index in range(samples):
                    with self.sample(model, index, seed=seed, antithetic=antithetic):
                        if batchnorm is not None:
                            recompute_batchnorm(model, batchnorm)
                        total = torch.cat([_probabilities(model(x)) for x in chunk]) + total
                    tick()
                averages.append(total / samples)
        if not averages:
            raise InputError("inputs: no batches; give one at least")
        return torch.cat(averages)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        tensors = {f"mean.{name}": t.contiguous() for name, t in self.mean.items()}
        tensors |= {f"std.{name}": t.contiguous() for name, t in self.std.items()}
        require("safetensors.torch", "train").save_file(tensors, str(path), {"format": FORMAT})

    @classmethod
    def load(cls, path: str | Path) -> "Posterior":
        """Read what `save` wrote."""
        safetensors = require("safetensors", "train")
        try:
            with safetensors.safe_open(str(path), "pt") as file:
                form = (file.metadata() or {}).get("format")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, safetensors.SafetensorError) as problem:
            raise InputError(f"{path}: cannot be read as a posterior: {problem}") from None
        if form != FORMAT:
            raise InputError(f"{path}: format {form!r}, expected {FORMAT!r}; write it with save()")
        parts: dict[str, dict[str, Tensor]] = {"mean": {}, "std": {}}
        for key, tensor in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = tensor
        return cls(parts["mean"], parts["std"])

    def _targets(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's parameters that this posterior names."""
        own = dict(model.named_parameters())
        for name, mean in self.mean.items():
            if name not in own:
                raise InputError(
                    f"{name}: not a parameter of this {type(model).__name__}; the posterior belongs to another model"
                )
            if own[name].shape != mean.shape:
                raise InputError(
                    f"{name}: {tuple(own[name].shape)} in the model, {tuple(mean.shape)} in the posterior; "
                    "it belongs to another model"
                )
        return {name: p for name, p in own.items() if name in self.mean}  # a file sorts its names


def chunks(parts: Iterable[Part], inputs: Callable[[Part], Tensor]) -> Iterator[list[Part]]:
    """Consecutive parts whose inputs come to CHUNK_BYTES, the last of them less."""
    chunk: list[Part] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += inputs(part).nbytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def recompute_batchnorm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """BatchNorm's running statistics anew, over these batches, at the weights the model has now.

    Training leaves statistics gathered under samples. They suit averaged predictions; before predicting at the
    mean, call this. `Posterior.predict(batchnorm=…)` does it for every draw.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    with evaluating(model), torch.no_grad():
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain average over batches
            norm.training = True
        try:
            for inputs in batches if norms else ():
                model(inputs)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


def parameter_names(
    groups: list[dict[str, Any]], model: nn.Module | None = None
) -> dict[Tensor, str]:
    """What an optimizer's parameters are called: in the model, or as its constructor was told."""
    if model is not None:
        own = {param: name for name, param in model.named_parameters()}
        return {p: own[p] for group in groups for p in group["params"] if p in own}
    if not all("param_names" in group for group in groups):
        raise InputError(
            "the optimizer does not know its parameters' names; call posterior(model), or build it from "
            "model.named_parameters()"
        )
    return {
        param: name
        for group in groups
        for param, name in zip(group["params"], group["param_names"], strict=True)
    }


def _probabilities(logits: Tensor) -> Tensor:
    """Softmax, wide enough to be summed: 64 rows in bfloat16 would miss one by a hundredth."""
    return logits.softmax(-1, torch.promote_types(logits.dtype, torch.float32))


@contextmanager
def _weights(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Other values in the same storage, and the old ones back, bit for bit."""
    own = dict(model.named_parameters())
    before = {name: own[name].detach().clone() for name in values}
    try:
        for name, value in values.items():
            own[name].data.copy_(value)
        yield
    finally:
        for name, value in before.items():
            own[name].data.copy_(value)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Whatever changes the buffers inside, afterwards they are what they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)
