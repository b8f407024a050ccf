"""Finished runs are found by the hash of their recipe: it has all that decides a run, and nothing else."""

from pathlib import Path

import pytest

from bayesmooth.randomness import KERNELS
from bayesmooth.train import Recipe
from reproduce import STUDIES
from reproduce.study import SCALES
from reproduce.table import read_table

RESULTS = Path(__file__).parents[2] / "results"
TABLES = [
    path
    for scale in SCALES
    for path in sorted((RESULTS / scale).glob("*.csv"))
    if path.stem in STUDIES and STUDIES[path.stem].measure is None
]
AUTO = {"name": "ivon", "lr": 0.1}
SET = AUTO | {"hess_init": 1.0, "beta2": 0.999}
SGD = {"name": "sgd", "lr": 0.1}


def hash_of(optimizer):
    return Recipe.from_dict({"optimizer": optimizer}).hash


@pytest.mark.parametrize(("optimizer", "differs"), [(AUTO, True), (SET, True), (SGD, False)])
def test_the_hash_has_who_draws_the_noise(optimizer, differs, monkeypatch):
    before = hash_of(optimizer)
    monkeypatch.setattr("bayesmooth.train.recipe.KERNELS", False)
    assert (hash_of(optimizer) != before) == differs


@pytest.mark.parametrize(("optimizer", "differs"), [(AUTO, True), (SET, False), (SGD, False)])
def test_the_hash_has_the_rules_for_what_is_left_to_them(optimizer, differs, monkeypatch):
    before = hash_of(optimizer)
    monkeypatch.setattr("bayesmooth.optim.settings.A_CONSTANT", 7.0, raising=False)
    assert (hash_of(optimizer) != before) == differs


def test_the_defaults_of_torch_are_no_part_of_a_recipe():
    for name in ("sgd", "adamw", "sam"):
        kept = Recipe.from_dict({"optimizer": {"name": name, "lr": 0.1}}).optimizer.options
        assert not {"momentum", "foreach", "fused", "nesterov", "maximize"} & kept.keys()
    given = Recipe.from_dict({"optimizer": SGD | {"nesterov": True, "momentum": 0.9}})
    assert given.hash != hash_of(SGD | {"momentum": 0.9})


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_rows_of_the_stored_results_are_still_recognised(path):
    """A new option of a loss or an optimizer must leave the hashes of all recipes as they were: its default is None."""
    study, scale, table = STUDIES[path.stem], SCALES[path.parent.name], read_table(path)
    hashes = {cell.recipe.hash for cell in [*study.cells(scale), *study.more(scale, table)]}
    ours = table["method"].str.startswith(("IVON", "learned", "fixed"))
    rows = table if KERNELS else table[~ours]  # they were drawn by the C kernels
    assert set(rows["hash"]) <= hashes
