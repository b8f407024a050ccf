"""Several annotators: the consensus, how good everybody is, whom to ask again."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth.audit import audit, audit_votes
from bayesmooth.audit.annotators import agree, compare_people
from bayesmooth.cli import main
from bayesmooth.data.arrays import read_vote_array
from bayesmooth.data.labels import Votes
from bayesmooth.errors import InputError

SKILL = np.array([0.95, 0.9, 0.8, 0.7, 0.5, 0.35])


def crowd(count: int = 900, each: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three clouds that overlap; six people of known skill, each example labelled by three of them."""
    generator = np.random.default_rng(seed)
    clean = np.arange(count) % 3
    x = 2.0 * np.eye(3)[clean] + generator.normal(size=(count, 3))
    votes = np.full((count, len(SKILL)), -1)
    for i in range(count):
        for a in generator.choice(len(SKILL), each, replace=False):
            slip = (clean[i] + generator.integers(1, 3)) % 3
            votes[i, a] = clean[i] if generator.random() < SKILL[a] else slip
    return x, votes, clean


def as_votes(votes: np.ndarray) -> Votes:
    return read_vote_array(votes, ["0", "1", "2"]).count_votes()


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_consensus_beats_majority_prediction_and_the_votes_alone() -> None:
    x, votes, clean = crowd()
    made = audit_votes(x, votes, quiet=True)
    assert made.consensus is not None
    right = (made.consensus.labels.numpy() == clean).mean()
    alone = agree(as_votes(votes), torch.full((len(x), 3), 1 / 3))  # an even prior says nothing
    assert right > (made.given == clean).mean() + 0.05
    assert right > (alone.labels.numpy() == clean).mean() + 0.01
    sure = made.consensus.posterior.amax(1).numpy()
    assert abs(sure.mean() - right) < 0.03  # its probabilities mean what they say
    assert ((made.suggested == made.consensus.labels.numpy()) | (made.given == made.suggested)).all()


def test_everybodys_quality_is_found_within_its_interval() -> None:
    x, votes, clean = crowd(2000)
    made = audit_votes(x, votes, quiet=True).consensus
    assert made is not None
    found = {one["annotator"]: one for one in made.annotators("012")}
    assert list(found)[:2] == ["0", "1"]
    for a, name in enumerate(map(str, range(len(SKILL)))):
        true = (votes[:, a] == clean)[votes[:, a] >= 0].mean()
        assert found[name]["low"] - 0.02 < true < found[name]["high"] + 0.02
        assert found[name]["votes"] == (votes[:, a] >= 0).sum()


def test_confusions_are_named_and_uncertain_examples_go_to_whoever_knows_best() -> None:
    x, votes, clean = crowd(2000)
    swapped = (clean == 0) & (votes[:, 1] >= 0)
    votes[swapped, 1] = 2  # the second always takes 0 for 2
    made = audit_votes(x, votes, class_names=("0", "1", "2"), quiet=True).consensus
    assert made is not None
    (second,) = (one for one in made.annotators("012") if one["annotator"] == "1")
    assert second["confusions"].startswith("0 as 2 9")  # per cent
    again = [(i, who) for i, _, _, who in made.list_again()]
    voted = {(i, a) for i, a in zip(*np.nonzero(votes >= 0), strict=True)}
    assert not any((i, int(who)) in voted for i, who in again)
    others = [who for i, who in again if votes[i, 0] < 0]
    assert others.count("0") > 0.7 * len(others)  # the best, where they have not voted yet


def test_without_features_or_with_a_useless_prior_the_votes_alone_decide() -> None:
    x, votes, _ = crowd()
    generator = torch.Generator().manual_seed(0)
    nonsense = torch.rand(len(x), 3, generator=generator).softmax(1)
    made = agree(as_votes(votes), nonsense)
    alone = agree(as_votes(votes), torch.full((len(x), 3), 1 / 3))
    assert made.trust <= 0.5
    assert float((made.labels == alone.labels).double().mean()) > 0.97


