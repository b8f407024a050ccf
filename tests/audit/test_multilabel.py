"""Every tag is judged, an example by its worst pair, and decisions come back."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bayesmooth import audit, audit_probabilities, cli
from bayesmooth.audit.decisions import clean
from bayesmooth.audit.multilabel import predict_tag
from bayesmooth.audit.predictors import FIT, Projection
from bayesmooth.errors import InputError
from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import sigmoid_moments
from tests.audit.conftest import make_tags

NAMES = ("beach", "dog", "night")
Array = np.ndarray[Any, Any]


def test_wrong_pairs_come_first_with_the_tags_to_add_and_remove() -> None:
    rows, given, true = make_tags()
    made = audit(rows, given, class_names=NAMES, quiet=True)
    wrong = np.argwhere(given != true)
    assert {tuple(divmod(k, 3)) for k in np.argsort(-made.tags.scores.ravel())[:3]} == set(map(tuple, wrong.tolist()))
    assert {row["id"] for row in made.top(2)} == {"7", "20"}
    rows_by_id = {row["id"]: row for row in made.top(2)}
    for i in (7, 20):
        add = [n for n, g, t in zip(NAMES, given[i], true[i], strict=True) if t > g]
        remove = [n for n, g, t in zip(NAMES, given[i], true[i], strict=True) if t < g]
        row = rows_by_id[str(i)]
        assert (row["tags_to_add"], row["tags_to_remove"]) == ("; ".join(add), "; ".join(remove))
    assert made.disagreement == pytest.approx(made.tags.scores.max(1))
    assert made.headline.endswith("of 240 examples.")
    assert made.headline in made._repr_markdown_()


def test_what_is_suggested_moves_exactly_the_contradicted_pairs() -> None:
    rows, given, _ = make_tags()
    made = audit(rows, given, class_names=NAMES, quiet=True)
    carried = made.tags.vocabulary.table(made.class_names).numpy()
    moved = carried[made.suggested] != given
    assert (moved == (made.tags.scores > made.disagreement_threshold)).all()
    assert (made.contradicted == moved.any(1)).all()
    assert made.count_changes().sum() == moved.sum()


def test_given_probabilities_are_scored_by_their_root_margin() -> None:
    given = np.array([[1, 0], [0, 1], [1, 1]])
    p = np.array([[0.25, 0.36], [0.04, 0.64], [0.81, 0.49]])
    made = audit_probabilities(p, given, quiet=True)
    own = np.where(given == 1, p, 1 - p)
    np.testing.assert_allclose(made.tags.scores, np.sqrt(1 - own) - np.sqrt(own), atol=1e-6)


def test_a_tag_left_out_is_as_likely_as_one_held_out_of_the_fit() -> None:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(120, 4))).float()
    y = (x[:, 0] + torch.from_numpy(rng.normal(size=120)).float() > 0).long()
    features = Projection.of(x).features(x)
    seen, left_out = predict_tag(features, y)
    held = torch.empty(120)
    for fold in range(10):
        out = torch.arange(120) % 10 == fold
        fit = fit_glm(features[~out], y[~out], family="bernoulli", **FIT)
        held[out] = sigmoid_moments(*fit.logits(features[out])).mean

    def likelihood(p: torch.Tensor) -> float:
        return float(torch.where(y == 1, p, 1 - p).log().mean())

    assert abs(likelihood(left_out) - likelihood(held)) < 0.05
    assert likelihood(seen) > likelihood(left_out)


def test_dirt_is_found_and_the_rest_is_audited(tmp_path: Path) -> None:
    rows, given, _ = make_tags()
    frame = pd.DataFrame(rows, columns=["x", "y", "z"])
    tags = [[n for n, on in zip(NAMES, row, strict=True) if on] for row in given]
    tags[0] = ["Dog", "rare"]
    tags[1] = ["Dog"]
    cells = [";".join(each) for each in tags]
    cells[5] = "NA"
    frame["tags"], frame["id"] = cells, [f"r{i}" for i in range(len(frame) - 1)] + ["r0"]
    path = tmp_path / "photos.csv"
    frame.to_csv(path, index=False)
    made = audit(path, label="tags", separator=";", quiet=True)
    found = {problem.kind: problem for problem in made.findings.problems}
    assert found["missing_label"].ids == ("r5",)
    assert set(found["duplicate_id"].ids) == {"r0"}
    assert "'dog'" in found["tag_spelling"].text
    assert "'Dog'" in found["tag_spelling"].text
    assert "not judged" in found["single_example"].text
    assert "'rare'" in found["single_example"].text
    assert len(made) == len(frame) - 3
    assert "row" in made.top(1)[0]
    rare = made.tags.vocabulary.names.index("rare")
    assert (made.tags.scores[:, rare] == made.tags.scores.min()).all()


def test_columns_and_texts_are_one_data_set_and_tags_are_not_learned_from(tmp_path: Path) -> None:
    rows, given, _ = make_tags(120)
    frame = pd.DataFrame(rows, columns=["x", "y", "z"])
    columns = frame.assign(**{n: given[:, t] for t, n in enumerate(NAMES)})
    texts = frame.assign(tags=["|".join(n for n, on in zip(NAMES, row, strict=True) if on) for row in given])
    one = audit(columns, tags=list(NAMES), quiet=True)
    two = audit(texts, label="tags", separator="|", class_names=NAMES, quiet=True)
    np.testing.assert_array_equal(one.tags.scores, two.tags.scores)
    assert "'x', 'y', 'z'" in one.summary["notes"][0]
    assert "dog" not in one.summary["notes"][0]


def test_the_round_from_audit_to_decisions_to_clean_to_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, given, true = make_tags()
    frame = pd.DataFrame(rows, columns=["x", "y", "z"])
    path, out = tmp_path / "photos.csv", tmp_path / "out"
    frame.assign(**{n: given[:, t] for t, n in enumerate(NAMES)}).to_csv(path, index=False)
    options = ["--tags", ",".join(NAMES)]
    assert cli.main(["audit", str(path), *options, "--out", str(out), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "+dog" in shown or "−dog" in shown
    assert "3 tags" in shown
    table = list(csv.DictReader((out / "audit.csv").read_text().splitlines()))
    worst = [row for row in table if row["rank"] in ("1", "2")]
    decisions = tmp_path / "decisions.csv"
    with decisions.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "given", "decision", "new_label"])
        writer.writerows([row["id"], row["given"], "relabel", row["suggested"]] for row in worst)
    cleaned = tmp_path / "cleaned.csv"
    line = ["clean", str(path), str(decisions), *options, "--out", str(cleaned)]
    assert cli.main(line) == 0
    assert "2 of 240 labels changed" in capsys.readouterr().out
    after = pd.read_csv(cleaned)
    assert (after[list(NAMES)].to_numpy() == true).all()
    again = audit(path, tags=list(NAMES), decisions=decisions, quiet=True)
    assert not again.contradicted[[7, 20]].any()
    assert [tag["examples"] for tag in again.describe_labels()["tags"]] == true.sum(0).tolist()
    clean(out / "audit.csv", decisions, tmp_path / "table.csv", separator=";", class_names=NAMES)
    assert len(pd.read_csv(tmp_path / "table.csv")) == 240


def test_a_review_tells_one_rate_of_examples_and_none_under_the_names_of_sets(tmp_path: Path) -> None:
    rows, given, _ = make_tags()
    made = audit(rows, given, class_names=NAMES, budget=60, quiet=True)
    assert made.review is not None
    kept = [
        [made.ids[i], made.class_names[made.given[i]], "keep", "", repr(float(made.review.drawn[i]))]
        for i in made.review.queue
    ]
    with (tmp_path / "decisions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "given", "decision", "new_label", "drawn"], *kept])
    decided = tmp_path / "decisions.csv"
    again = audit(rows, given, class_names=NAMES, decisions=decided, quiet=True)
    assert again.summary["error_rate"]["high"] < 0.2
    assert again.summary["error_rates"] == {}


def test_what_makes_no_sense_of_sets_says_what_does() -> None:
    rows, given, _ = make_tags(60)
    made = audit(rows, given, quiet=True)
    with pytest.raises(InputError, match=r"audit\.tags\.probabilities"):
        made.soft_labels()
    with pytest.raises(InputError, match="is on 2 examples and missing on 2"):
        audit(rows, np.zeros((60, 2), int), quiet=True)
    with pytest.raises(InputError, match="must be 60 × 3"):
        audit_probabilities(np.ones((60, 2)), given, quiet=True)
