"""The table of methods: every loss with every optimizer, settings chosen by noisy validation labels."""

import pytest

from reproduce.figures import strategies
from reproduce.rows import make_table
from reproduce.scale import FEATURES


def row(noise, loss, method, accuracy, *, strength=0.0, validation=0.5, seed=0):
    labels = {"data": "cifar10-10000", "noise": noise, "loss": loss, "method": method}
    figures = {"accuracy": accuracy, "nll": 1.0, "ece": 0.1, "memorised": 0.5}
    return {**labels, "strength": strength, "seed": seed, "validation": validation, **figures}


@pytest.fixture
def table():
    """IVON alone is never best and never far behind; GCE wins where its better setting is not chosen."""
    return make_table(
        [
            row("a", "ce", "SGD", 0.5),
            row("a", "ce", "IVON", 0.69),
            row("a", "GCE", "SGD", 0.7),
            row("a", "GCE", "IVON", 0.6),
            row("b", "ce", "SGD", 0.9),
            row("b", "ce", "IVON", 0.88),
            row("b", "GCE", "SGD", 0.6, validation=0.6),
            row("b", "GCE", "SGD", 0.95, strength=1.0, validation=0.5),
            row("b", "GCE", "IVON", 0.7),
        ]
    )


def test_settings_are_chosen_by_validation_and_not_by_the_test_set(table):
    chosen = strategies.keep_chosen(table).query(
        "noise == 'b' and loss == 'GCE' and method == 'SGD'"
    )
    assert chosen["accuracy"].tolist() == [0.6]


def test_regret_is_the_mean_distance_to_the_best_pair(table):
    found = strategies.find_regrets(table)
    assert (found.index[0], found.iloc[0]) == (("ce", "IVON"), pytest.approx(0.015))
    assert found["GCE", "SGD"] == pytest.approx(0.15)
    claim = strategies.claims(table)[1]
    assert claim.verdict == "reproduced"
    assert claim.measured.startswith("ce with IVON: 1.5 points; ")
    assert strategies.summarise(table)[1][:5] == ["ce", "IVON", "1.5", "69.0", "88.0"]


def test_a_pair_that_a_noise_lacks_has_no_regret(table):
    assert ("GCE", "IVON") not in strategies.find_regrets(table[:-1]).index


def test_the_figure_of_several_noises_is_drawn(table, tmp_path):
    strategies.draw(table, tmp_path / "strategies")
    assert (tmp_path / "strategies.png").stat().st_size > 10_000


def test_every_method_meets_every_optimizer_under_every_noise():
    cells = strategies.cells(FEATURES)
    pairs = {(c.noise, c.loss, c.method) for c in cells}
    assert len(pairs) == len(FEATURES.compared) * len(strategies.SETTINGS) * 3
    assert len({c.recipe.hash for c in cells}) == len(cells)
    for cell in cells:
        assert (cell.recipe.data.mixup is not None) == (cell.loss == "mixup")


def test_further_seeds_are_those_of_the_chosen_settings():
    table = make_table(
        [
            row("clean", "GCE", "IVON", 0.5, validation=0.4),
            row("clean", "GCE", "IVON", 0.5, strength=1.0, validation=0.6),
        ]
    )
    found = strategies.more(FEATURES, table)
    assert [c.seed for c in found] == list(FEATURES.more_seeds)
    assert {c.recipe.loss.options["q"] for c in found} == {0.9}
