"""A linear model with a prior, beside scikit-learn's with C by cross-validation."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from bayesmooth import cli
from bayesmooth.fitting.linear import PRECISIONS, fit_linear
from bayesmooth.train import Run


def draw(width, count, share=0.2):
    """Standardised rows, a share of whose labels is wrong; and clean ones for the test."""
    shape = {"n_informative": 20, "n_redundant": 0, "n_classes": 4, "n_clusters_per_class": 1, "class_sep": 2}
    rows, labels = make_classification(count + 2000, width, **shape, random_state=0)
    generator = np.random.default_rng(0)
    wrong = generator.random(count) < share
    given = (labels[:count] + wrong * generator.integers(1, 4, count)) % 4
    rows = StandardScaler().fit(rows[:count]).transform(rows).astype(np.float32)
    return rows[:count], given, rows[count:], labels[count:]


def tune(rows, given):
    strengths = {"C": 1 / np.array(PRECISIONS[2:])}
    return GridSearchCV(LogisticRegression(max_iter=200), strengths, cv=5).fit(rows, given)


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_it_is_a_logistic_regression_of_the_labels_that_are_not_contradicted_if_there_are_wrong_ones(wrong):
    rows, given, new, clean = draw(64, 600, wrong)
    held = torch.arange(600) < 100
    found = fit_linear(torch.from_numpy(rows), torch.from_numpy(given), held, 4)
    kept = found.kept.numpy()
    assert kept.mean() > 0.97 if wrong == 0 else kept.mean() < 0.85  # a hundredth is moved by make_classification
    same = LogisticRegression(C=1 / found.precision, max_iter=500, tol=1e-8).fit(rows[kept], given[kept])
    np.testing.assert_allclose(found.model.weight.detach().numpy(), same.coef_, atol=1e-3)
    ours = (found.model(torch.from_numpy(new)).argmax(1).numpy() == clean).mean()
    assert ours > tune(rows, given).score(new, clean) - 0.005
    assert found.held == 100
    error = (found.accuracy * (1 - found.accuracy) / 100) ** 0.5
    assert found.is_level_with(found.accuracy + 0.5 * error)
    assert not found.is_level_with(found.accuracy + 2 * error)


def test_its_posterior_is_as_wide_as_left_out_labels_say():
    rows, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    rows = ((rows - rows.mean(0)) / rows.std(0).clamp_min(1e-9)).float()
    found = fit_linear(rows[:1000], labels[:1000], torch.arange(1000) < 200, 10)
    logits = found.model(rows[1000:]), found.posterior.predict(found.model, [rows[1000:]], 4)
    at_mean, averaged = ((z.argmax(1) == labels[1000:]).double().mean() for z in logits)
    assert averaged > at_mean - 0.01


@pytest.mark.slow
def test_train_on_wide_embeddings_is_as_good_as_a_tuned_logistic_regression(tmp_path):
    rows, given, new, clean = draw(384, 2000)
    np.savez(tmp_path / "data.npz", embeddings=rows, labels=given)
    np.savez(tmp_path / "new.npz", embeddings=new, labels=clean)
    assert cli.main(["train", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")]) == 0
    run = Run.open(tmp_path / "run")
    learned = run.splits().train  # none is held back once it is chosen, and contradicted ones are dropped
    assert 1400 < len(learned) < 1700
    ours = (run.predict(tmp_path / "new.npz").at_mean.argmax(1).numpy() == clean).mean()
    assert ours > tune(rows, given).score(new, clean) - 0.005


def test_a_few_wide_rows_that_are_alike_do_not_diverge(tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200, 1)) + 0.5 * generator.normal(size=(200, 1280))
    labels = ((rows[:, 0] > 0) ^ (generator.random(200) < 0.3)).astype(int)
    np.savez(tmp_path / "data.npz", embeddings=rows.astype(np.float32), labels=labels)
    assert cli.main(["train", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert Run.open(tmp_path / "run").status == "finished"
