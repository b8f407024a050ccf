"""The data sets by name: how to load each, where its files lie, and how to bring them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesmooth.data import sets
from bayesmooth.data.own import folder, source
from bayesmooth.data.reading import MissingError, data_root
from bayesmooth.data.source import Source
from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean


@dataclass(frozen=True)
class Dataset:
    """One row of the catalog: its `load(split, root, **options)`, its files, how to get them.

    It is present if one of `places` exists; without places it needs no files, or the user names them.
    """

    load: Callable[..., Source]
    about: str
    files: str
    bring: str = "give its path with path="
    places: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("train", "test")

    @property
    def options(self) -> tuple[str, ...]:
        """What may be given beside the split."""
        return tuple(inspect.signature(self.load).parameters)[2:]

    def say_how(self, root: Path) -> str:
        """How to bring the files to `root`."""
        return self.bring.replace("DIR", str(root))


IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
CIFAR = "https://www.cs.toronto.edu/~kriz"
HUMAN = "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data"
GET_CIFAR10 = f"curl -L {CIFAR}/cifar-10-python.tar.gz | tar xz -C DIR"
GET_CIFAR100 = f"curl -L {CIFAR}/cifar-100-python.tar.gz | tar xz -C DIR"

DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        sets.digits,
        "1,797 handwritten digits of 8 × 8, 10 classes",
        "none: part of scikit-learn",
        "pip install 'bayesmooth[data]'",
    ),
    "mnist": Dataset(
        sets.mnist,
        "70,000 handwritten digits of 28 × 28, 10 classes",
        f"mnist/{IDX} (or in MNIST/raw; packed or not)",
        f"curl -L --create-dirs --output-dir DIR/mnist --remote-name-all "
        f"'https://ossci-datasets.s3.amazonaws.com/mnist/{IDX}'",
        sets.MNIST_FOLDERS,
    ),
    "fashion_mnist": Dataset(
        sets.fashion_mnist,
        "70,000 pieces of clothing of 28 × 28, 10 classes",
        f"fashion-mnist/{IDX} (or in FashionMNIST/raw; packed or not)",
        f"curl -L --create-dirs --output-dir DIR/fashion-mnist --remote-name-all "
        f"'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{IDX}'",
        sets.FASHION_FOLDERS,
    ),
    "cifar10": Dataset(
        sets.cifar10,
        "60,000 photographs of 32 × 32, 10 classes",
        "cifar-10-batches-py/{data_batch_1 … 5,test_batch,batches.meta}",
        GET_CIFAR10,
        sets.CIFAR10_FOLDERS,
    ),
    "cifar100": Dataset(
        sets.cifar100,
        "60,000 photographs of 32 × 32, 100 classes",
        "cifar-100-python/{train,test,meta}",
        GET_CIFAR100,
        sets.CIFAR100_FOLDERS,
    ),
    "cifar10n": Dataset(
        sets.cifar10n,
        "CIFAR-10 with people's labels: aggre (9 % wrong), random1 … 3 (17–18 %), worse (40 %)",
        "CIFAR-10_human.pt beside cifar-10-batches-py",
        f"{GET_CIFAR10}\n  curl -L {HUMAN}/CIFAR-10_human.pt -o DIR/CIFAR-10_human.pt",
        ("CIFAR-10_human.pt",),
    ),
    "cifar100n": Dataset(
        sets.cifar100n,
        "CIFAR-100 with people's labels, 40 % wrong",
        "CIFAR-100_human.pt beside cifar-100-python",
        f"{GET_CIFAR100}\n  curl -L {HUMAN}/CIFAR-100_human.pt -o DIR/CIFAR-100_human.pt",
        ("CIFAR-100_human.pt",),
    ),
    "clothing1m": Dataset(
        sets.clothing1m,
        "1,000,000 pictures from shops, 14 classes, labels from the text around them",
        "clothing1m/{images/…,noisy_label_kv.txt,clean_label_kv.txt,*_key_list.txt,category_names_eng.txt}",
        "ask its authors (https://github.com/Cysu/noisy_label), and unpack it into DIR/clothing1m",
        sets.CLOTHING_FOLDERS,
        tuple(sets.CLOTHING_LISTS),
    ),
    "folder": Dataset(
        folder,
        "your pictures, one folder per class, as pixels",
        "PATH/{train,test}/<class>/*.jpg, or PATH/<class>/*.jpg",
    ),
    "source": Dataset(
        source,
        "your data, as `bayesmooth audit` opens them: a table, texts, pictures or embeddings",
        "PATH.csv, .parquet, .npz or a folder, with a column `split` or one file per split: PATH-{split}.csv",
    ),
}


def load(
    name: str, split: str = "train", data_dir: str | Path | None = None, **options: Any
) -> Source:
    """A split of a data set, read from `data_dir` (else BAYESMOOTH_DATA, else ./data).

    >>> load("digits", "test")
    Source(digits/test: 359 × float32[1, 8, 8], 10 classes)
    """
    dataset = _named(name)
    _check_choice("split", split, dataset.splits)
    for option in options:
        _check_choice(f"{name}: option", option, dataset.options)
    if "path" in dataset.options and "path" not in options:
        raise InputError(f"{name}: give its path with path=; it looks like {dataset.files}")
    root = data_root(data_dir)
    try:
        return dataset.load(split, root, **options)
    except MissingError as missing:
        if "path" in options:
            raise MissingError(f"{name}: {missing}\n  files: {dataset.files}") from None
        raise MissingError(
            f"{name}: {missing}\n  files: {dataset.files}\n"
            f"  to get them: {dataset.say_how(root)}\n"
            "  if you have them elsewhere: --data-dir, or the variable BAYESMOOTH_DATA"
        ) from None


def describe_datasets(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Every data set as plain data: name, about, splits, options, files, bring, found."""
    root = data_root(data_dir)
    return [
        {
            "name": name,
            "about": dataset.about,
            "splits": list(dataset.splits),
            "options": list(dataset.options),
            "files": dataset.files,
            "bring": dataset.say_how(root),
            "found": not dataset.places or any((root / place).exists() for place in dataset.places),
        }
        for name, dataset in DATASETS.items()
    ]


def check(name: str, data_dir: str | Path | None = None, **options: Any) -> list[dict[str, Any]]:
    """Load every split with its checksums and its first input: what the split holds, or its problem.

    Data of the user's own need no test split.
    """
    rows: list[dict[str, Any]] = []
    for split in _named(name).splits:
        try:
            examples = load(name, split, data_dir, **options)
            shape = list(examples.input_shape)
        except InputError as error:
            if split == "train" or "path" not in options or not isinstance(error, MissingError):
                rows.append({"split": split, "ok": False, "problem": str(error)})
            continue
        row = {"split": split, "ok": True, "examples": len(examples), "shape": shape}
        row |= {"classes": examples.num_classes, "summary": repr(examples)}
        rows.append(row | {"notes": [note.text for note in examples.notes]})
    return rows


def _named(name: str) -> Dataset:
    _check_choice("data set", name, tuple(DATASETS))
    return DATASETS[name]


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{what} {value!r} is not known; {did_you_mean(value, choices)}")
