"""The public data sets of the paper: MNIST and Fashion-MNIST, CIFAR and CIFAR-10N, Clothing1M; and their embeddings.

Each loader takes (split, root) and the options that a recipe may set; its signature is part of a recipe's hash. In a
clone `bayesmooth.data.load` finds them here. Files are held against the md5 of the public ones; nothing in a file is
run, and errors name the file.
"""

import gzip
import hashlib
import io
import pickle
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesmooth.data import Labels, Source, data_root, load
from bayesmooth.data.catalog import Dataset, MissingError
from bayesmooth.data.encoders import embed_pictures
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError, one_of
from bayesmooth.files import name_errors, write_atomically

LIMIT = 256 << 20  # bytes; the largest public file read whole, CIFAR-100's train, has 155 MB
AGAIN = "; download it again, or copy it again"

CATALOG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
HUMAN = "CIFAR-10_human.pt"
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
HUMAN_LABELS = ("aggre", "random1", "random2", "random3", "worse")


def find_file(root: Path, candidates: Sequence[str]) -> Path:
    """The first of the candidates that exists under `root`."""
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise MissingError(f"not found in {root}: {' or '.join(candidates)}")


def read_public(root: Path, name: str, file: str, verify: bool) -> tuple[bytes, Path]:
    """The content of a file of a public set, unpacked if it is gzip, and its path."""
    folders = ["."] if file == HUMAN else CATALOG[name]["places"]
    path = find_file(root, [f"{folder}/{file}{end}" for folder in folders for end in ("", ".gz")])
    with name_errors(path, "whole file", AGAIN), path.open("rb") as opened:
        packed = opened.peek(2)[:2] == b"\x1f\x8b"
        data = (gzip.GzipFile(fileobj=opened) if packed else opened).read(LIMIT + 1)
        if len(data) > LIMIT:
            raise InputError(f"more than {LIMIT >> 20} MB unpacked, so it is not the public file")
        expected = CATALOG["md5"][f"{folders[0]}/{file}"]
        if verify and hashlib.md5(data, usedforsecurity=False).hexdigest() != expected:
            raise InputError(f"its md5 is not the public file's, {expected}; load it with verify=False")
    return data, path


# ---- MNIST ----


def mnist(split: str, root: Path, verify: bool = True) -> Source:
    """Handwritten digits, 60,000 and 10,000 of 28 × 28."""
    whole = _read_mnist("mnist", split, root, tuple("0123456789"), verify)
    return replace(whole, mean=(0.1307,), std=(0.3081,))


def fashion_mnist(split: str, root: Path, verify: bool = True) -> Source:
    """Pieces of clothing, 60,000 and 10,000 of 28 × 28."""
    whole = _read_mnist("fashion_mnist", split, root, FASHION_NAMES, verify)
    return replace(whole, mean=(0.2860,), std=(0.3530,))


def _read_mnist(name: str, split: str, root: Path, names: tuple[str, ...], verify: bool) -> Source:
    prefix = {"train": "train", "test": "t10k"}[split]
    data, path = read_public(root, name, f"{prefix}-images-idx3-ubyte", verify)
    with name_errors(path, "idx file", AGAIN):
        images = torch.from_numpy(parse_idx(data, 3)).unsqueeze(1)
    data, path = read_public(root, name, f"{prefix}-labels-idx1-ubyte", verify)
    with name_errors(path, "idx file", AGAIN):
        labels = Labels(torch.from_numpy(parse_idx(data, 1)), names)
        if len(labels) != len(images):
            raise InputError(f"{len(labels)} labels for {len(images)} pictures")
    return Source(images, labels, name=f"{name}/{split}")


