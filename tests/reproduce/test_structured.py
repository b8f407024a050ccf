import pytest
import torch

from reproduce.figures import structured
from reproduce.rows import make_table
from reproduce.scale import DEMO, FEATURES


def regression(data, method, distance):
    return {
        "data": data,
        "method": method,
        "distance": distance,
        "variance_rank": 1 - distance,
        "noise_rank": 1 - distance,
    }


def run(noise, method, seed, accuracy):
    figures = {"accuracy": accuracy + seed / 1000, "at_mean": accuracy, "memorised": 0.1}
    facts = {"noise": noise, "method": method, "seed": seed, "data": "digits"}
    return {**facts, **figures, "nll": 1 - accuracy, "ece": 0.1, "seconds": 2.0}


def test_verdicts_come_from_the_regressions_and_from_the_runs():
    fits = [regression(d, m, v) for d in "ab" for m, v in (("IVON", 0.9), ("EVON", 0.2))]
    runs = [run("κ = 0.3", m, s, v) for s in (0, 1) for m, v in (("IVON", 0.9), ("EVON", 0.8))]
    verdicts = [claim.verdict for claim in structured.claims(make_table(runs + fits))]
    assert verdicts == ["reproduced"] * 3 + ["not reproduced"] * 2
    head, first, *_ = structured.summarise(make_table(runs + fits))
    assert first[:3] == ["κ = 0.3", "IVON", "90.1 ± 0.1 %"]
    assert len(head) == len(first)


@pytest.mark.parametrize("scale", [DEMO, FEATURES], ids=lambda scale: scale.name)
def test_both_methods_differ_in_nothing_but_the_optimizer(scale):
    cells = structured.cells(scale)
    for ours, theirs in zip(cells[1::2], cells[::2], strict=True):
        one, other = ours.recipe.to_dict(), theirs.recipe.to_dict()
        shared = one["optimizer"].keys() & other["optimizer"].keys() - {"name"}
        assert {k: one["optimizer"][k] for k in shared} == {
            k: other["optimizer"][k] for k in shared
        }
        one.pop("optimizer"), other.pop("optimizer")
        assert one == other


@pytest.mark.parametrize("name", structured.SETS)
def test_every_data_set_has_two_classes_and_finite_features(name):
    features, labels = structured.load_two_classes(name)
    assert features.isfinite().all()
    assert 0.2 < labels.double().mean() < 0.8
    assert torch.equal(features[:, -1], torch.ones(len(labels), dtype=torch.float64))
