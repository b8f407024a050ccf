"""The cells of the regret table: data, network, label noise, length of training. Only pictures need files."""

import ast
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from bayesmooth.data import Labels, Source, corrupt, load, split
from bayesmooth.models import cnn, cnn_batchnorm, mlp, resnet_small

Halves = tuple[Source, Source]
"""For training and for the test."""

PACKAGES = (
    *("asyncio", "email", "http", "importlib", "logging"),
    *("mailbox", "multiprocessing", "unittest", "urllib", "xml"),
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
WIDTHS = (16, 32, 64)
HELD_BACK = 0.2  # for validation, with its noisy labels

NOISES: dict[str, tuple[str, dict[str, float]]] = {
    "clean": ("symmetric", {"rate": 0.0}),
    "symmetric": ("symmetric", {"rate": 0.4}),
    "pairflip": ("pairflip", {"rate": 0.2}),
    "dependent": ("data_dependent", {"kappa": 0.3}),
}

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "mlp+bn": lambda *args, **options: mlp(*args, batchnorm=True, **options),
    "cnn": lambda *args, **options: cnn(*args, widths=WIDTHS, **options),
    "cnn+bn": lambda *args, **options: cnn_batchnorm(*args, widths=WIDTHS, **options),
    "resnet": resnet_small,
}


@dataclass(frozen=True)
class Cell:
    """One comparison of all methods."""

    task: str
    network: str
    noise: str
    epochs: int

    def __str__(self) -> str:
        return f"{self.task} · {self.network} · {self.noise} · {self.epochs} epochs"


def cells(tasks: tuple[str, ...]) -> Iterator[Cell]:
    """The design: every task sees every noise, short and long training, a network with and one without batch norm."""
    for task in tasks:
        short, long = EPOCHS[task]
        plain, normed = ("cnn", "cnn+bn") if task in PICTURES else ("mlp", "mlp+bn")
        for noise in NOISES:
            yield Cell(task, normed, noise, long)
            if task not in PICTURES:
                yield Cell(task, plain, noise, long)
        yield Cell(task, normed, "symmetric", short)
        yield Cell(task, plain, "symmetric", long if task in PICTURES else short)
        if task == "digits":
            yield from (Cell(task, "resnet", noise, short) for noise in ("clean", "symmetric"))


def digits() -> Halves:
    """1,000 of scikit-learn's digits, and 797 for the test."""
    inputs, labels = load_digits(return_X_y=True)
    pictures = torch.from_numpy(inputs).float().view(-1, 1, 8, 8) / 8 - 1
    return _split(pictures, torch.from_numpy(labels), tuple("0123456789"), 797 / 1797)


def table() -> Halves:
    """Breast cancer, from scikit-learn: 569 rows of 30 numbers, two classes."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    rows = torch.from_numpy(inputs).float()
    rows = (rows - rows.mean(0)) / rows.std(0)
    return _split(rows, torch.from_numpy(labels), ("malignant", "benign"), 0.4)


def text() -> Halves:
    """Docstrings of ten packages of Python's library, as 128 numbers each (latent semantic analysis)."""
    said = [(words, label) for label, name in enumerate(PACKAGES) for words in _docstrings(name)]
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    space = TruncatedSVD(128, random_state=0)
    rows = torch.from_numpy(
        space.fit_transform(counts.fit_transform([words for words, _ in said]))
    ).float()
    rows = (rows - rows.mean(0)) / rows.std()
    return _split(rows, torch.tensor([label for _, label in said]), PACKAGES, 0.3)


def mnist() -> Halves:
    """1,000 images for training, 2,000 for the test."""
    return _pictures("mnist", 1250)


def cifar10() -> Halves:
    """2,000 images for training, 2,000 for the test."""
    return _pictures("cifar10", 2500)


TASKS = {task.__name__: task for task in (digits, table, text, mnist, cifar10)}
EPOCHS = {
    "digits": (15, 60),
    "table": (20, 100),
    "text": (10, 40),
    "mnist": (4, 20),
    "cifar10": (4, 15),
}
PICTURES = ("mnist", "cifar10")  # need BAYESMOOTH_DATA


@dataclass(frozen=True)
class Problem:
    """The tensors of a cell: training, validation with noisy labels, test."""

    facts: dict[str, Any]  # for the network
    inputs: Tensor
    labels: Tensor
    clean_labels: Tensor
    held_inputs: Tensor
    held_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor


@cache
def problem(task: str, noise: str, seed: int) -> Problem:
    """The same labels for every method; the seed draws the noise and the validation part."""
    train, test = _load(task)
    kind, options = NOISES[noise]
    fit, held = split(corrupt(train, kind, seed=seed, **options)[0], HELD_BACK, seed=seed)
    assert fit.clean is not None
    facts = {"num_classes": train.num_classes, "input_shape": train.input_shape}
    return Problem(
        facts,
        _inputs(fit),
        fit.labels.numbers,
        fit.clean,
        _inputs(held),
        held.labels.numbers,
        _inputs(test),
        test.labels.numbers,
    )


@cache
def _load(task: str) -> Halves:
    return TASKS[task]()


def _inputs(examples: Source) -> Tensor:
    inputs = examples.batch(torch.arange(len(examples)))
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


def _split(inputs: Tensor, labels: Tensor, names: tuple[str, ...], test: float) -> Halves:
    return split(Source(inputs, Labels(labels.long(), names)), test, seed=0)


def _pictures(name: str, count: int) -> Halves:
    train, test = load(name, "train"), load(name, "test")
    return split(train, count / len(train), seed=0)[1], test.subset(torch.arange(2000))


def _docstrings(package: str) -> Iterator[str]:
    """Those longer than 30 characters in a package or module of Python's library."""
    library = Path(sysconfig.get_path("stdlib"))
    for file in (*sorted((library / package).rglob("*.py")), *library.glob(f"{package}.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, DOCUMENTED) and len(words := ast.get_docstring(node) or "") > 30:
                yield words
