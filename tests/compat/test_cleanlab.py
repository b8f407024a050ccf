"""Shapes and types are those of cleanlab, called alike; so are the errors that are found in easy data."""

import warnings

import numpy as np
import pandas
import pytest

from bayesmooth.compat import cleanlab as ours
from bayesmooth.errors import InputError

filters = pytest.importorskip("cleanlab.filter")
ranking = pytest.importorskip("cleanlab.rank")
datalab = pytest.importorskip("cleanlab").Datalab

# Seven labels, one of them wrong.
LABELS = np.array([0, 0, 1, 1, 2, 2, 0])
SHARES = np.array(
    [
        [0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.05, 0.9, 0.05],
        [0.1, 0.1, 0.8], [0.05, 0.05, 0.9], [0.05, 0.9, 0.05],
    ]
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    """cleanlab forks a pool of processes, which hangs where torch or tqdm has threads."""
    monkeypatch.setattr("multiprocessing.cpu_count", lambda: 1)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 1)


@pytest.fixture(scope="module")
def clouds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels of which three are wrong, predictions; two rows are copies and one lies apart."""
    generator, true = np.random.default_rng(0), np.arange(90) % 3
    rows = generator.normal(size=(90, 5)) + 6 * np.eye(5)[true]
    rows[50] = rows[80]
    rows[40] = (0, 0, 0, 40, -40)
    labels = true.copy()
    labels[:3] = (labels[:3] + 1) % 3
    return rows, labels, np.eye(3)[true] * 0.7 + 0.1


@pytest.mark.parametrize("kind", [np.asarray, list, pandas.Series])
def test_label_issues_are_a_mask_or_ranked_positions(kind):
    for ranked in (None, "self_confidence", "normalized_margin"):
        options = {"return_indices_ranked_by": ranked}
        mine = ours.find_label_issues(kind(LABELS), SHARES, **options)
        theirs = filters.find_label_issues(kind(LABELS), SHARES, **options)
        assert (type(mine), mine.dtype, mine.tolist()) == (type(theirs), theirs.dtype, theirs.tolist())


def test_quality_scores_are_floats_and_the_wrong_label_is_the_lowest():
    scores = ours.get_label_quality_scores(LABELS, SHARES)
    assert scores.dtype == ranking.get_label_quality_scores(LABELS, SHARES).dtype
    assert scores.argmin() == 6
    assert ((scores >= 0) & (scores <= 1)).all()


@pytest.mark.parametrize("by", ["features", "pred_probs"])
@pytest.mark.parametrize("names", [(0, 1, 2), ("ant", "bee", "cow")])
def test_datalab_has_the_tables_of_datalab(by, names, clouds):
    rows, numbers, shares = clouds
    data = {"y": np.array(names)[numbers], "x": rows}
    given = {"features": {"features": rows}, "pred_probs": {"pred_probs": shares}}[by]
    mine = ours.Datalab(data, label_name="y", verbosity=0)
    theirs = datalab(data, label_name="y", verbosity=0)
    mine.find_issues(**given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.find_issues(features=rows, pred_probs=shares)
    assert np.flatnonzero(mine.get_issues("label")["is_label_issue"]).tolist() == [0, 1, 2]
    for name in mine.get_issue_summary()["issue_type"]:
        table, like = mine.get_issues(name), theirs.get_issues(name)
        shared = list(table)
        assert shared == list(like)[: len(shared)]
        assert table.dtypes.tolist() == like[shared].dtypes.tolist()
        assert table.index.equals(like.index)
    both = mine.get_issues().columns
    assert set(both) <= set(theirs.get_issues().columns)
    assert list(mine.get_issue_summary()) == list(theirs.get_issue_summary())
    assert mine.audit.counts["mislabelled"] == 3


def test_copies_and_outliers_are_issues(clouds):
    rows, numbers, _ = clouds
    lab = ours.Datalab({"y": numbers}, label_name="y", verbosity=0)
    with pytest.raises(InputError, match="call find_issues first"):
        lab.get_issues()
    with pytest.raises(InputError, match="give features or pred_probs"):
        lab.find_issues()
    lab.find_issues(features=rows)
    assert np.flatnonzero(lab.get_issues("near_duplicate")["is_near_duplicate_issue"]).tolist() == [50, 80]
    assert lab.get_issues("outlier")["outlier_score"].argmin() == 40
