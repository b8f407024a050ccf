"""MNIST and Fashion-MNIST: the idx format, gzipped or not."""

from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.examples import Examples
from bayesmooth.data.files import LIMIT, find, read_bytes
from bayesmooth.errors import InputError

# md5 of the unpacked files, so that it does not matter who packed them.
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
MNIST_FOLDERS = ("mnist", "MNIST/raw")
FASHION_FOLDERS = ("fashion-mnist", "FashionMNIST/raw")


def mnist(split: str, root: Path, verify: bool = True) -> Examples:
    """Handwritten digits, 60,000 and 10,000 of 28 × 28."""
    inputs, labels = _pair(split, root, MNIST_FOLDERS, MNIST_MD5 if verify else {})
    names = tuple("0123456789")
    return Examples(inputs, labels, names, name=f"mnist/{split}", mean=(0.1307,), std=(0.3081,))


def fashion_mnist(split: str, root: Path, verify: bool = True) -> Examples:
    """Pieces of clothing, 60,000 and 10,000 of 28 × 28."""
    inputs, labels = _pair(split, root, FASHION_FOLDERS, FASHION_MD5 if verify else {})
    name = f"fashion_mnist/{split}"
    return Examples(inputs, labels, FASHION_NAMES, name=name, mean=(0.2860,), std=(0.3530,))


def _pair(
    split: str, root: Path, folders: tuple[str, ...], md5: dict[str, str]
) -> tuple[Tensor, Tensor]:
    prefix = {"train": "train", "test": "t10k"}[split]
    images, image_path = _read(f"{prefix}-images-idx3-ubyte", root, folders, md5, 3)
    labels, label_path = _read(f"{prefix}-labels-idx1-ubyte", root, folders, md5, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{len(images)} images in {image_path}, {len(labels)} labels in {label_path}"
        )
    wrong = np.flatnonzero(labels > 9)
    if len(wrong):
        raise InputError(
            f"{label_path}: label {wrong[0]} is {labels[wrong[0]]}; must be from 0 to 9"
        )
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def _read(
    stem: str, root: Path, folders: tuple[str, ...], md5: dict[str, str], ndim: int
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], Path]:
    path = find(root, [f"{folder}/{stem}{end}" for folder in folders for end in (".gz", "")])
    return parse_idx(read_bytes(path, md5.get(stem)), str(path), ndim), path


def parse_idx(data: bytes, name: str, ndim: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An idx file: 0, 0, 8 (unsigned bytes), the number of dimensions, their sizes, the bytes.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels", 1)
    array([7, 9], dtype=uint8)
    """
    magic, start = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
    if data[:4] != magic or len(data) < start:
        raise InputError(
            f"{name}: begins {data[:4].hex(' ')}; idx of {ndim}-d bytes begins {magic.hex(' ')}"
        )
    shape = tuple(int(n) for n in np.frombuffer(data[4:start], ">u4"))
    if prod(shape) != len(data) - start or max(shape) > LIMIT:
        raise InputError(f"{name}: {len(data) - start} bytes for the shape {shape} in its header")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
