"""How well scikit-learn's classifiers, tuned, and `IVONClassifier` with its defaults stand 30 % wrong labels in tables.

    python -m benchmarks tables > results/tables.txt

The strength of each peer is chosen by three-fold cross-validation on the labels as they are given. Each figure is the
mean and standard deviation of accuracy over splits: 70 % of the rows for training, with wrong labels, and 30 % for
testing, with right ones.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesmooth import progress
from bayesmooth.integrations.sklearn import IVONClassifier
from benchmarks.harness import accuracy_table

Array = np.ndarray[Any, Any]
Table = tuple[Array, Array]
NOISE = (0.0, 0.3)


def take_columns(table: Table, which: Any) -> Table:
    features, labels = table
    return features[:, which], labels


def project(table: Table, count: int) -> Table:
    features, labels = table
    scaled = StandardScaler().fit_transform(features)
    return PCA(count, random_state=0).fit_transform(scaled), labels


def tables() -> tuple[dict[str, Table], dict[str, Table]]:
    """Those on which the rule for few inputs was chosen, and others."""
    iris, wine = datasets.load_iris(return_X_y=True), datasets.load_wine(return_X_y=True)
    cancer = datasets.load_breast_cancer(return_X_y=True)
    digits = datasets.load_digits(return_X_y=True)
    design = {
        "iris": iris,
        "wine": wine,
        "digits, 4 components": project(digits, 4),
        "digits, 8 components": project(digits, 8),
        "moons": datasets.make_moons(1500, noise=0.2, random_state=0),
    }
    others = {
        "breast cancer": cancer,
        "breast cancer, 10 columns": take_columns(cancer, slice(10)),
        "breast cancer, 5 columns": take_columns(cancer, slice(5)),
        "digits": digits,
        "digits, 12 components": project(digits, 12),
        "digits, 6 components": project(digits, 6),
        "wine, 6 columns": take_columns(wine, slice(6)),
        "wine, 3 columns": take_columns(wine, [0, 6, 9]),
        "iris, 2 columns": take_columns(iris, [2, 3]),
        "circles": datasets.make_circles(400, noise=0.1, factor=0.6, random_state=0),
        "5 inputs, 3 classes": datasets.make_classification(
            1000, 5, n_informative=5, n_redundant=0, n_classes=3, random_state=3
        ),
    }
    return design, others


def classifiers(seed: int) -> dict[str, Any]:
    def tuned(model: Any, *grid: dict[str, Any]) -> Any:
        return make_pipeline(StandardScaler(), GridSearchCV(model, list(grid), cv=3))

    perceptron = MLPClassifier(random_state=seed)
    boosted = HistGradientBoostingClassifier(random_state=seed)
    return {
        "logistic": tuned(LogisticRegression(max_iter=1000), {"C": [0.001, 0.03, 1.0]}),
        "forest": tuned(RandomForestClassifier(random_state=seed), {"min_samples_leaf": [1, 10]}),
        "boosting": tuned(boosted, {"max_iter": [10, 100], "max_leaf_nodes": [4]}),
        "MLP": tuned(perceptron, {"alpha": [1e-4, 10.0]}, {"early_stopping": [True]}),
        "IVON": IVONClassifier(random_state=seed),
    }


def measure(name: str, table: Table, noise: float, splits: int) -> Iterator[dict[str, Any]]:
    features, labels = table
    cut = StratifiedShuffleSplit(splits, test_size=0.3, random_state=0).split(features, labels)
    for seed, (train, test) in enumerate(cut):
        generator, count = np.random.default_rng(seed), int(labels.max()) + 1
        wrong = generator.random(len(train)) < noise
        given = (labels[train] + wrong * generator.integers(1, count, len(train))) % count
        for method, model in classifiers(seed).items():
            score = model.fit(features[train], given).score(features[test], labels[test])
            yield {"data": name, "method": method, "accuracy": score}


def show(title: str, chosen: dict[str, Table], splits: int) -> None:
    cases = {f"{name}, {noise:.0%} wrong": (name, noise) for name in chosen for noise in NOISE}
    rows = [
        row
        for label, (name, noise) in progress.track(cases.items(), description="tables")
        for row in measure(label, chosen[name], noise, splits)
    ]
    means = {
        f"mean, {noise:.0%} wrong": [label for label, case in cases.items() if case[1] == noise]
        for noise in NOISE
    }
    print(f"\n{title}: accuracy in %, {splits} splits\n")
    print(accuracy_table(rows, list(classifiers(0)), means))


def main(quick: bool = False) -> None:
    """Train every classifier on every table."""
    warnings.simplefilter("ignore")  # of the peers, about iterations
    design, others = tables()
    show("tables that had no say in the rule for few inputs", others, 2 if quick else 3)
    show("tables on which it was chosen", design, 2 if quick else 3)
