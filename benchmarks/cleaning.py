"""How accurate classifiers become on clean test labels when their noisy training labels are audited first.

    BAYESMOOTH_AUDIT_DATA=folder python -m benchmarks cleaning

Each estimator is trained on the labels as given, by cleanlab's `CleanLearning`, and by `CleanedClassifier` in its three
modes, on the same rows. Noise is made in scikit-learn's tables; the folder, if it is there, has .npz files with
`embeddings`, `clean_labels` and the given `labels` whose errors are people's. One JSON line per fit goes to
results/cleaning.jsonl (BAYESMOOTH_OUT names another file); what it holds already is not measured again.

What `CleanedClassifier` does was chosen among 20 variants by the clean test labels of all sets but `CHOSEN_WITHOUT`, so
only these compare fairly. CleanLearning runs with its defaults.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from cleanlab.classification import CleanLearning
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from bayesmooth.data import Examples, corrupt
from bayesmooth.data.reading import read_npz
from bayesmooth.files import append_line, records
from bayesmooth.integrations.sklearn import CleanedClassifier, IVONClassifier
from bayesmooth.progress import track
from benchmarks.harness import accuracy_table

Array = np.ndarray[Any, Any]
RESULTS = Path("results/cleaning.jsonl")
TABLES: tuple[tuple[str, Callable[..., Any], str, float], ...] = (
    ("wine, 20 % symmetric", datasets.load_wine, "symmetric", 0.2),
    ("breast cancer, 20 % symmetric", datasets.load_breast_cancer, "symmetric", 0.2),
    ("digits, 30 % symmetric", datasets.load_digits, "symmetric", 0.3),
    ("digits, 30 % pair flips", datasets.load_digits, "pairflip", 0.3),
)
FILES = {
    "news_annotators": "labels",
    "cifar10n": "worse",
    "cifar10h": "labels",
    "hate_one_rater": "labels",
    "hausa_distant": "labels",
    "yoruba_distant": "labels",
}
CHOSEN_WITHOUT = ("cifar10h", "hausa_distant", "yoruba_distant")
ROWS, TESTED, COMPONENTS = 1_000, 1_000, 32  # of a file
METHODS = ("as given", "CleanLearning", "drop", "weight", "relabel")


class Data(NamedTuple):
    """Rows with given labels to train on, and rows with true ones to test on."""

    name: str
    train: Array
    given: Array
    test: Array
    true: Array


def data_sets(seed: int) -> Iterator[Data]:
    for name, load, kind, rate in TABLES:
        rows, labels = load(return_X_y=True)
        train, test, old, true = train_test_split(
            rows, labels, test_size=0.4, random_state=seed, stratify=labels
        )
        names = tuple(map(str, range(labels.max() + 1)))
        clean = Examples(torch.zeros(len(old), 1), torch.from_numpy(old), names)
        given = corrupt(clean, kind, rate=rate, seed=seed)[0].labels.numpy()
        yield standardized(Data(name, train, given, test, true))
    folder = os.environ.get("BAYESMOOTH_AUDIT_DATA")
    for name, column in FILES.items() if folder else ():
        arrays = read_npz(Path(folder or "") / f"{name}.npz")
        some = np.random.default_rng(seed).permutation(len(arrays["clean_labels"]))
        learned, tested = some[:ROWS], some[ROWS : ROWS + TESTED]
        rows = arrays["embeddings"].astype(np.float32)
        reduce = PCA(COMPONENTS, random_state=0).fit(rows[learned])
        train, test = reduce.transform(rows[learned]), reduce.transform(rows[tested])
        true = arrays["clean_labels"][tested]
        yield standardized(Data(name, train, arrays[column][learned], test, true))


def standardized(data: Data) -> Data:
    scaler = StandardScaler().fit(data.train)
    return data._replace(train=scaler.transform(data.train), test=scaler.transform(data.test))


def estimators(seed: int) -> dict[str, Any]:
    return {
        "logistic": LogisticRegression(max_iter=1000),
        "forest": RandomForestClassifier(random_state=seed),
        "boosting": HistGradientBoostingClassifier(
            max_iter=40, max_leaf_nodes=15, random_state=seed
        ),
        "MLP": MLPClassifier(random_state=seed, max_iter=100),
        "IVON": IVONClassifier(epochs=40, random_state=seed),
    }


def fitted(method: str, estimator: Any, data: Data, seed: int) -> Any:
    if method == "as given":
        return estimator.fit(data.train, data.given)
    if method == "CleanLearning":
        return CleanLearning(estimator, seed=seed).fit(data.train, data.given)
    return CleanedClassifier(estimator, mode=method).fit(data.train, data.given)


def measure(path: Path, seeds: range) -> list[dict[str, Any]]:
    """Every fit that the file does not hold yet, written as soon as it is there."""
    done = records(path)
    known = {(r["data"], r["estimator"], r["method"], r["seed"]) for r in done}
    for seed in seeds:
        jobs = [
            (data, name, method)
            for data in data_sets(seed)
            for name in estimators(seed)
            for method in METHODS
            if (name, method) != ("IVON", "weight")  # takes no weights
            and (data.name, name, method, seed) not in known
        ]
        for data, name, method in track(jobs, description=f"seed {seed}"):
            model = fitted(method, estimators(seed)[name], data, seed)
            accuracy = float((model.predict(data.test) == data.true).mean())
            row = {"data": data.name, "estimator": name, "method": method, "seed": seed}
            done.append(row | {"accuracy": accuracy})
            append_line(path, json.dumps(done[-1]))
    return done


def show(rows: list[dict[str, Any]]) -> None:
    """One table per estimator, with the means over the data sets."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    fair = [name for name in names if name in CHOSEN_WITHOUT]
    means = {"mean": names} | ({"mean, not used in choosing": fair} if fair else {})
    for estimator in dict.fromkeys(row["estimator"] for row in rows):
        own = [row for row in rows if row["estimator"] == estimator]
        print(f"\n{estimator}\n{accuracy_table(own, METHODS, means)}")


def main(quick: bool = False) -> None:
    """Measure what is missing, then print all of it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the peers, about iterations
    path = Path(os.environ.get("BAYESMOOTH_OUT", RESULTS))
    show(measure(path, range(1 if quick else 3)))