def parse_idx(data: bytes, dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An idx file: 0, 0, 8 (unsigned bytes), the number of dimensions, their sizes, the bytes.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1)
    array([7, 9], dtype=uint8)
    """
    magic, start = bytes([0, 0, 8, dimensions]), 4 + 4 * dimensions
    if data[:4] != magic:
        raise InputError(f"begins {data[:4].hex(' ')}; idx of {dimensions}-d bytes begins {magic.hex(' ')}")
    shape = np.frombuffer(data[4:start], ">u4").tolist()
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


# ---- CIFAR ----


def cifar10(split: str, root: Path, verify: bool = True) -> Source:
    """Photographs, 50,000 and 10,000 of 32 × 32, 10 classes."""
    files = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    whole = _read_cifar("cifar10", root, ["batches.meta", *files], "", verify)
    return replace(whole, name=f"cifar10/{split}", mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def cifar100(split: str, root: Path, verify: bool = True) -> Source:
    """Photographs, 50,000 and 10,000 of 32 × 32, 100 fine classes."""
    whole = _read_cifar("cifar100", root, ["meta", split], "fine_", verify)
    return replace(whole, name=f"cifar100/{split}", mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


def _read_cifar(name: str, root: Path, files: Sequence[str], kind: str, verify: bool) -> Source:
    """The class names in the first of the files, and the pictures in the others."""
    data, path = read_public(root, name, files[0], verify)
    with name_errors(path, "CIFAR file", AGAIN):
        names = tuple(map(str, load_pickle(data)[f"{kind}label_names"]))
    parts = []
    for file in files[1:]:
        data, path = read_public(root, name, file, verify)
        with name_errors(path, "CIFAR file", AGAIN):
            parts.append(parse_batch(data, f"{kind}labels", names))
    inputs, labels, ids = zip(*((part.inputs, part.labels.numbers, part.ids) for part in parts), strict=True)
    return Source(torch.cat(inputs), Labels(torch.cat(labels), names), ids=tuple(chain.from_iterable(ids)))


def parse_batch(data: bytes, key: str, names: tuple[str, ...]) -> Source:
    """Pictures (N, 3, 32, 32), labels and file names of one CIFAR file."""
    content = load_pickle(data)
    pixels = torch.from_numpy(content["data"]).view(-1, 3, 32, 32)
    if pixels.dtype != torch.uint8:
        raise InputError(f"`data` are {pixels.dtype}: must be bytes")
    labels = torch.tensor(content[key], device="cpu")
    return Source(pixels, Labels(labels, names), ids=tuple(map(str, content["filenames"])))


def cifar10n(split: str, root: Path, labels: str = "aggre", verify: bool = True) -> Source:
    """CIFAR-10 under the labels that people gave it: aggre, random1, random2, random3 or worse."""
    one_of("labels", labels, HUMAN_LABELS)
    clean = cifar10(split, root, verify)
    if split == "test":
        return clean
    key = f"random_label{labels[-1]}" if labels.startswith("random") else f"{labels}_label"
    data, path = read_public(root, "cifar10n", HUMAN, verify)
    with name_errors(path, "file of CIFAR-10N", AGAIN):
        content = load_torch(data)
        true, human = (torch.as_tensor(content[name], device="cpu") for name in ("clean_label", key))
        if not true.equal(clean.labels.numbers):
            raise InputError("its clean labels are not those of CIFAR-10")
        return replace(clean, labels=clean.labels.renumber(human), clean=true, name=f"cifar10n/{split}:{key}")


def load_torch(data: bytes) -> dict[str, Any]:
    """The dict of arrays in a zip file of torch.save."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (entry,) = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
        if entry.file_size > LIMIT:
            raise InputError(f"more than {LIMIT >> 20} MB unpacked, so it is not the public file")
        return load_pickle(archive.read(entry))


def load_pickle(data: bytes) -> dict[str, Any]:
    """The dict that a pickle holds: numbers, strings, containers of these, and numpy arrays."""
    content = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}: must be a dict")
    return content


