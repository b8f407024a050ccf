"""Batches and their augmentation: functions of (seed, epoch) alone, so that a run resumes in mid-epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from bayesmooth.data.source import Source
from bayesmooth.errors import InputError

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
    >>> augment.apply(pictures, augment.draw(8, torch.Generator().manual_seed(0))).shape
    torch.Size([8, 3, 32, 32])
    """

    pad: int = 0
    flip: bool = False
    size: int | None = None

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Three large numbers per picture: where to cut (row, column) and whether to flip."""
        return torch.randint(2**31, (count, 3), generator=generator, device="cpu")

    def apply(self, pictures: Tensor, draw: Tensor) -> Tensor:
        """The pictures (B, C, H, W), each cut and flipped as its row of `draw` says."""
        if pictures.ndim != 4:
            raise InputError(
                f"inputs of shape {tuple(pictures.shape)}: only pictures (B, C, H, W) can be augmented"
            )
        height, width = (self.size,) * 2 if self.size else pictures.shape[2:]
        padded = F.pad(pictures, (self.pad,) * 4)
        if height > padded.shape[2] or width > padded.shape[3]:
            raise InputError(
                f"{self} on pictures of {list(pictures.shape[2:])}: must fit; raise pad"
            )
        # All windows of both mirror images as a view, one of them copied out: no loop over pictures.
        # numpy, because its indexing is 7 times as fast here.
        both = torch.stack((padded, padded.flip(-1))) if self.flip else padded.unsqueeze(0)
        windows = sliding_window_view(both.numpy(), (height, width), axis=(3, 4))
        rows, columns, mirrored = (
            draw % torch.tensor([*windows.shape[3:5], len(both)], dtype=torch.int64, device="cpu")
        ).T
        return torch.from_numpy(
            windows[mirrored.numpy(), np.arange(len(pictures)), :, rows.numpy(), columns.numpy()]
        )


AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "crop": Augment(pad=4),
    "flip": Augment(flip=True),
    "crop_flip": Augment(pad=4, flip=True),
    "crop224_flip": Augment(size=224, flip=True),
}
"""What a recipe can name: `crop_flip` is CIFAR's usual one, `crop224_flip` cuts 224 out of 256."""


def count_batches(count: int, batch_size: int) -> int:
    """How many batches an epoch has.

    >>> count_batches(10, 4)
    3
    """
    return -(-count // batch_size)


def batches(
    source: Source,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    augment: Augment | None = None,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (index, float inputs, labels), shuffled by (seed, epoch); without a seed in the set's order.

    `start=k` leaves out the first k batches without reading them. With several processes each gets
    its slice of every batch; joined in the order of the ranks they are the batch of one process.
    """
    if batch_size < 1 or not 0 <= rank < world_size or start < 0 or epoch < 0:
        raise InputError(
            f"{batch_size=}, {rank=}, {world_size=}, {start=}, {epoch=}: "
            "need batch_size ≥ 1, 0 ≤ rank < world_size, start ≥ 0, epoch ≥ 0"
        )
    if augment is not None and seed is None:
        raise InputError("augment without a seed: give a seed, or leave the inputs as they are")
    order = torch.arange(len(source), device="cpu")
    if seed is not None:
        order = torch.randperm(len(source), generator=generator(seed, ORDER, epoch), device="cpu")
    for number in range(start, count_batches(len(source), batch_size)):
        whole = order[number * batch_size : (number + 1) * batch_size]
        index = whole.tensor_split(world_size)[rank]
        inputs = source.inputs[index]
        if augment is not None and seed is not None:
            # Drawn for the whole batch, so that a picture gets the same with any number of ranks.
            draw = augment.draw(len(whole), generator(seed, AUGMENT, epoch, number))
            inputs = augment.apply(inputs, draw.tensor_split(world_size)[rank])
        yield index, source.as_float(inputs), source.labels[index]


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
            f"valid_fraction={valid_fraction} of {len(source)} examples holds out {held}: "
            "both parts need at least one"
        )
    order = torch.randperm(len(source), generator=generator(seed, SPLIT), device="cpu")
    return source.subset(order[held:].sort().values), source.subset(order[:held].sort().values)