def test_a_table_with_one_row_per_vote_gives_the_same_and_files_to_act_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, votes, _ = crowd(300)
    rows = [["photo", "worker", "label", "a", "b", "c"]]
    for i, a in zip(*np.nonzero(votes >= 0), strict=True):
        rows.append([f"p{i}", f"w{a}", ["red", "green", "blue"][votes[i, a]], *map(str, x[i])])
    np.random.default_rng(0).shuffle(rows[1:])
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    (tmp_path / "votes.csv").write_text(text.getvalue())
    command = ["audit", str(tmp_path / "votes.csv"), "--annotator", "worker", "--id", "photo"]
    assert main([*command, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "6 annotators, right w0 in" in capsys.readouterr().out
    people = read(tmp_path / "out" / "annotators.csv")
    assert people[0]["annotator"] == "w0"
    assert sum(int(one["votes"]) for one in people) == 900
    again = read(tmp_path / "out" / "label_again.csv")
    assert len(again) == 100
    assert {one["annotator"] for one in again} <= {f"w{a}" for a in range(6)}
    table = read(tmp_path / "out" / "audit.csv")
    assert {row["id"] for row in table} == {f"p{i}" for i in range(300)}
    made = audit_votes(x, votes, class_names=("red", "green", "blue"), quiet=True)
    same = {row["id"]: row["suggested"] for row in table}
    names = np.array(made.class_names)[made.suggested]
    assert np.mean([same[f"p{i}"] == names[i] for i in range(300)]) > 0.95  # columns are standardised
    page = (tmp_path / "out" / "audit.html").read_text()
    shown = json.loads(re.search(r'id="payload">(.*?)</script>', page)[1])
    votes = made.consensus.votes
    assert sum(map(len, shown["label"]["votes"])) == len(votes.label)
    assert {one["annotator"] for one in shown["summary"]["annotators"]} == {f"w{name}" for name in votes.annotators}
    assert all(share < 0.99 for _, _, share, _ in shown["label"]["again"])


def test_probabilities_are_no_votes() -> None:
    x, votes, _ = crowd()
    shares = np.random.default_rng(0).random(votes.shape).round(1)
    with pytest.raises(InputError, match=r"votes such as 0\.\d are .*audit_probabilities"):
        audit_votes(x, shares, quiet=True)


def test_of_voters_who_name_one_class_each_the_majority_counts_and_it_is_said() -> None:
    generator, (x, _, clean) = np.random.default_rng(0), crowd()
    rules = np.full((len(x), 6), -1)
    for a in range(6):  # each fires on a third of its class, and on a few others
        fires = generator.random(len(x)) < np.where(clean == a % 3, 0.5, 0.05)
        rules[fires, a] = a % 3
    voted = (rules >= 0).any(1)
    made = audit_votes(x[voted], rules[voted], quiet=True)
    assert "name one class each, so that their majority counts" in made.summary["method"]
    assert made.consensus is not None
    right = (made.consensus.labels.numpy() == clean[voted]).mean()
    assert right >= (made.given == clean[voted]).mean()
    wrong = made.given != clean[voted]
    assert wrong[made.order[:20]].mean() > 2 * wrong.mean()  # and its errors are looked for
    assert "name one class" not in audit_votes(*crowd()[:2], quiet=True).summary["method"]


def with_models(count: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two people who err on their own, and three models that nearly always make the same errors."""
    generator, (x, _, clean) = np.random.default_rng(0), crowd(count)

    def err(rate: float) -> np.ndarray:
        return np.where(generator.random(count) < rate, generator.integers(0, 3, count), clean)

    errors = np.where(generator.random(count) < 0.3, (clean + 1) % 3, clean)
    same = [np.where(generator.random(count) < 0.97, errors, generator.integers(0, 3, count)) for _ in range(3)]
    return x, np.stack([err(0.15), err(0.15), *same], 1), clean


def test_models_that_make_the_same_errors_are_no_independent_voters() -> None:
    x, votes, clean = with_models()
    made = audit_votes(x, votes, quiet=True)
    assert made.consensus is not None
    weights = made.consensus.weights.numpy()
    assert (weights[:2] == 1).all()
    assert weights[2:].sum() < 1.3
    assert (made.given == clean).mean() < 0.75  # the majority is theirs
    assert (made.consensus.labels.numpy() == clean).mean() > 0.93
    assert any("the same errors are made by 2, 3, 4" in note for note in made.summary["notes"])
    assert (audit_votes(*crowd()[:2], quiet=True).consensus.weights == 1).all()  # type: ignore[union-attr]


def test_agreement_is_cohens_kappa() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    _, votes, _ = crowd(each=6)
    found = compare_people(as_votes(votes))
    for a, b in ((0, 1), (2, 5)):
        assert found[a, b] == pytest.approx(metrics.cohen_kappa_score(votes[:, a], votes[:, b]))


def test_reviewed_labels_say_how_good_annotators_are() -> None:
    _, votes, clean = crowd(300)
    votes[:, 0] = np.where(clean == 0, 1, clean)  # the first always takes 0 for 1, and the others
    votes[:, 1:] = votes[:, :1]  # agree: without a review nobody can know
    even = torch.full((300, 3), 1 / 3)
    blind = agree(as_votes(votes), even)
    assert (blind.labels.numpy() == clean).mean() < 0.7
    known = agree(as_votes(votes), even, {i: int(clean[i]) for i in range(150)})
    assert (known.labels.numpy()[:150] == clean[:150]).all()
    first = next(one for one in known.annotators("012") if one["annotator"] == "0")
    assert first["confusions"].startswith("0 as 1")
    assert first["quality"] < 0.8


def test_decisions_are_held_against_the_audited_label_also_where_votes_tie(tmp_path: Path) -> None:
    x, votes, _ = crowd(300, each=2)
    labels = read_vote_array(votes, ["0", "1", "2"])
    made = audit(x, labels, quiet=True)
    rows = "".join(f"{i},{made.given[i]},keep,\n" for i in range(300))
    (tmp_path / "decisions.csv").write_text(f"id,given,decision,new_label\n{rows}")
    assert not audit(x, labels, decisions=tmp_path / "decisions.csv", quiet=True).contradicted.any()


def test_the_share_of_wrong_labels_is_told_by_predictions_that_know_no_decisions(tmp_path: Path) -> None:
    x, votes, clean = crowd(300, each=2)
    made = audit_votes(x, votes, budget=60, quiet=True)
    wrong = {int(i): bool(made.given[i] != clean[i]) for i in made.review.queue}
    rows = [
        f"{i},{made.given[i]},{f'relabel,{clean[i]}' if is_wrong else 'keep,'},{made.review.drawn[i]}\n"
        for i, is_wrong in wrong.items()
    ]
    (tmp_path / "decisions.csv").write_text("id,given,decision,new_label,drawn\n" + "".join(rows))
    again = audit_votes(x, votes, decisions=tmp_path / "decisions.csv", quiet=True)
    assert again.summary["error_rate"] == pytest.approx(made.review.decide(wrong).rate()._asdict())


def test_what_is_no_table_of_votes_is_refused() -> None:
    x, votes, _ = crowd(30)
    with pytest.raises(InputError, match="must be examples × annotators"):
        audit_votes(x, votes[:, 0], quiet=True)
    votes[7] = -1
    with pytest.raises(InputError, match=r"votes\[7\]: nobody labelled it"):
        audit_votes(x, votes, quiet=True)
