"""CIFAR-10 and CIFAR-100 (python pickles), and the human labels of CIFAR-N on top of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.examples import Examples
from bayesmooth.data.files import find, read_bytes
from bayesmooth.data.unpickle import load_pickle, load_torch
from bayesmooth.errors import InputError

CIFAR10, CIFAR100 = "cifar-10-batches-py", "cifar-100-python"
CIFAR10_FILES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
MD5 = {
    f"{CIFAR10}/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    f"{CIFAR10}/data_batch_1": "c99cafc152244af753f735de768cd75f",
    f"{CIFAR10}/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    f"{CIFAR10}/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    f"{CIFAR10}/data_batch_4": "634d18415352ddfa80567beed471001a",
    f"{CIFAR10}/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    f"{CIFAR10}/test_batch": "40351d587109b95175f43aff81a1287e",
    f"{CIFAR100}/meta": "7973b15100ade9c7d40fb424638fde48",
    f"{CIFAR100}/train": "16019d7e3df5f24257cddd939b257f8d",
    f"{CIFAR100}/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
HUMAN10 = ("aggre", "random1", "random2", "random3", "worse")


def cifar10(split: str, root: Path, verify: bool = True) -> Examples:
    """Photographs, 50,000 and 10,000 of 32 × 32, 10 classes."""
    names = _names(root, f"{CIFAR10}/batches.meta", "label_names", verify)
    parts = [
        _pictures(root, f"{CIFAR10}/{file}", "labels", len(names), verify)
        for file in CIFAR10_FILES[split]
    ]
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _join(parts, names, f"cifar10/{split}", mean, std)


def cifar100(split: str, root: Path, verify: bool = True) -> Examples:
    """Photographs, 50,000 and 10,000 of 32 × 32, 100 fine classes."""
    names = _names(root, f"{CIFAR100}/meta", "fine_label_names", verify)
    parts = [_pictures(root, f"{CIFAR100}/{split}", "fine_labels", len(names), verify)]
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _join(parts, names, f"cifar100/{split}", mean, std)


def cifar10n(split: str, root: Path, labels: str = "aggre", verify: bool = True) -> Examples:
    """CIFAR-10 under the labels that people gave it: aggre, random1, random2, random3 or worse."""
    if labels not in HUMAN10:
        raise InputError(f"labels={labels!r}: must be one of {', '.join(HUMAN10)}")
    key = f"random_label{labels[-1]}" if labels.startswith("random") else f"{labels}_label"
    clean = cifar10(split, root, verify)
    return clean if split == "test" else _human(clean, root, "CIFAR-10_human.pt", key)


def cifar100n(split: str, root: Path, verify: bool = True) -> Examples:
    """CIFAR-100 under the labels that people gave it."""
    clean = cifar100(split, root, verify)
    return clean if split == "test" else _human(clean, root, "CIFAR-100_human.pt", "noisy_label")


Pictures = tuple[Tensor, Tensor, list[str]]


def _pictures(root: Path, file: str, key: str, classes: int, verify: bool) -> Pictures:
    path = find(root, [file])
    return parse_batch(read_bytes(path, MD5[file] if verify else None), str(path), key, classes)


def parse_batch(data: bytes, name: str, key: str, classes: int) -> Pictures:
    """Pictures (N, 3, 32, 32), labels and file names of one CIFAR file."""
    content = load_pickle(data, name)
    pixels = content.get("data")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (3072,)
    ):
        raise InputError(f"{name}: `data` is not an array of N × 3072 bytes")
    labels = _label_tensor(content.get(key), name, key, len(pixels), classes)
    files = content.get("filenames")
    if not isinstance(files, list) or len(files) != len(pixels):
        raise InputError(f"{name}: `filenames` are not {len(pixels)} strings")
    ids = [_text(file, name, "filenames") for file in files]
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), labels, ids


def _label_tensor(labels: Any, name: str, key: str, count: int, classes: int) -> Tensor:
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels, dtype=object)
    if (
        not isinstance(labels, np.ndarray)
        or labels.shape != (count,)
        or labels.dtype.kind not in "Oiu"
    ):
        raise InputError(f"{name}: `{key}` are not {count} whole numbers")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        at = wrong[0]
        raise InputError(f"{name}: {key}[{at}]={labels[at]}: must be from 0 to {classes - 1}")
    return torch.from_numpy(labels.astype(np.int64))


def _names(root: Path, file: str, key: str, verify: bool) -> tuple[str, ...]:
    path = find(root, [file])
    return parse_names(read_bytes(path, MD5[file] if verify else None), str(path), key)


def parse_names(data: bytes, name: str, key: str) -> tuple[str, ...]:
    """The class names of a CIFAR meta file."""
    names = load_pickle(data, name).get(key)
    if not isinstance(names, list) or not names:
        raise InputError(f"{name}: `{key}` is not a list of class names")
    return tuple(_text(each, name, key) for each in names)


def _text(value: Any, name: str, key: str) -> str:
    try:
        return value if isinstance(value, str) else bytes.decode(value)
    except (TypeError, UnicodeDecodeError):
        raise InputError(f"{name}: `{key}` holds something that is not UTF-8 text") from None


def _join(
    parts: list[Pictures], names: tuple[str, ...], name: str, mean: Any, std: Any
) -> Examples:
    inputs, labels, ids = zip(*parts, strict=True)
    flat = tuple(each for part in ids for each in part)
    return Examples(torch.cat(inputs), torch.cat(labels), names, None, flat, name, mean, std)


def _human(clean: Examples, root: Path, file: str, key: str) -> Examples:
    path = find(root, [file, f"{clean.name.split('/')[0]}n/{file}"])
    human, true = parse_human(read_bytes(path), str(path), key, len(clean), clean.num_classes)
    if not torch.equal(true, clean.labels):
        at = int((true != clean.labels).nonzero()[0])
        raise InputError(f"{path}: clean_label[{at}]={true[at]}, but CIFAR says {clean.labels[at]}")
    return Examples(
        clean.inputs, human, clean.class_names, clean.labels, clean.ids,
        f"{clean.name.replace('/', 'n/')}:{key}", clean.mean, clean.std,
    )  # fmt: skip


def parse_human(
    data: bytes, name: str, key: str, count: int, classes: int
) -> tuple[Tensor, Tensor]:
    """(human labels, clean labels) of a CIFAR-N file."""
    content = load_torch(data, name)
    if key not in content:
        known = ", ".join(sorted(content))[:200]
        raise InputError(f"{name}: has no {key!r}, only {known}; the public file has it")
    human = _label_tensor(content[key], name, key, count, classes)
    return human, _label_tensor(content.get("clean_label"), name, "clean_label", count, classes)
