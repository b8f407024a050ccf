import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from bayesmooth.data import Labels, Source
from bayesmooth.train import Run
from bayesmooth.train.loop import Loop
from bayesmooth.train.splits import Splits
from reproduce import STUDIES
from reproduce.cost import SIZES
from reproduce.rows import read_table
from reproduce.scale import FULL, SMOKE

VERDICTS = {"reproduced", "direction only", "not reproduced", "not run"}
every_study = pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))


def test_every_figure_of_the_paper_has_a_study():
    assert {study.name: study.figure for study in STUDIES.values()} == {
        "illustration": "fig:illustration",
        "sigmoid-noise": "fig: guassian after sigmoid",  # the paper's own spelling
        "mnist-noise": "fig: mnist_noise_distribution",
        "ols-comparison": "fig: ols_comparison",
        "cifar10-noisy": "fig:cifar10_all",
        "cifar100-noisy": "fig:cifar100_all",
        "fixed-covariance": "fig:cifar100_fix_cov",
        "data-dependent": "fig:cifar10_inc_acc",
        "natural-noise": "fig: clothing1m_all",
        "hessian-init": "fig:cifar100_ivon_hess",
        "strategies": "",
        "structured": "",
        "demo": "",
    }


@every_study
def test_it_writes_a_picture_a_drawing_a_table_and_its_claims(study, smoke):
    files = {kind: smoke.out / f"{study.name}.{kind}" for kind in ("png", "svg", "csv", "json")}
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(files["svg"]).getroot().tag.endswith("svg")
    assert len(read_table(files["csv"]))
    content = json.loads(files["json"].read_text())
    assert content["command"] == "a command"
    assert content["runs"] >= len(study.recipes(SMOKE))
    assert content["missing"] == 0
    assert content["claims"]
    for claim in content["claims"]:
        assert claim["paper"]
        assert claim["measured"]
        assert claim["verdict"] in VERDICTS - {"not run"} or "κ = .4" in claim["paper"]


@every_study
def test_the_table_has_a_row_for_every_cell(study, smoke):
    table = read_table(smoke.out / f"{study.name}.csv")
    if study.measure is None:
        cells = [*study.cells(SMOKE), *study.more(SMOKE, table)]
        assert table["hash"].tolist() == [cell.recipe.hash for cell in cells]
        assert table["accuracy"].between(0, 1).all()


def test_self_knowledge_is_not_cross_entropy(smoke):
    nll = {
        (cell.loss, cell.method): Run.open(smoke.runs / cell.recipe.title).report()["test.nll"]
        for cell in STUDIES["strategies"].cells(SMOKE)
    }
    # Six digits would not tell: in two epochs the past has little to say.
    for method in ("SGD", "IVON"):
        assert nll["self-knowledge", method] != nll["cross-entropy", method]


def full_recipes():
    """Of what full scale trains, one with every optimizer on every data set, and one with every loss."""
    found = {}
    for study in STUDIES.values():
        for recipe in study.recipes(FULL):
            found.setdefault(f"{recipe.data.name}-{recipe.optimizer.name}", recipe)
            found.setdefault(recipe.loss.name, recipe)
    return found


@pytest.mark.parametrize("key", full_recipes())
def test_full_scale_takes_a_step(key):
    recipe = full_recipes()[key]
    count, _, classes, shape = SIZES[recipe.data.name]
    inputs = torch.randint(256, (2, *shape), dtype=torch.uint8)
    examples = Source(inputs, Labels(torch.tensor([0, 1]), tuple(map(str, range(classes)))))
    recipe = replace(
        recipe,
        data=replace(recipe.data, augment="none"),
        train=replace(recipe.train, batch_size=2),
    )
    if recipe.optimizer.name in ("ivon", "evon"):
        known = {**recipe.optimizer.options, "ess": count}
        if recipe.optimizer.name == "evon":
            known["max_side"] = 64  # the first bases of a ResNet's largest matrices take minutes
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, options=known))
    if "correction" in recipe.loss.name:
        known = {"transition": torch.eye(classes)}
        recipe = replace(recipe, loss=replace(recipe.loss, options=known))
    loop = Loop(recipe, Splits(examples, examples, None, None), torch.device("cpu"))
    before = next(loop.model.parameters()).clone()
    next(loop.steps())
    after = next(loop.model.parameters())
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)
