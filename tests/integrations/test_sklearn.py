"""The estimators are at home in scikit-learn: its own checks, pipelines, grids and pickles."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_classification
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from bayesmooth import InputError

pytest.importorskip("sklearn", minversion="1.6", reason="that of the extra")

from bayesmooth.integrations.sklearn import CleanedClassifier, IVONClassifier

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
QUICK = {"epochs": 12, "samples": 8, "random_state": 0}
ESTIMATORS = [IVONClassifier(**QUICK), CleanedClassifier(LogisticRegression(max_iter=1000))]
each = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [IVONClassifier(epochs=8), CleanedClassifier()], ids=lambda e: type(e).__name__)
def test_scikit_learns_own_checks(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks that scikit-learn skips by itself
        checks = check_estimator(estimator)
    assert sum(check["status"] == "passed" for check in checks) > 45
    assert not [check for check in checks if check["status"] in ("failed", "xfail")]


@each
def test_pipelines_grids_clones_and_pickles(estimator):
    pipeline = make_pipeline(StandardScaler(), clone(estimator))
    assert cross_val_score(pipeline, X, NAMES, cv=3).mean() > 0.9
    setting = "lr" if isinstance(estimator, IVONClassifier) else "estimator__C"
    grid = GridSearchCV(clone(estimator), {setting: [0.1, 0.2]}, cv=2).fit(X, NAMES)
    assert set(grid.predict(X)) == set(NAMES)
    fitted = pickle.loads(pickle.dumps(grid.best_estimator_))
    np.testing.assert_array_equal(fitted.predict_proba(X), grid.predict_proba(X))


def test_label_noise_is_probability_at_the_mean_minus_the_averaged_one():
    model = IVONClassifier(**QUICK).fit(X, NAMES)
    how = {"quiet": True, "samples": 8}
    noise = model.label_noise(X, NAMES, **how)
    averaged = noise.probabilities.numpy() - noise.expected.numpy()
    np.testing.assert_allclose(averaged, model.predict_proba(X), atol=1e-5)
    assert noise.label.tolist() == Y.tolist()
    with pytest.raises(InputError, match="label 'rose': must be one of 'setosa'"):
        model.label_noise(X[:1], ["rose"], **how)


@pytest.mark.slow
def test_a_third_of_the_labels_may_be_wrong():
    features, labels = load_breast_cancer(return_X_y=True)
    generator = np.random.default_rng(0)
    given = labels ^ (generator.random(len(labels)) < 0.3)
    order = generator.permutation(len(labels))
    train, test = order[::2], order[1::2]

    def score(**settings):
        model = IVONClassifier(random_state=0, **settings).fit(features[train], given[train])
        return model.score(features[test], labels[test])

    assert score() > 0.03 + score(noise=0.01, lr=0.1, epochs=200)  # to the end, and without noise


@pytest.mark.slow
@pytest.mark.parametrize("width", [20, 384, 1280])
def test_wrong_labels_cost_no_more_than_they_cost_a_tuned_logistic_regression(width):
    shape = {"n_informative": 20, "n_redundant": 0, "n_classes": 4, "n_clusters_per_class": 1}
    features, labels = make_classification(4000, width, **shape, class_sep=2, random_state=0)
    generator = np.random.default_rng(0)
    wrong = generator.random(2000) < 0.2
    given = (labels[:2000] + wrong * generator.integers(1, 4, 2000)) % 4
    tuned = GridSearchCV(LogisticRegression(max_iter=200), {"C": np.logspace(-4, 0, 5)}, cv=3)
    peer = make_pipeline(StandardScaler(), tuned).fit(features[:2000], given)
    model = IVONClassifier(random_state=0, epochs=4).fit(features[:2000], given)
    ours, theirs = (m.score(features[2000:], labels[2000:]) for m in (model, peer))
    assert ours > theirs - 0.005


def test_features_are_standardised_inside():
    one = IVONClassifier(**QUICK).fit(X, Y)
    other = IVONClassifier(**QUICK).fit(1000 * X + 7, Y)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(1000 * X + 7), atol=1e-3)
    assert [row["accuracy"] for row in one.table_] == [None]  # too few rows to hold any out
    large = (1e37 * X).astype(np.float32)
    assert all(clone(model).fit(large, Y).score(large, Y) > 0.85 for model in ESTIMATORS)


def network(features, classes):
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def test_any_module_will_do_as_itself_or_by_a_function_that_makes_it():
    made = IVONClassifier(network, **QUICK).fit(X, Y)
    assert isinstance(made.module_[1], nn.BatchNorm1d)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        given = network(4, 3)
    before = copy.deepcopy(given.state_dict())
    assert IVONClassifier(given, **QUICK | {"epochs": 40}).fit(X, Y).score(X, Y) > 0.9
    assert all(torch.equal(before[name], value) for name, value in given.state_dict().items())


def test_the_global_generators_are_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    IVONClassifier(network, **QUICK).fit(X, Y).predict(X)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def _noisy(seed=0, share=0.25):
    """Digits 0 to 4 with a quarter of the labels moved, and clean ones to test on."""
    features, labels = load_digits(n_class=5, return_X_y=True)
    generator = np.random.default_rng(seed)
    given = labels.copy()
    wrong = generator.choice(600, int(600 * share), replace=False)
    given[wrong] = (labels[wrong] + generator.integers(1, 5, len(wrong))) % 5
    features = features / 16
    return features[:600], given[:600], features[600:], labels[600:], wrong


@pytest.mark.parametrize("mode", ["drop", "weight", "relabel"])
def test_a_cleaned_classifier_beats_the_same_on_the_labels_as_given(mode):
    train, given, test, labels, wrong = _noisy()
    linear = LogisticRegression(C=100, max_iter=5000)  # which follows every label that it can
    plain = clone(linear).fit(train, given).score(test, labels)
    cleaned = CleanedClassifier(linear, mode=mode).fit(train, given)
    assert cleaned.score(test, labels) > plain + 0.05
    assert not hasattr(linear, "coef_")  # a clone was fitted
    right = np.setdiff1d(np.arange(600), wrong)
    if mode == "relabel":
        assert (cleaned.weights_ == 1).all()
    else:
        assert cleaned.weights_[wrong].mean() < 0.3 < 0.7 < cleaned.weights_[right].mean()


def test_inputs_that_are_no_numbers_are_cleaned_by_held_out_predictions():
    words = {0: ["red apple pie", "apple red"], 1: ["blue sky sea", "sea blue"]}
    texts = [words[k][i % 2] + f" n{i % 7}" for i in range(60) for k in (0, 1)]
    given = np.array(["fruit", "sky"])[np.arange(120) % 2]
    given[[4, 9]] = ["sky", "fruit"]
    model = make_pipeline(CountVectorizer(), LogisticRegression())
    for mode in ("drop", "weight", "relabel"):
        cleaned = CleanedClassifier(model, mode=mode, by="predictions", random_state=0)
        cleaned.fit(texts, given)
        assert set(np.flatnonzero(cleaned.audit_.contradicted)) == {4, 9}
        assert cleaned.predict(["apple"]).tolist() == ["fruit"]
    with pytest.raises(InputError, match=r"X holds texts .*red apple pie n0"):
        CleanedClassifier(model).fit([[text] for text in texts], given)


def test_choices_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="mode='prune': must be one of 'drop', 'weight', 'relabel'"):
        CleanedClassifier(mode="prune").fit(X, Y)
    with pytest.raises(InputError, match="by='rows': must be one of 'features', 'predictions'"):
        CleanedClassifier(by="rows").fit(X, Y)
    with pytest.raises(InputError, match="KNeighborsClassifier takes no sample_weight; use mode="):
        CleanedClassifier(KNeighborsClassifier(), mode="weight").fit(X, Y)


def test_a_class_is_never_lost_by_dropping():
    rows = np.concatenate([np.zeros((30, 2)), np.ones((30, 2))]) + np.arange(60)[:, None] / 1e4
    labels = np.repeat([0, 1], 30)
    labels[[3, 7]] = 2  # a class of its own that nothing supports
    cleaned = CleanedClassifier().fit(rows, labels)
    assert set(cleaned.estimator_.classes_) == {0, 1, 2}
    for mode in ("drop", "weight", "relabel"):
        alone = CleanedClassifier(mode=mode).fit(np.r_[[[0.5, 0.5]], rows], np.r_[7, labels])  # not audited
        assert set(alone.estimator_.classes_) >= {0, 1, 7}
        assert (len(alone.audit_), alone.weights_[0]) == (60, 1)
        assert (alone.classes_[alone.predict_proba(rows).argmax(1)] == alone.predict(rows)).all()
