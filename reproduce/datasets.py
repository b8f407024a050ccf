"""The public data sets of the paper: MNIST and Fashion-MNIST, CIFAR and CIFAR-N, Clothing1M.

Each loader takes (split, root) and the options that a recipe may set; its signature is part of a recipe's hash. In a
clone `bayesmooth.data.load` finds them here. Nothing in a file is run, and errors name the file.
"""

import codecs
import gzip
import hashlib
import io
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data import Labels, Source
from bayesmooth.data.catalog import Dataset, MissingError
from bayesmooth.data.labels import as_class_numbers, is_number
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors

LIMIT = 256 << 20  # bytes; the largest public file read whole, CIFAR-100's train, has 155 MB
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")


def find_file(root: Path, candidates: Sequence[str]) -> Path:
    """The first of the candidates that exists under `root`."""
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise MissingError(f"not found in {root}: {' or '.join(candidates)}")


def read_bytes(path: Path, md5: str | None = None) -> bytes:
    """The content of a file, unpacked if it is gzip; `md5` is what the unpacked content must have."""
    way_out = "; if it was cut short, download it again, or copy it again"
    with name_errors(path, "whole file", way_out), path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        data = (gzip.GzipFile(fileobj=file) if packed else file).read(LIMIT + 1)
    if len(data) > LIMIT:
        raise InputError(f"{path}: more than {LIMIT >> 20} MB unpacked; not the file it should be")
    if md5 is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
        raise InputError(
            f"{path}: its md5 is not the public file's, {md5}; "
            "download it again, or copy it again, or load it with verify=False"
        )
    return data


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file."""
    data = read_bytes(path)
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8; save it as UTF-8") from None


def load_pickle(data: bytes, name: str) -> dict[str, Any]:
    """The dict that a pickle holds: numbers, strings, containers of these, and numpy arrays."""
    with name_errors(name, "pickle", "; download it again, or copy it again"):
        return _as_dict(_Unpickler(io.BytesIO(data), encoding="latin1").load())


def load_torch(data: bytes, name: str) -> dict[str, Any]:
    """The dict in a file of torch.save, with the same contents allowed."""
    with name_errors(name, "file of torch.save"):
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > LIMIT:
                    raise InputError(f"unpacks to more than {LIMIT >> 20} MB; not the file it should be")
        try:
            with torch.serialization.safe_globals(TORCH_GLOBALS):
                return _as_dict(torch.load(io.BytesIO(data), weights_only=True))
        except pickle.UnpicklingError:  # which explains at length how to run the file all the same
            raise TypeError("damaged, or more than arrays and plain containers") from None


RECONSTRUCT = np.empty(0).__reduce__()[0]  # how numpy makes an array before it is filled
# What the arrays of CIFAR-N ask for; beside them torch admits plain containers only.
TORCH_GLOBALS: list[Any] = [
    (RECONSTRUCT, "numpy.core.multiarray._reconstruct"),
    (RECONSTRUCT, "numpy._core.multiarray._reconstruct"),
    (codecs.encode, "_codecs.encode"),
    np.ndarray,
    np.dtype,
    *(type(np.dtype(code)) for code in NUMBERS),
]


def _encode_latin1(text: str, codec: str) -> bytes:
    """Bytes as protocol 2 writes them."""
    if codec != "latin1":
        raise InputError("asks for a codec other than latin1")
    return text.encode(codec)


class _Unpickler(pickle._Unpickler):
    """The standard unpickler, which finds nothing but what numpy arrays are made of.

    It is the one written in Python: its memo is a dict, so no file can take memory by counting from 2³².
    """

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that arrays need."""
        admitted = {
            "numpy.core.multiarray._reconstruct": RECONSTRUCT,
            "numpy._core.multiarray._reconstruct": RECONSTRUCT,
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
            "_codecs.encode": _encode_latin1,
        }
        asked = f"{module}.{name}"
        if asked not in admitted:
            raise InputError(f"asks for {asked[:80]!r}; only arrays and plain containers are read")
        return admitted[asked]


def _as_dict(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}; a dict was expected")
    return content


