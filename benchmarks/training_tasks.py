"""The tasks of `python -m benchmarks training`: data, networks, labels, and the two pools of cells.

BAYESMOOTH_DATA has the pictures (MNIST, Fashion-MNIST, CIFAR), BAYESMOOTH_TEXTS the unpacked texts (`noisyag-news`,
`african-newsclass`, `hate-speech`, `banking77`), BAYESMOOTH_AUDIT_DATA the embeddings (.npz). MiniLM's weights come
with the extra `audit`.

Of the two pools in pools.csv, `development` may choose constants. `test` may not: its data sets are other ones, and it
is run once they are frozen.
"""

import ast
import csv
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import one_hot

from bayesmooth.data import load
from benchmarks.training_networks import NETWORKS, build

HELD_BACK = 0.2  # of the given labels, for validation
LIBRARY = Path(sysconfig.get_path("stdlib"))
PACKAGES = "asyncio email http importlib logging mailbox multiprocessing unittest urllib xml"
INTENTS = """
card_arrival card_delivery_estimate card_not_working declined_card_payment declined_cash_withdrawal declined_transfer
failed_transfer pending_card_payment pending_cash_withdrawal pending_transfer
"""


@dataclass(frozen=True)
class Cell:
    """One comparison of all methods."""

    data: str
    network: str
    labels: str
    epochs: int
    batch: int
    examples: int  # for training and validation

    def __str__(self) -> str:
        size = f"{self.epochs} epochs · batch {self.batch}"
        return f"{self.data} · {self.network} · {self.labels} · {size}"


POOLS: dict[str, list[Cell]] = {  # written down before the first run
    str(name): [Cell(*row) for row in cells.drop(columns="pool").itertuples(index=False)]
    for name, cells in pd.read_csv(Path(__file__).with_name("pools.csv")).groupby("pool")
}


@dataclass(frozen=True)
class Problem:
    """Training with given labels, test with clean ones; the network from a seed."""

    model: Callable[[int], nn.Module]
    inputs: Tensor
    labels: Tensor
    held: range  # the places of those for validation
    test_inputs: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Data:
    """All examples: the first `trained` are for training (None: a random share of 60 %), the rest for the test."""

    inputs: Any
    clean: Any
    people: Any = None
    trained: int | None = None


@cache
def problem(cell: Cell, seed: int) -> Problem:
    """The same for every method; the seed draws the examples, the noise, and the network."""
    data, order = _read(cell.data), np.random.default_rng(seed)
    count, classes = len(data.clean), int(data.clean.max()) + 1
    if data.trained is None:
        places, end = np.random.default_rng(0).permutation(count), int(0.6 * count)
    else:
        places, end = np.arange(count), data.trained
    train, test = order.permutation(places[:end])[: cell.examples], order.permutation(places[end:])[:1000]
    prepare, _ = NETWORKS[cell.network]
    inputs = prepare(data.inputs, train, np.concatenate([train, test]))
    clean, test_labels = data.clean[train], torch.from_numpy(data.clean[test])
    if cell.labels == "people":
        given = data.people[train]
    else:
        given = LABELS[cell.labels](inputs[: len(train)], clean, classes, order)
    return Problem(
        partial(build, cell.network, classes, inputs.shape[1:]),
        inputs[: len(train)],
        torch.from_numpy(given),
        range(len(train) - int(HELD_BACK * len(train)), len(train)),
        inputs[len(train) :],
        test_labels,
    )


# ---- labels ----


def _symmetric(inputs: Tensor, clean: Any, classes: int, order: Any) -> Any:
    wrong = order.random(len(clean)) < min(0.4, 0.7 * (1 - 1 / classes))
    return (clean + wrong * order.integers(1, classes, len(clean))) % classes