class _Unpickler(pickle._Unpickler):
    """The standard unpickler, which finds nothing but what numpy arrays are made of.

    It is the one written in Python: its memo is a dict, so no file can take memory by counting from 2³².
    """

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that arrays need."""
        if (name, module) == ("_reconstruct", "numpy.core.multiarray"):
            module = "numpy._core.multiarray"
        admitted = {
            "numpy._core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
            "_codecs.encode": _encode_latin1,
        }
        if f"{module}.{name}" not in admitted:
            raise InputError(f"asks for {f'{module}.{name}'[:80]!r}: only arrays and plain containers are read")
        return admitted[f"{module}.{name}"]


def _encode_latin1(text: str, codec: str) -> bytes:
    """Bytes as protocol 2 writes them; other codecs can unpack a bomb."""
    if codec != "latin1":
        raise InputError("asks for a codec other than latin1")
    return text.encode(codec)


# ---- Clothing1M ----


def clothing1m(split: str, root: Path, size: int = 256, crop: int | None = None) -> Source:
    """The noisy `train` or the clean `test`; pictures stay on disk.

    Those of `train` come as size × size, for augmentation to cut 224 out of 256; the others as their middle 7/8.
    """
    top, kind = find_file(root, CATALOG["clothing1m"]["places"]), "noisy" if split == "train" else "clean"
    names = tuple(_read_lines(top, "category_names_eng.txt")[0])
    lines, path = _read_lines(top, f"{kind}_label_kv.txt")
    with name_errors(path, "list of `path label`"):
        labels = {key: int(label) for key, label in (line.rsplit(maxsplit=1) for line in lines)}
    files, path = _read_lines(top, f"{kind}_{split}_key_list.txt")
    with name_errors(path, "list of paths that have a label"):
        for file in files:
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise InputError(f"{file[:80]!r} leads out of the set's folder")
        numbers = torch.tensor([labels[file] for file in files], dtype=torch.int64, device="cpu")
        return Source(
            ImageFiles(top, files, size, crop or (size if split == "train" else size * 7 // 8)),
            Labels(numbers, names),
            ids=tuple(files),
            name=f"clothing1m/{split}",
            mean=(0.6959, 0.6537, 0.6371),
            std=(0.3113, 0.3192, 0.3214),
        )


def _read_lines(top: Path, file: str) -> tuple[list[str], Path]:
    """The lines of a text file of the set that are not empty, and its path."""
    path = find_file(top, [file, f"annotations/{file}"])
    with name_errors(path, "text in UTF-8"):
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()], path


LOADERS = (mnist, fashion_mnist, cifar10, cifar100, cifar10n, clothing1m)
DATASETS = {loader.__name__: Dataset(loader, **CATALOG[loader.__name__]) for loader in LOADERS}

# ---- what the scale `features` trains on ----

ENCODER = "efficientnet@96"
COMPONENTS = 256


def embed_data(
    name: str, data_dir: str | Path | None = None, *, limit: int = 0, encoder: str = ENCODER, **options: Any
) -> list[Path]:
    """Write the features of a picture set to features/NAME-OPTIONS-LIMIT-SPLIT.npz, with its labels and their names.

    What the encoder gives is reduced to its first principal components on the training pictures, and has mean square 1.
    With a `limit` only that many training pictures are embedded, and half as many test pictures.
    """
    splits, rows, paths = {}, {}, []
    for split, count in (("train", limit), ("test", limit // 2)):
        examples = load(name, split, data_dir, **options)
        splits[split] = examples.subset(torch.arange(count, device="cpu")) if count else examples
        rows[split] = embed_pictures(splits[split].inputs, encoder).rows.double()
    centre = rows["train"].mean(0)
    centred = rows["train"] - centre
    axes = torch.from_numpy(np.linalg.eigh((centred.T @ centred).numpy())[1]).flip(1)[:, :COMPONENTS]
    axes *= axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # the largest entry of each is positive
    size = (centred @ axes).square().mean().sqrt()
    folder = data_root(data_dir) / "features"
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        arrays: dict[str, Any] = {
            "embeddings": ((rows[split] - centre) @ axes / size).float().numpy(),
            "labels": examples.labels.numbers.numpy(),
            "class_names": np.array(examples.class_names),
        }
        if examples.clean is not None:
            arrays["clean_labels"] = examples.clean.numpy()
        paths.append(folder / f"{'-'.join([name, *map(str, options.values()), str(limit or 'all'), split])}.npz")
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_atomically(paths[-1], content.getvalue())
    return paths