MNIST_FOLDERS = ("mnist", "MNIST/raw")
FASHION_FOLDERS = ("fashion-mnist", "FashionMNIST/raw")
CIFAR10_FOLDERS = ("cifar-10-batches-py",)
CIFAR100_FOLDERS = ("cifar-100-python",)
# By the first of these folders; of the unpacked files, so that it does not matter who packed them.
MD5 = {
    "mnist/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "mnist/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "mnist/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "mnist/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    "fashion-mnist/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "fashion-mnist/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "fashion-mnist/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "fashion-mnist/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


def _read(root: Path, folders: tuple[str, ...], file: str, verify: bool) -> tuple[bytes, str]:
    """The content of a public file, packed or not, and its path."""
    path = find_file(root, [f"{folder}/{file}{end}" for folder in folders for end in ("", ".gz")])
    return read_bytes(path, MD5[f"{folders[0]}/{file}"] if verify else None), str(path)


FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def mnist(split: str, root: Path, verify: bool = True) -> Source:
    """Handwritten digits, 60,000 and 10,000 of 28 × 28."""
    inputs, labels = _read_mnist(split, root, MNIST_FOLDERS, verify)
    digits, name = Labels(labels, tuple("0123456789")), f"mnist/{split}"
    return Source(inputs, digits, name=name, mean=(0.1307,), std=(0.3081,))


def fashion_mnist(split: str, root: Path, verify: bool = True) -> Source:
    """Pieces of clothing, 60,000 and 10,000 of 28 × 28."""
    inputs, labels = _read_mnist(split, root, FASHION_FOLDERS, verify)
    name = f"fashion_mnist/{split}"
    return Source(inputs, Labels(labels, FASHION_NAMES), name=name, mean=(0.2860,), std=(0.3530,))


def _read_mnist(split: str, root: Path, folders: tuple[str, ...], verify: bool) -> tuple[Tensor, Tensor]:
    prefix = {"train": "train", "test": "t10k"}[split]
    images = parse_idx(*_read(root, folders, f"{prefix}-images-idx3-ubyte", verify), 3)
    content, path = _read(root, folders, f"{prefix}-labels-idx1-ubyte", verify)
    labels = _label_tensor(parse_idx(content, path, 1), path, "labels", len(images), 10)
    return torch.from_numpy(images).unsqueeze(1), labels


def parse_idx(data: bytes, name: str, ndim: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An idx file: 0, 0, 8 (unsigned bytes), the number of dimensions, their sizes, the bytes.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels", 1)
    array([7, 9], dtype=uint8)
    """
    magic, start = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
    if data[:4] != magic or len(data) < start:
        raise InputError(f"{name}: begins {data[:4].hex(' ')}; idx of {ndim}-d bytes begins {magic.hex(' ')}")
    shape = tuple(int(n) for n in np.frombuffer(data[4:start], ">u4"))
    if prod(shape) != len(data) - start or max(shape) > LIMIT:
        raise InputError(f"{name}: {len(data) - start} bytes for the shape {shape} in its header")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def cifar10(split: str, root: Path, verify: bool = True) -> Source:
    """Photographs, 50,000 and 10,000 of 32 × 32, 10 classes."""
    files = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    name, files = f"cifar10/{split}", ["batches.meta", *files]
    made = _read_cifar(name, root, CIFAR10_FOLDERS, files, "", verify)
    return replace(made, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def cifar100(split: str, root: Path, verify: bool = True) -> Source:
    """Photographs, 50,000 and 10,000 of 32 × 32, 100 fine classes."""
    name, files = f"cifar100/{split}", ["meta", split]
    made = _read_cifar(name, root, CIFAR100_FOLDERS, files, "fine_", verify)
    return replace(made, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


def _read_cifar(name: str, root: Path, folders: tuple[str, ...], files: list[str], kind: str, verify: bool) -> Source:
    """The class names in the first of the files, and the pictures in the others."""
    meta, *batches = [_read(root, folders, file, verify) for file in files]
    names = parse_names(*meta, f"{kind}label_names")
    parts = [parse_batch(*batch, f"{kind}labels", len(names)) for batch in batches]
    inputs, labels, ids = zip(*parts, strict=True)
    every = tuple(chain.from_iterable(ids))
    return Source(torch.cat(inputs), Labels(torch.cat(labels), names), None, every, name)


HUMAN_LABELS = ("aggre", "random1", "random2", "random3", "worse")


def cifar10n(split: str, root: Path, labels: str = "aggre", verify: bool = True) -> Source:
    """CIFAR-10 under the labels that people gave it: aggre, random1, random2, random3 or worse."""
    if labels not in HUMAN_LABELS:
        raise InputError(f"labels={labels!r}: must be one of {', '.join(HUMAN_LABELS)}")
    key = f"random_label{labels[-1]}" if labels.startswith("random") else f"{labels}_label"
    clean = cifar10(split, root, verify)
    return clean if split == "test" else _human(clean, root, "CIFAR-10_human.pt", key)


def cifar100n(split: str, root: Path, verify: bool = True) -> Source:
    """CIFAR-100 under the labels that people gave it."""
    clean = cifar100(split, root, verify)
    return clean if split == "test" else _human(clean, root, "CIFAR-100_human.pt", "noisy_label")


def parse_batch(data: bytes, name: str, key: str, classes: int) -> tuple[Tensor, Tensor, list[str]]:
    """Pictures (N, 3, 32, 32), labels and file names of one CIFAR file."""
    content = load_pickle(data, name)
    pixels: Any = content.get("data")
    if getattr(pixels, "dtype", None) != np.uint8 or pixels.shape[1:] != (3072,):
        raise InputError(f"{name}: `data` is not an array of N × 3072 bytes")
    labels = _label_tensor(content.get(key), name, key, len(pixels), classes)
    files = content.get("filenames")
    if not isinstance(files, list) or len(files) != len(pixels):
        raise InputError(f"{name}: `filenames` are not {len(pixels)} strings")
    ids = [_text(file, name, "filenames") for file in files]
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), labels, ids


def _label_tensor(labels: Any, name: str, key: str, count: int, classes: int) -> Tensor:
    try:
        numbers = np.asarray(labels).astype(np.int64, casting="same_kind")
    except (TypeError, ValueError):
        raise InputError(f"{name}: {key} are not whole numbers from 0 to {classes - 1}") from None
    return as_class_numbers(torch.from_numpy(numbers), classes, f"{name}: {key}", count)


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


def _human(clean: Source, root: Path, file: str, key: str) -> Source:
    path = find_file(root, [file, f"{clean.name.split('/')[0]}n/{file}"])
    human, true = parse_human(read_bytes(path), str(path), key, len(clean), clean.num_classes)
    if not torch.equal(true, clean.labels.numbers):
        at = int((true != clean.labels.numbers).nonzero()[0])
        raise InputError(f"{path}: clean_label[{at}]={true[at]}, but CIFAR says {clean.labels[at]}")
    name = f"{clean.name.replace('/', 'n/')}:{key}"
    labels = clean.labels.renumber(human)
    return replace(clean, labels=labels, clean=clean.labels.numbers, name=name)


def parse_human(data: bytes, name: str, key: str, count: int, classes: int) -> tuple[Tensor, Tensor]:
    """(human labels, clean labels) of a CIFAR-N file."""
    content = load_torch(data, name)
    if key not in content:
        known = ", ".join(sorted(content))[:200]
        raise InputError(f"{name}: has no {key!r}, only {known}; the public file has it")
    human = _label_tensor(content[key], name, key, count, classes)
    return human, _label_tensor(content.get("clean_label"), name, "clean_label", count, classes)


CLOTHING_FOLDERS = ("clothing1m", "Clothing1M")
CLOTHING_LISTS = {
    "train": ("noisy_train_key_list.txt", "noisy_label_kv.txt"),
    "clean_train": ("clean_train_key_list.txt", "clean_label_kv.txt"),
    "valid": ("clean_val_key_list.txt", "clean_label_kv.txt"),
    "test": ("clean_test_key_list.txt", "clean_label_kv.txt"),
}


def clothing1m(split: str, root: Path, size: int = 256, crop: int | None = None) -> Source:
    """The noisy `train`, or the clean `clean_train`, `valid`, `test`; pictures stay on disk.

    The train splits come as size × size, for augmentation to cut 224 out of 256; the others as
    their middle 7/8.
    """

    def read(file: str) -> tuple[list[str], str]:
        places = [f"{top}/{sub}{file}" for top in CLOTHING_FOLDERS for sub in ("", "annotations/")]
        path = find_file(root, places)
        return read_lines(path), str(path)

    keys_file, labels_file = CLOTHING_LISTS[split]
    names = tuple(filter(None, map(str.strip, read("category_names_eng.txt")[0])))
    labels = parse_labels(*read(labels_file), len(names))
    lines, path = read(keys_file)
    keys = parse_keys(lines, path)
    for line, key in keys:
        if key not in labels:
            raise InputError(f"{path}, line {line}: {key!r} has no label in {labels_file}")
    files = tuple(key for _, key in keys)
    numbers = torch.tensor([labels[key] for key in files], dtype=torch.int64, device="cpu")
    crop = crop or (size if split.endswith("train") else size * 7 // 8)
    return Source(
        ImageFiles(find_file(root, CLOTHING_FOLDERS), files, size, crop),
        Labels(numbers, names),
        ids=files,
        name=f"clothing1m/{split}",
        mean=(0.6959, 0.6537, 0.6371),
        std=(0.3113, 0.3192, 0.3214),
    )


def parse_keys(lines: list[str], name: str) -> list[tuple[int, str]]:
    """(line number, path) of every line that is not empty; paths must stay inside the folder.

    >>> parse_keys(["images/0/00/1.jpg", ""], "keys.txt")
    [(1, 'images/0/00/1.jpg')]
    """
    keys = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not keys:
        raise InputError(f"{name}: no paths in it")
    for number, key in keys:
        path = PurePosixPath(key)
        if path.is_absolute() or ".." in path.parts or "\\" in key or "\0" in key:
            raise InputError(f"{name}, line {number}: {key[:80]!r} leads out of the set's folder")
    return keys


def parse_labels(lines: list[str], name: str, classes: int) -> dict[str, int]:
    """Lines `path label`.

    >>> parse_labels(["images/0/00/1.jpg 3"], "kv.txt", classes=14)
    {'images/0/00/1.jpg': 3}
    """
    labels = {}
    for number, line in enumerate(lines, 1):
        key, _, label = line.strip().rpartition(" ")
        if not key and not label:
            continue
        if not (key and is_number(label) and int(label) < classes):
            raise InputError(
                f"{name}, line {number}: {line[:80]!r}: must be `path label`, the label from 0 to {classes - 1}"
            )
        labels[key.strip()] = int(label)
    return labels


IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
CIFAR = "https://www.cs.toronto.edu/~kriz"
HUMAN = "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data"
GET_CIFAR10 = f"curl -L {CIFAR}/cifar-10-python.tar.gz | tar xz -C DIR"
GET_CIFAR100 = f"curl -L {CIFAR}/cifar-100-python.tar.gz | tar xz -C DIR"

DATASETS: dict[str, Dataset] = {
    "mnist": Dataset(
        mnist,
        "70,000 handwritten digits of 28 × 28, 10 classes",
        f"mnist/{IDX} (or in MNIST/raw; packed or not)",
        f"curl -L --create-dirs --output-dir DIR/mnist --remote-name-all "
        f"'https://ossci-datas3.amazonaws.com/mnist/{IDX}'",
        MNIST_FOLDERS,
    ),
    "fashion_mnist": Dataset(
        fashion_mnist,
        "70,000 pieces of clothing of 28 × 28, 10 classes",
        f"fashion-mnist/{IDX} (or in FashionMNIST/raw; packed or not)",
        f"curl -L --create-dirs --output-dir DIR/fashion-mnist --remote-name-all "
        f"'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{IDX}'",
        FASHION_FOLDERS,
    ),
    "cifar10": Dataset(
        cifar10,
        "60,000 photographs of 32 × 32, 10 classes",
        "cifar-10-batches-py/{data_batch_1 … 5,test_batch,batches.meta}",
        GET_CIFAR10,
        CIFAR10_FOLDERS,
    ),
    "cifar100": Dataset(
        cifar100,
        "60,000 photographs of 32 × 32, 100 classes",
        "cifar-100-python/{train,test,meta}",
        GET_CIFAR100,
        CIFAR100_FOLDERS,
    ),
    "cifar10n": Dataset(
        cifar10n,
        "CIFAR-10 with people's labels: aggre (9 % wrong), random1 … 3 (17–18 %), worse (40 %)",
        "CIFAR-10_human.pt beside cifar-10-batches-py",
        f"{GET_CIFAR10}\n  curl -L {HUMAN}/CIFAR-10_human.pt -o DIR/CIFAR-10_human.pt",
        ("CIFAR-10_human.pt",),
    ),
    "cifar100n": Dataset(
        cifar100n,
        "CIFAR-100 with people's labels, 40 % wrong",
        "CIFAR-100_human.pt beside cifar-100-python",
        f"{GET_CIFAR100}\n  curl -L {HUMAN}/CIFAR-100_human.pt -o DIR/CIFAR-100_human.pt",
        ("CIFAR-100_human.pt",),
    ),
    "clothing1m": Dataset(
        clothing1m,
        "1,000,000 pictures from shops, 14 classes, labels from the text around them",
        "clothing1m/{images/…,noisy_label_kv.txt,clean_label_kv.txt,*_key_list.txt,category_names_eng.txt}",
        "ask its authors (https://github.com/Cysu/noisy_label), and unpack it into DIR/clothing1m",
        CLOTHING_FOLDERS,
        tuple(CLOTHING_LISTS),
    ),
}