def _instance(inputs: Tensor, clean: Any, classes: int, order: Any) -> Any:
    """The 30 % that a linear model tells least clearly from another class get that class."""
    rows = inputs.float().flatten(1)
    if not inputs.is_floating_point():  # words
        rows = one_hot(inputs % 512, 512).sum(1).float()
    rows = (rows - rows.mean(0)) / (rows.std(0) + 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # far enough
        model = LogisticRegression(C=0.01, max_iter=30).fit(rows.numpy(), clean)
    scores = model.decision_function(rows.numpy())
    scores = scores if scores.ndim == 2 else np.stack([-scores, scores], 1)
    place = np.arange(len(clean)), clean
    own = scores[place]
    scores[place] = -np.inf
    margin = own - scores.max(1) + order.gumbel(size=len(clean))
    return np.where(margin <= np.quantile(margin, 0.3), scores.argmax(1), clean)


LABELS: dict[str, Callable[[Tensor, Any, int, Any], Any]] = {
    "clean": lambda inputs, clean, classes, order: clean,
    "symmetric": _symmetric,
    "pair": lambda inputs, clean, classes, order: (clean + (order.random(len(clean)) < 0.3)) % classes,
    "instance": _instance,
}


# ---- data ----


def _pictures(name: str, coarse: bool = False) -> Data:
    train, test = load(name, "train"), load(name, "test")
    parts = train.inputs[torch.arange(10000)], test.inputs[torch.arange(2000)]
    inputs = torch.cat(parts).float() / 255
    labels = torch.cat([train.labels[:10000], test.labels[:2000]]).numpy()
    if coarse:  # twenty groups of five classes, each with its neighbours in the alphabet
        labels = labels // 5
    inputs = (inputs - inputs.mean()) / inputs.std()
    return Data(inputs if inputs.ndim == 4 else inputs[:, None], labels, trained=10000)


def _table(inputs: Any, labels: Any, people: Any = None) -> Data:
    rows = torch.as_tensor(np.asarray(inputs, dtype=np.float32))
    rows = (rows - rows.mean(0)) / (rows.std(0) + 1e-6)
    return Data(rows, np.asarray(labels, int), None if people is None else np.asarray(people, int))


def _embedded(name: str, given: str = "labels") -> Data:
    file = Path(os.environ["BAYESMOOTH_AUDIT_DATA"]) / f"{name}.npz"
    with np.load(file) as arrays:
        rows = arrays["embeddings"].astype(np.float32)
        return _table(rows, arrays["clean_labels"], arrays[given])


def _digits() -> Data:
    inputs, labels = datasets.load_digits(return_X_y=True)
    pictures = torch.from_numpy(inputs).float().view(-1, 1, 8, 8) / 8 - 1
    return Data(pictures, labels)


def _hastie() -> Data:
    rows, labels = datasets.make_hastie_10_2(8000, random_state=0)
    return _table(rows, labels > 0)


def _rows(pattern: str, **options: Any) -> pd.DataFrame:
    root = Path(os.environ["BAYESMOOTH_TEXTS"]).expanduser()
    files = sorted(root.rglob(pattern))
    if not files:
        raise SystemExit(f"no {pattern} under {root}: say in BAYESMOOTH_TEXTS where the texts are")
    return pd.read_csv(files[0], dtype=str, keep_default_na=False, **options)


def _texts(texts: Any, labels: Any, people: Any = None, trained: int | None = None) -> Data:
    """Labels become numbers in the order of the alphabet; `people` gave labels of their own."""
    names, clean = np.unique(list(labels), return_inverse=True)
    return Data(list(texts), clean, None if people is None else np.searchsorted(names, list(people)), trained)


def _news() -> Data:
    train, test = _rows("samples10000valMed.csv"), _rows("samplesTest.csv")
    rows = pd.concat([train, test])
    return _texts(rows["text"], rows["gt"], rows["label"].fillna(rows["gt"]), len(train))


def _tweets() -> Data:
    rows = _rows("hate-speech/data/labeled_data.csv")
    return _texts(rows["tweet"], rows["class"])


def _titles(language: str) -> Data:
    """Titles of news, under the labels of rules where the label is `people`."""
    clean, noisy, test = (
        _rows(f"{language}_newsclass/{part}.tsv", sep="\t", quoting=csv.QUOTE_NONE)
        for part in ("train_clean", "train_clean_noisy_labels", "test")
    )
    rows, given = pd.concat([clean, test]), pd.concat([noisy, test])
    return _texts(rows["news_title"], rows["label"], given["label"], len(clean))


def _banking(names: Sequence[str] | None = None) -> Data:
    train, test = (_rows(f"banking_data/{part}.csv") for part in ("train", "test"))
    if names:
        train, test = (rows[rows["category"].isin(names)] for rows in (train, test))
    rows = pd.concat([train, test])
    return _texts(rows["text"], rows["category"], trained=len(train))


def _docstrings() -> Data:
    """Docstrings of ten packages of Python's library."""
    said = [(words, name) for name in PACKAGES.split() for words in _read_library(name, documentation=True)]
    return _texts([words for words, _ in said], [name for _, name in said])


def _code() -> Data:
    """Functions' code in the 150 modules of Python's library that have most of it."""
    modules = sorted(path.stem for path in LIBRARY.glob("*.py"))
    code = {name: list(_read_library(name)) for name in modules}
    largest = sorted(code, key=lambda name: -len(code[name]))[:150]
    said = [(words, name) for name in largest for words in code[name][:80]]
    return _texts([words for words, _ in said], [name for _, name in said])


def _read_library(package: str, documentation: bool = False) -> Iterator[str]:
    """Docstrings longer than 30 characters, or the code of functions, of a package or module."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for file in (*sorted((LIBRARY / package).rglob("*.py")), *LIBRARY.glob(f"{package}.py")):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)):
            if documentation:
                if isinstance(node, documented) and len(words := ast.get_docstring(node) or "") > 30:
                    yield words
            elif isinstance(node, ast.FunctionDef):
                yield " ".join(text.splitlines()[node.lineno : node.end_lineno])


@cache
def _read(name: str) -> Data:
    return DATA[name]()


SYNTHETIC = {"n_informative": 20, "n_redundant": 0, "n_classes": 4, "n_clusters_per_class": 1, "class_sep": 2}
QUANTILES = {"n_samples": 6000, "n_features": 12, "n_classes": 5}
DATA: dict[str, Callable[[], Data]] = {
    "mnist": lambda: _pictures("mnist"),
    "fashion_mnist": lambda: _pictures("fashion_mnist"),
    "cifar10": lambda: _pictures("cifar10"),
    "cifar20": lambda: _pictures("cifar100", coarse=True),
    "digits": _digits,
    "cancer": lambda: _table(*datasets.load_breast_cancer(return_X_y=True)),
    "synthetic384": lambda: _table(*datasets.make_classification(6000, 384, **SYNTHETIC, random_state=0)),
    "hastie": _hastie,
    "quantiles": lambda: _table(*datasets.make_gaussian_quantiles(**QUANTILES, random_state=0)),
    "wicket": lambda: _embedded("defects_wicket"),
    "camel": lambda: _embedded("defects_camel"),
    "docstrings": _docstrings,
    "code150": _code,
    "news": _news,
    "tweets": _tweets,
    "hausa": lambda: _titles("hausa"),
    "yoruba": lambda: _titles("yoruba"),
    "banking77": _banking,
    "intents": lambda: _banking(INTENTS.split()),
    "banking77-embedded": lambda: _embedded("banking_similar"),
    "news-embedded": lambda: _embedded("news_annotators"),
    "cifar10n-embedded": lambda: _embedded("cifar10n", "worse"),
    "cifar100n-embedded": lambda: _embedded("cifar100n"),
    "youtube-embedded": lambda: _embedded("youtube_weak"),
    "labelme-embedded": lambda: _embedded("labelme_one"),
    "treatment-embedded": lambda: _embedded("med_treat"),
}
