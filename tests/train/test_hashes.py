"""Finished runs are found by the hash of their recipe: it must not change, or they would all be trained again."""

from pathlib import Path

import pytest

from bayesmooth.train import Recipe
from bayesmooth.train.recipe import shipped_recipes
from reproduce import STUDIES
from reproduce.rows import read_table
from reproduce.scale import SCALES

RESULTS = Path(__file__).parents[2] / "results"
KNOWN = {
    "cifar10-symmetric-ls": "8b7bc7df8ce4",
    "cifar10-symmetric-sam": "63155020803e",
    "cifar10-symmetric-ivon": "0824569ec4d2",
    "cifar10-pairflip-ls": "37bbfdfa673e",
    "cifar10-pairflip-sam": "e639baae8e1e",
    "cifar10-pairflip-ivon": "ee6aef977264",
    "cifar10-datadependent-ls": "48948a72a045",
    "cifar10-datadependent-sam": "de9c3574918b",
    "cifar10-datadependent-ivon": "d51434432889",
    "cifar100-symmetric20-ls": "752bca7f2d58",
    "cifar100-symmetric20-sam": "b06b309979a6",
    "cifar100-symmetric20-ivon": "a9afc08bb038",
    "cifar100-symmetric40-ls": "3d3188f8eb9b",
    "cifar100-symmetric40-sam": "8cf8a51590b7",
    "cifar100-symmetric40-ivon": "b30e5830b333",
    "cifar100-pairflip20-ls": "152440a62fca",
    "cifar100-pairflip20-sam": "6715da2bba20",
    "cifar100-pairflip20-ivon": "8ad4df811891",
    "clothing1m-ls": "0da29332d0ff",
    "clothing1m-sam": "296f7f422de1",
    "clothing1m-ivon": "fa092cdc9f1f",
    "digits-ce": "c0418ad2d244",
    "digits-ls": "c2a8fe57f055",
    "digits-sam": "0f9f1961de9e",
    "digits-ivon": "b20dbf570bcb",
    "mnist-ce": "ddae65dfa443",
    "mnist-ls": "e41c4345eb77",
    "mnist-sam": "9cf974480233",
    "mnist-ivon": "76b13af194da",
    "own": "5d8575cea98d",
}
TABLES = [
    path
    for scale in SCALES
    for path in sorted((RESULTS / scale).glob("*.csv"))
    if STUDIES[path.stem].measure is None
]


def test_shipped_recipes_have_the_hashes_that_they_had():
    found = {name: Recipe.load(name).hash for name in shipped_recipes()}
    assert KNOWN.items() <= found.items()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_row_of_the_stored_results_is_still_recognised(path):
    study, scale, table = STUDIES[path.stem], SCALES[path.parent.name], read_table(path)
    cells = [*study.cells(scale), *study.more(scale, table)]
    assert set(table["hash"]) <= {cell.recipe.hash for cell in cells}
