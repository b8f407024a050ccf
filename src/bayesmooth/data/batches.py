"""Batches whose order is a function of (seed, epoch) alone: a run resumes in mid-epoch."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.augment import Augment
from bayesmooth.data.examples import Examples
from bayesmooth.errors import InputError

ORDER, AUGMENT, SPLIT = range(3)  # one stream of random numbers each


def generator(seed: int, *stream: int) -> torch.Generator:
    """Random numbers of their own for every (seed, stream)."""
    if seed < 0:
        raise InputError(f"seed={seed}: must be ≥ 0")
    word = np.random.SeedSequence([seed, *stream]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(word))


def count_batches(count: int, batch_size: int, drop_last: bool = False) -> int:
    """How many batches an epoch has.

    >>> count_batches(10, 4), count_batches(10, 4, drop_last=True)
    (3, 2)
    """
    return count // batch_size if drop_last else -(-count // batch_size)


def batches(
    examples: Examples,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    augment: Augment | None = None,
    drop_last: bool = False,
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
    order = torch.arange(len(examples))
    if seed is not None:
        order = torch.randperm(len(examples), generator=generator(seed, ORDER, epoch))
    for number in range(start, count_batches(len(examples), batch_size, drop_last)):
        whole = order[number * batch_size : (number + 1) * batch_size]
        index = whole.tensor_split(world_size)[rank]
        inputs = examples.inputs[index]
        if augment is not None and seed is not None:
            # Drawn for the whole batch, so that a picture gets the same with any number of ranks.
            draw = augment.draw(len(whole), generator(seed, AUGMENT, epoch, number))
            inputs = augment.apply(inputs, draw.tensor_split(world_size)[rank])
        yield index, examples.as_float(inputs), examples.labels[index]


def split(examples: Examples, valid_fraction: float, seed: int) -> tuple[Examples, Examples]:
    """(train, validation): a random part is held out, with its labels as noisy as the rest.

    >>> examples = Examples(torch.zeros(10, 1), torch.zeros(10).long(), ("a",))
    >>> train, valid = split(examples, 0.2, seed=0)
    >>> len(train), len(valid)
    (8, 2)
    """
    held = round(valid_fraction * len(examples))
    if not 0 < held < len(examples):
        raise InputError(
            f"valid_fraction={valid_fraction} of {len(examples)} examples holds out {held}: "
            "both parts must have one at least"
        )
    order = torch.randperm(len(examples), generator=generator(seed, SPLIT))
    return examples.subset(order[held:].sort().values), examples.subset(order[:held].sort().values)
