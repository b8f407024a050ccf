import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth import Audit, audit
from bayesmooth.audit.decisions import clean
from bayesmooth.errors import InputError

NAMES = ("cat", "dog", "cow")


def make_data() -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Three clusters that touch, a fifth of the labels moved; the true labels last."""
    rng = np.random.default_rng(0)
    true = np.arange(300) % 3
    centres = np.array([[0, 0], [3, 0], [0, 3]])
    rows = centres[true] + rng.normal(size=(300, 2))
    given = np.where(rng.random(300) < 0.2, (true + 1) % 3, true)
    return torch.from_numpy(rows), given, true


def decide(path: Path, made: Audit, true: np.ndarray, count: int) -> None:
    """A reviewer who knows: the first `count` of the ranking."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "given", "decision", "new_label"])
        for i in made.order[:count]:
            wrong = made.given[i] != true[i]
            decision = ("relabel", NAMES[true[i]]) if wrong else ("keep", "")
            writer.writerow([made.ids[i], NAMES[made.given[i]], *decision])


def test_decided_labels_are_trusted_and_not_asked_again(tmp_path: Path) -> None:
    rows, given, true = make_data()
    first = audit(embeddings=rows, labels=given, class_names=NAMES, quiet=True)
    decide(tmp_path / "decisions.csv", first, true, 40)
    decided = first.order[:40]
    further = audit(
        embeddings=rows,
        labels=given,
        class_names=NAMES,
        decisions=tmp_path / "decisions.csv",
        quiet=True,
    )
    assert (further.given[decided] == true[decided]).all()
    assert not further.contradicted[decided].any()
    assert (further.disagreement[decided] == further.disagreement.min()).all()
    rest = np.setdiff1d(np.arange(300), decided)
    assert (further.given[rest] == given[rest]).all()
    corrected = given.copy()
    corrected[decided] = true[decided]
    anew = audit(embeddings=rows, labels=corrected, class_names=NAMES, quiet=True)
    np.testing.assert_allclose(further.disagreement[rest], anew.disagreement[rest])
    assert "40 labels are decided" in further.summary["notes"][-1]


def test_decisions_of_a_second_round_apply_to_the_data_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="needs pandas, the extra data")
    rows, given, true = make_data()
    with (tmp_path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["x", "y", "label"],
                *[[*row, NAMES[k]] for row, k in zip(rows.tolist(), given, strict=True)],
            ]
        )
    names = {"class_names": NAMES, "quiet": True}
    decide(tmp_path / "one.csv", audit(tmp_path / "data.csv", **names), true, 30)
    second = audit(tmp_path / "data.csv", decisions=tmp_path / "one.csv", **names)
    decide(tmp_path / "two.csv", second, true, 30)
    clean(tmp_path / "data.csv", tmp_path / "two.csv", tmp_path / "corrected.csv")
    with (tmp_path / "corrected.csv").open(newline="") as file:
        made = np.array([NAMES.index(row["label"]) for row in csv.DictReader(file)])
    asked = second.order[:30]
    np.testing.assert_array_equal(made[asked], true[asked])
    rest = np.setdiff1d(np.arange(300), asked)
    np.testing.assert_array_equal(made[rest], given[rest])


def test_what_was_skipped_is_asked_again_and_a_stranger_is_refused(tmp_path: Path) -> None:
    rows, given, _ = make_data()
    path = tmp_path / "decisions.csv"
    path.write_text(f"id,given,decision,new_label\n7,{NAMES[given[7]]},skip,\n")
    how = {"embeddings": rows, "labels": given, "class_names": NAMES, "quiet": True}
    np.testing.assert_array_equal(audit(**how, decisions=path).order, audit(**how).order)
    path.write_text("id,given,decision,new_label\n999,cat,keep,\n")
    with pytest.raises(InputError, match="999"):
        audit(**how, decisions=path)
