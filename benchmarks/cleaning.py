"""How accurate classifiers become on clean test labels when their noisy training labels are audited first.

    BAYESMOOTH_AUDIT_DATA=folder python -m benchmarks cleaning

Each estimator is trained on the labels as given, by cleanlab's `CleanLearning`, and by `CleanedClassifier` in its three
modes, on the same rows. Noise is made in scikit-learn's tables; the folder, if it is there, has .npz files with
`embeddings`, `clean_labels` and the given `labels` whose errors are people's. One JSON line per fit goes to
results/cleaning.jsonl (BAYESMOOTH_OUT names another folder). What the file holds already is not measured again.

What `CleanedClassifier` does was chosen among 20 variants by the clean test labels of all sets but `CHOSEN_WITHOUT`, so
only these compare fairly. CleanLearning runs with its defaults.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
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

from bayesmooth.data import Labels, Source, corrupt
from bayesmooth.data.reading import read_npz
from bayesmooth.integrations.sklearn import CleanedClassifier, IVONClassifier
from benchmarks.harness import Row, accuracy_table, real_data, results_path, run_missing

Array = np.ndarray[Any, Any]
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
        clean = Source(torch.zeros(len(old), 1), Labels(torch.from_numpy(old), names))
        given = corrupt(clean, kind, rate=rate, seed=seed)[0].labels.numbers.numpy()
        yield standardize(Data(name, train, given, test, true))
    if not (folder := real_data()):
        return
    for name, column in FILES.items():
        arrays = read_npz(folder / f"{name}.npz")
        some = np.random.default_rng(seed).permutation(len(arrays["clean_labels"]))
        learned, tested = some[:ROWS], some[ROWS : ROWS + TESTED]
        rows = arrays["embeddings"].astype(np.float32)
        reduce = PCA(COMPONENTS, random_state=0).fit(rows[learned])
        train, test = reduce.transform(rows[learned]), reduce.transform(rows[tested])
        true = arrays["clean_labels"][tested]
        yield standardize(Data(name, train, arrays[column][learned], test, true))


def standardize(data: Data) -> Data:
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


def fit_by(method: str, estimator: Any, data: Data, seed: int) -> Any:
    if method == "as given":
        return estimator.fit(data.train, data.given)
    if method == "CleanLearning":
        return CleanLearning(estimator, seed=seed).fit(data.train, data.given)
    return CleanedClassifier(estimator, mode=method).fit(data.train, data.given)


def measure(data: Data, estimator: str, method: str, seed: int) -> Iterator[Row]:
    model = fit_by(method, estimators(seed)[estimator], data, seed)
    row = {"data": data.name, "estimator": estimator, "method": method, "seed": seed}
    yield row | {"accuracy": float((model.predict(data.test) == data.true).mean())}


def show(rows: list[Row]) -> None:
    """One table per estimator, with the means over the data sets."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    fair = [name for name in names if name in CHOSEN_WITHOUT]
    means = {"mean": names} | ({"mean, not used in choosing": fair} if fair else {})
    for estimator in dict.fromkeys(row["estimator"] for row in rows):
        own = [row for row in rows if row["estimator"] == estimator]
        print(f"\n{estimator}\n{accuracy_table(own, METHODS, means)}")


def main(quick: bool = False) -> None:
    """Measure what is missing, then print all of it."""
    warnings.simplefilter("ignore")  # of the peers, about iterations
    jobs = {
        (data.name, name, method, seed): partial(measure, data, name, method, seed)
        for seed in range(1 if quick else 3)
        for data in data_sets(seed)
        for name in estimators(seed)
        for method in METHODS
        if (name, method) != ("IVON", "weight")  # takes no weights
    }
    keys = ("data", "estimator", "method", "seed")
    show(run_missing(results_path("cleaning"), keys, jobs, "fits"))
