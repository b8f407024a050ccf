"""Examples that are held back from training, and training examples whose labels are replaced."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    default_collate,
)

from bayesmooth.calling import take_labels
from bayesmooth.errors import InputError

AT_ONCE = 500  # held-out examples in a batch
CHECKED = 100  # examples
SAME = ("batch_size", "collate_fn", "num_workers", "pin_memory")  # of a loader made from another


def split_data(
    data: Any, validation: Any, held_back: float | Sequence[int], batch_size: int, seed: int
) -> tuple[Any, Any]:
    """The loader for training and the one for validation."""
    loader = open_loader(data, batch_size)
    if validation is not None:
        batches = list(validation) if isinstance(validation, Iterator) else validation  # they are read again and again
        return loader, batches if holds_batches(batches) else open_loader(batches, AT_ONCE, shuffle=False)
    rest, held = hold_back(list_indices(loader), held_back, seed)
    if isinstance(loader, Batches):
        inputs, labels = loader.dataset
        train, others = Batches(inputs[rest], labels[rest], batch_size), Batches(inputs[held], labels[held], AT_ONCE)
    else:
        train, others = (make_loader(loader, Subset(loader.dataset, part), part is rest) for part in (rest, held))
    if not rest or not len(train):
        raise InputError(f"{len(rest)} examples are left for training: less than one batch; give more")
    return train, others


def hold_back(index: list[int], held_back: float | Sequence[int], seed: int) -> tuple[list[int], list[int]]:
    """Those to train on, and those to hold back: a share at random, or the places that are given."""
    held_back = getattr(held_back, "tolist", lambda: held_back)()  # of a tensor or an array
    if isinstance(held_back, Sequence):
        places = set(held_back)
        if not places or not places <= set(range(len(index))):
            raise InputError(f"held_back: places must be one at least, and from 0 to {len(index) - 1}, or give a share")
        return [n for i, n in enumerate(index) if i not in places], [index[i] for i in held_back]
    if not 0 < held_back < 1:
        raise InputError(f"held_back={held_back}: must be a share of the examples, 0.2 say, or a list of their places")
    order = torch.randperm(len(index), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").tolist()
    count = max(round(held_back * len(index)), 1)
    return [index[i] for i in order[count:]], [index[i] for i in order[:count]]


def join(loader: Any, held: Any) -> Any:
    """The two parts of `split_data` in one loader: examples for training, and after them those that were held back."""
    if isinstance(loader, Batches):
        inputs, labels = (torch.cat(parts) for parts in zip(loader.dataset, held.dataset, strict=True))
        return Batches(inputs, labels, loader.batch_size)
    return make_loader(loader, Subset(loader.dataset.dataset, [*loader.dataset.indices, *held.dataset.indices]))


def make_loader(loader: Any, rows: Any, train: bool = True) -> Any:
    """A loader like another one, of other rows; to `train`, in a random order, and without a last batch of one."""
    drop = train and (loader.drop_last or len(rows) % loader.batch_size == 1)  # BatchNorm cannot do with one
    return DataLoader(rows, shuffle=train and len(rows) > 0, drop_last=drop, **{k: getattr(loader, k) for k in SAME})


class Batches:
    """Inputs and labels that are tensors, in batches in a random order: a DataLoader would pick row by row."""

    def __init__(self, inputs: Tensor, labels: Tensor, batch_size: int) -> None:
        self.dataset, self.batch_size = (inputs, labels), batch_size
        self.sampler = range(len(labels))  # `count_examples` takes its length

    def __len__(self) -> int:
        count, rest = divmod(len(self.sampler), self.batch_size)
        return count + (rest > 1 or not count)  # BatchNorm cannot do with one example

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        parts = torch.split(torch.randperm(len(self.sampler), device="cpu"), self.batch_size)[: len(self)]
        return (tuple(t[part] for t in self.dataset) for part in parts)


def is_pair(data: Any) -> bool:
    """Whether it is (inputs, labels)."""
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def open_loader(data: Any, batch_size: int, shuffle: bool = True) -> Any:
    """Batches of any data that `fit` takes."""
    if is_pair(data):
        if len(data[0]) != len(data[1]):
            raise InputError(f"{len(data[0]):,} inputs and {len(data[1]):,} labels: give one label for each input")
        return Batches(data[0], data[1], batch_size)
    if isinstance(data, DataLoader):
        return data
    if holds_examples(data):
        odd = len(data) % batch_size == 1  # BatchNorm cannot do with one example
        return DataLoader(data, batch_size, shuffle=shuffle, drop_last=odd and shuffle, collate_fn=collate)
    kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")
    raise InputError(
        f"data is a {kind}: must be a DataLoader, a data set or list of dicts or of tuples (x, y), or two tensors "
        "(inputs, labels)"
    )


def holds_examples(data: Any) -> bool:
    """Whether it is a data set of torch, or like one: it has a length, and items by number that are dicts or tuples."""
    has_items = all(hasattr(data, name) for name in ("__len__", "__getitem__"))
    if not has_items or isinstance(data, IterableDataset | Mapping | tuple):
        return False
    if isinstance(data, Dataset):
        return True
    try:
        return isinstance(data[0], Mapping | tuple)
    except (LookupError, TypeError):
        return False


def holds_batches(data: Any) -> bool:
    """Whether it gives batches of somebody's own: no examples, or items that have several labels each."""
    if is_pair(data) or isinstance(data, Dataset | DataLoader):
        return False
    if not holds_examples(data):
        return True
    first = data[0]
    labels = first.get("labels", first.get("label")) if isinstance(first, Mapping) else first[1]
    return isinstance(labels, Tensor) and labels.ndim > 0


