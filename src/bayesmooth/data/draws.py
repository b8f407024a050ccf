"""Random draws of training by a seed: noisy labels, a split, the order of batches, their augmentation.

Noisy labels are ỹ ~ P[y, :] with true classes as rows of P. The draws are those of the public code of Yu et al., 2019
(co-teaching+), which the paper follows: the same seed gives the same noisy labels, whatever the version of numpy.
Batches and their augmentation are functions of (seed, epoch) alone, so that a run resumes in mid-epoch.
"""

import hashlib
import inspect
import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.data.source import Source
from bayesmooth.errors import InputError, one_of
from bayesmooth.files import write_atomically

Batch = tuple[Tensor, Tensor, Tensor]  # positions in the data set, inputs, labels
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False, repr=False)
class Corruption:
    """The labels that were changed: `new` for `old` at the positions `index` of `count`.

    `hash` is that of all old labels, so that two people know that they train on the same noise.
    """

    kind: str
    matrix: Matrix
    seed: int
    index: Integers
    old: Integers
    new: Integers
    count: int
    hash: str

    @property
    def rate(self) -> float:
        """The share of labels that changed."""
        return len(self.index) / max(self.count, 1)

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        keys = ("kind", "seed", "rate", "count", "hash", "matrix", "index", "old", "new")
        data = {"format": "bayesmooth noise 1"} | {key: getattr(self, key) for key in keys}
        lines = (f' "{key}": {json.dumps(v, default=np.ndarray.tolist)}' for key, v in data.items())
        write_atomically(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")

    def __repr__(self) -> str:
        share = f"{len(self.index)} of {self.count} labels, {self.rate:.2%}"
        return f"Corruption({self.kind}, seed {self.seed}: {share})"


def symmetric(num_classes: int, rate: float) -> Matrix:
    """P_ii = 1 − n, P_ij = n / (K − 1): `rate` is the true flip rate.

    >>> symmetric(3, 0.5)
    array([[0.5 , 0.25, 0.25], [0.25, 0.5 , 0.25], [0.25, 0.25, 0.5 ]])
    """
    return data_dependent(num_classes, _rate(rate), beta=0.0)


def pairflip(num_classes: int, rate: float) -> Matrix:
    """P_ii = 1 − n, P_i,(i+1) mod K = n, in the order of the class numbers."""
    identity = np.eye(num_classes)
    return (1 - _rate(rate)) * identity + rate * np.roll(identity, 1, axis=1)


def data_dependent(num_classes: int, kappa: float, beta: float = 0.05, offset: int = 1) -> Matrix:
    """P_ii = 1 − n_i, P_ij = n_i / (K − 1), n_i = κ + βi from i = `offset` (sec: data dependent noise)."""
    rates = kappa + beta * (offset + np.arange(num_classes))
    if not (rates.min() >= 0 and rates.max() <= 1 + 1e-9):
        raise InputError(
            f"kappa={kappa}, beta={beta}: class noise from {rates.min():.3g} to {rates.max():.3g}: "
            f"must stay within 0 … 1; lower beta for {num_classes} classes"
        )
    rates = rates.clip(0, 1)
    P = np.repeat(rates[:, None] / (num_classes - 1), num_classes, axis=1)
    np.fill_diagonal(P, 1 - rates)
    return P


def given(num_classes: int, matrix: Any) -> Matrix:
    """Any K × K matrix with rows that sum to 1."""
    P = np.array(matrix, dtype=np.float64)
    if P.shape != (num_classes, num_classes):
        raise InputError(f"matrix of shape {P.shape}: must be {num_classes} × {num_classes}")
    broken = np.flatnonzero(~((P >= 0).all(1) & (np.abs(P.sum(1) - 1) < 1e-6)))
    if len(broken):
        raise InputError(f"matrix, row {broken[0]}: {P[broken[0]]}: must be ≥ 0 and sum to 1")
    normal: Matrix = P / P.sum(1, keepdims=True)
    return normal


KINDS: dict[str, Callable[..., Matrix]] = {
    "symmetric": symmetric,
    "pairflip": pairflip,
    "data_dependent": data_dependent,
    "matrix": given,
}


def corrupt(source: Source, kind: str, *, seed: int = 0, **settings: Any) -> tuple[Source, Corruption]:
    """Draw noisy labels; the old ones become the clean labels unless those are known already.

    `settings` are those of the kind: rate (symmetric, pairflip); kappa, beta and offset
    (data_dependent); matrix (matrix).

    >>> from bayesmooth.data.labels import Labels
    >>> clean = Source(torch.zeros(40, 1), Labels(torch.arange(40) % 10, tuple("0123456789")))
    >>> corrupt(clean, "symmetric", rate=0.2, seed=0)[1]
    Corruption(symmetric, seed 0: 8 of 40 labels, 20.00%)
    """
    one_of("kind", kind, KINDS)
    if source.num_classes < 2:
        raise InputError(f"{source.num_classes} classes: label noise needs at least two")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: must be from 0 to 2³²−1")
    for setting in settings:
        one_of(f"setting of {kind}", setting, [*inspect.signature(KINDS[kind]).parameters][1:])
    matrix = KINDS[kind](source.num_classes, **settings)
    old, clean = source.labels.numbers.numpy(), source.clean
    new = draw_labels(old, matrix, seed)
    index = np.flatnonzero(old != new)
    labels = source.labels.renumber(torch.from_numpy(new))
    noisy = replace(source, labels=labels, clean=source.labels.numbers if clean is None else clean)
    return noisy, Corruption(kind, matrix, seed, index, old[index], new[index], len(old), label_hash(source))


def draw_labels(labels: Integers, matrix: Matrix, seed: int) -> Integers:
    """ỹ_i ~ P[y_i, :]: for each example the classes toss a coin in turn, and the first yes takes it.

    So does `RandomState.multinomial(1, P[y_i])`; but numpy 2.5 leaves out some coins that 2.4 tossed, and gives other
    labels for the same seed.
    """
    coins = []  # of each row the classes that have one, and low < u ≤ high for a yes; the last takes the rest
    for row in matrix:
        rest = np.subtract.accumulate(np.append(1.0, row[:-1]))
        tossing = np.flatnonzero(row[:-1])
        p = np.append(row[tossing] / rest[tossing], 1.0)
        low, high = np.where(p > 0.5, -1.0, 1 - p), np.where(p > 0.5, p, 1.0)
        coins.append((np.append(tossing, len(row) - 1), low, high))
    stream = np.random.RandomState(seed)
    tosses, at = np.empty(0), 0
    new = np.empty(len(labels), np.int64)
    for i, label in enumerate(labels):
        classes, low, high = coins[label]
        if at + len(classes) > len(tosses):
            tosses, at = np.append(tosses[at:], stream.random_sample(len(matrix) + 2**16)), 0
        u = tosses[at : at + len(classes)]
        first = int(((low < u) & (u <= high)).argmax())
        new[i] = classes[first]
        at += min(first + 1, len(classes) - 1)
    return new


def _rate(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise InputError(f"rate={rate}: must be from 0 to 1")
    return rate


def label_hash(source: Source) -> str:
    """SHA-256 of the labels and the number of classes."""
    labels = source.labels.numbers.numpy().astype("<i8").tobytes()
    return hashlib.sha256(labels + str(source.num_classes).encode()).hexdigest()


AHEAD = 2  # batches that are read while an accelerator is at work
ORDER, AUGMENT, SPLIT, MIX = range(4)  # one stream of random numbers each


def generator(seed: int, *stream: int) -> torch.Generator:
    """Random numbers of their own for every (seed, stream)."""
    if seed < 0:
        raise InputError(f"seed={seed}: must be ≥ 0")
    word = np.random.SeedSequence([seed, *stream]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(word))


@dataclass(frozen=True)
class Augment:
    """Pad by `pad` black pixels, cut a random window, flip half of the pictures.

    The window is `size` × `size`; by default as large as the picture was.

    >>> augment, pictures = Augment(pad=4), torch.zeros(8, 3, 32, 32)
    >>> augment.apply(pictures, torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    pad: int = 0
    flip: bool = False
    size: int | None = None

    def apply(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        """The pictures (B, C, H, W), each cut and flipped at random."""
        if pictures.ndim != 4:
            raise InputError(f"inputs of shape {tuple(pictures.shape)}: only pictures (B, C, H, W) can be augmented")
        height, width = (self.size,) * 2 if self.size else pictures.shape[2:]
        padded = F.pad(pictures, (self.pad,) * 4)
        if height > padded.shape[2] or width > padded.shape[3]:
            raise InputError(f"{self} on pictures of {list(pictures.shape[2:])}: must fit; raise pad")
        # All windows of both mirror images as a view, one of them copied out: no loop over pictures.
        both = torch.stack((padded, padded.flip(-1))) if self.flip else padded.unsqueeze(0)
        windows = both.unfold(3, height, 1).unfold(4, width, 1)
        draw = torch.randint(2**31, (len(pictures), 3), generator=generator, device="cpu")
        choices = torch.tensor([*windows.shape[3:5], len(both)], dtype=torch.int64, device="cpu")
        rows, columns, mirrored = (draw % choices).T.to(pictures.device)
        at = mirrored, torch.arange(len(pictures), device=pictures.device), slice(None), rows, columns
        if pictures.device.type == "cpu":  # numpy's indexing is 8 times as fast here
            return torch.from_numpy(windows.numpy()[at])
        return windows[at]


AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "crop": Augment(pad=4),
    "flip": Augment(flip=True),
    "crop_flip": Augment(pad=4, flip=True),
    "crop224_flip": Augment(size=224, flip=True),
}
"""Augmentations by their name in a recipe: `crop_flip` is CIFAR's usual one, `crop224_flip` cuts 224 out of 256."""


def batches(
    source: Source,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    augment: Augment | None = None,
    start: int = 0,
) -> Iterator[Batch]:
    """Yield (index, float inputs, labels), shuffled by (seed, epoch); without a seed in the set's order.

    `start=k` leaves out the first k batches without reading them.
    """
    if batch_size < 1 or start < 0 or epoch < 0:
        raise InputError(f"{batch_size=}, {start=}, {epoch=}: need batch_size ≥ 1, start ≥ 0, epoch ≥ 0")
    if augment is not None and seed is None:
        raise InputError("augment without a seed: give a seed, or leave the inputs as they are")
    order = torch.arange(len(source), device="cpu")
    if seed is not None:
        order = torch.randperm(len(source), generator=generator(seed, ORDER, epoch), device="cpu")
    for number in range(start, math.ceil(len(source) / batch_size)):
        index = order[number * batch_size : (number + 1) * batch_size]
        if augment is None or seed is None:
            inputs = source.batch(index)
        else:
            inputs = source.batch(index, partial(augment.apply, generator=generator(seed, AUGMENT, epoch, number)))
        yield index, inputs, source.labels.numbers[index]


def read_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on a device; while an accelerator is at work, a thread reads, augments and pins the next ones."""
    if device.type == "cpu":
        yield from batches
        return

    def read() -> list[Tensor] | None:
        batch = next(batches, None)
        return batch and [t.pin_memory() if device.type == "cuda" and t.is_cpu else t for t in batch]

    with ThreadPoolExecutor(1) as reader:
        waiting = deque(reader.submit(read) for _ in range(AHEAD))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(reader.submit(read))
            index, inputs, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
            yield index, inputs, labels


def mixup(inputs: Tensor, alpha: float, seed: int, *stream: int) -> tuple[Tensor, Tensor, float]:
    """(share·x + (1 − share)·x[partner], partner, share): a batch mixed with its own rows in another order.

    One share ~ Beta(α, α) per batch, at least a half, so that a row is mostly itself. Losses take `partner` and
    `share`, and then have both labels in these shares.

    References: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    >>> mixed, partner, share = mixup(torch.eye(3), 1.0, seed=0)
    >>> bool((mixed == share * torch.eye(3) + (1 - share) * torch.eye(3)[partner]).all()), 0.5 <= share <= 1
    (True, True)
    """
    draw = np.random.default_rng([seed, MIX, *stream])
    share = float(draw.beta(alpha, alpha))
    share = max(share, 1 - share)
    partner = torch.from_numpy(draw.permutation(len(inputs))).to(inputs.device)
    return share * inputs + (1 - share) * inputs[partner], partner, share


def split(source: Source, valid_fraction: float, seed: int) -> tuple[Source, Source]:
    """(train, validation): a random part is held out, with its labels as noisy as the rest.

    >>> from bayesmooth.data.labels import Labels
    >>> source = Source(torch.zeros(10, 1), Labels(torch.zeros(10).long(), ("a",)))
    >>> train, valid = split(source, 0.2, seed=0)
    >>> len(train), len(valid)
    (8, 2)
    """
    held = round(valid_fraction * len(source))
    if not 0 < held < len(source):
        raise InputError(
            f"valid_fraction={valid_fraction} of {len(source)} examples holds out {held}: both parts need at least one"
        )
    order = torch.randperm(len(source), generator=generator(seed, SPLIT), device="cpu")
    return source.subset(order[held:].sort().values), source.subset(order[:held].sort().values)