def collate(items: list[Any]) -> Any:
    """A batch; "label", Hugging Face's name of a column, becomes "labels", their name in a batch."""
    batch = default_collate(items)
    if isinstance(batch, dict) and "labels" not in batch and "label" in batch:
        batch["labels"] = batch.pop("label")
    return batch


def list_indices(loader: Any) -> list[int]:
    """The places of the examples that a loader gives."""
    if isinstance(loader, Batches):
        return list(loader.sampler)
    sampler = loader.sampler
    if loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        raise InputError("a loader without batch_size, or of a stream: give validation= as well")
    if (own := getattr(sampler, "indices", None)) is not None:
        return list(own)
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        raise InputError(f"the loader has a {type(sampler).__name__}, which cannot be split; give validation= as well")
    return list(range(len(loader.dataset)))


# ---- other labels ----


def relabel(collate: Callable[[list[Any]], Any], pairs: list[tuple[Any, Tensor]]) -> Any:
    """A batch of items with other labels. They replace those that `collate` made, under any name in the items."""
    items, labels = zip(*pairs, strict=True)
    batch, new = collate(list(items)), torch.stack(labels)
    return {**batch, "labels": new} if isinstance(batch, Mapping) else (batch[0], new, *batch[2:])


def read_in_order(loader: Any) -> Any:
    """The batches of all examples that a loader draws from, one after the other; None where it has no such order."""
    if isinstance(loader, Batches):
        parts = torch.split(torch.arange(len(loader.sampler), device="cpu"), AT_ONCE)
        return [tuple(t[part] for t in loader.dataset) for part in parts]
    plain = isinstance(loader, DataLoader) and loader.batch_size is not None
    if not plain or isinstance(loader.dataset, IterableDataset) or not keeps_order(loader):
        return None
    return make_loader(loader, loader.dataset, train=False)


def keeps_order(loader: Any) -> bool:
    """Whether `collate_fn` makes one label of each item, at its place: it neither sorts items nor leaves any out."""
    first = range(min(CHECKED, len(loader.dataset)))
    items = [loader.dataset[i] for i in first]
    labels = take_labels(loader.collate_fn(items))
    if len(labels) != len(items):
        return False
    return torch.equal(labels, torch.cat([take_labels(loader.collate_fn([item])) for item in items]))


def replace_labels(loader: Any, labels: Tensor) -> Any:
    """The same loader, with labels in the order of `read_in_order`."""
    if isinstance(loader, Batches):
        return Batches(loader.dataset[0], labels, batch_size=loader.batch_size)
    same = {name: getattr(loader, name) for name in (*SAME, "sampler", "drop_last")}
    same["collate_fn"] = partial(relabel, loader.collate_fn)
    return DataLoader(StackDataset(loader.dataset, labels), **same)  # type: ignore[arg-type]
