import json
from dataclasses import replace

import pytest
import torch

from bayesmooth.data import Labels, Source
from bayesmooth.train import Splits
from bayesmooth.train.loop import Loop
from reproduce import STUDIES
from reproduce.study import SCALES, TEXTS
from reproduce.style import write_paper
from reproduce.table import read_table

FULL, SMOKE = (SCALES["full"], SCALES["smoke"])

CLASSES = {"cifar100": 100, "clothing1m": 14}
SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
SHAPES["clothing1m"] = (3, 224, 224)
VERDICTS = {"reproduced", "direction only", "not reproduced", "not run"}
every_study = pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))


def test_every_figure_of_the_paper_has_a_study():
    assert {name: TEXTS[name].get("figure") for name in STUDIES} == {
        "illustration": "fig:illustration",
        "second-order": "sec: newton on GLM",
        "sigmoid-noise": "fig: guassian after sigmoid",  # the paper's own spelling
        "mnist-noise": "fig: mnist_noise_distribution",
        "ols-comparison": "fig: ols_comparison",
        "cifar10-noisy": "fig:cifar10_all",
        "cifar100-noisy": "fig:cifar100_all",
        "fixed-covariance": "fig:cifar100_fix_cov",
        "data-dependent": "fig:cifar10_inc_acc",
        "natural-noise": "fig: clothing1m_all",
        "hessian-init": "fig:cifar100_ivon_hess",
        "demo": None,
    }


@every_study
def test_it_writes_a_picture_a_table_and_its_claims(study, smoke):
    files = {kind: smoke.out / f"{study.name}.{kind}" for kind in ("png", "csv", "json")}
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert len(read_table(files["csv"]))
    content = json.loads(files["json"].read_text())
    assert content["command"] == "a command"
    assert content["runs"] >= len({cell.recipe.hash for cell in study.cells(SMOKE)})
    assert content["missing"] == 0
    assert content["claims"]
    for claim in content["claims"]:
        assert claim["says"]
        assert claim["measured"]
        assert claim["verdict"] in VERDICTS - {"not run"} or "κ = .4" in claim["says"]


@every_study
def test_the_table_has_a_row_for_every_cell(study, smoke):
    table = read_table(smoke.out / f"{study.name}.csv")
    if study.measure is None:
        cells = [*study.cells(SMOKE), *study.more(SMOKE, table)]
        assert table["hash"].tolist() == [cell.recipe.hash for cell in cells]
        assert table["accuracy"].between(0, 1).all()


def full_recipes():
    """Of what full scale trains, one with every optimizer on every data set, and one with every loss."""
    found = {}
    for study in STUDIES.values():
        for recipe in (cell.recipe for cell in study.cells(FULL)):
            found.setdefault(f"{recipe.data.name}-{recipe.optimizer.name}", recipe)
            found.setdefault(recipe.loss.name, recipe)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("key", full_recipes())
def test_full_scale_takes_a_step(key):
    recipe = full_recipes()[key]
    classes, shape = CLASSES.get(recipe.data.name, 10), SHAPES[recipe.data.name]
    inputs = torch.randint(256, (2, *shape), dtype=torch.uint8)
    examples = Source(inputs, Labels(torch.tensor([0, 1]), tuple(map(str, range(classes)))))
    recipe = replace(recipe, data=replace(recipe.data, augment="none"), train=replace(recipe.train, batch_size=2))
    if recipe.optimizer.name == "ivon":
        known = {**recipe.optimizer.options, "ess": 50_000}
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, options=known))
    loop = Loop(recipe, Splits(examples, examples, None, None), torch.device("cpu"))
    before = next(loop.model.parameters()).clone()
    next(loop.steps())
    after = next(loop.model.parameters())
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)


def test_smoothing_and_sam_of_strength_zero_are_one_run_with_every_seed(smoke):
    table = read_table(smoke.out / "cifar10-noisy.csv")
    plain = table[table["strength"] == 0].groupby("method")["hash"]
    assert plain.get_group("LS").tolist() == plain.get_group("SAM").tolist()


def test_one_page_has_all_verdicts_and_every_study(smoke):
    page = (smoke.out / "index.html").read_text()
    first = page.partition("<section")[0]
    assert "<p>of the paper: " in first
    for name in STUDIES:
        assert f"href='#{name}'" in first
        assert f"<section id='{name}'" in page
        assert f"src='{name}.png'" in page
    assert "src='http" not in page


def test_the_paper_page_has_each_caption_with_its_figure_and_no_claim_of_ours(smoke, tmp_path):
    (tmp_path / "laptop").symlink_to(smoke.out)
    write_paper(tmp_path)
    text = (tmp_path / "paper.md").read_text()
    for name, texts in (each for each in TEXTS.items() if "caption" in each[1]):
        assert f"> {texts['caption']}" in text
        assert f"(laptop/{name}.png)" in text
    assert "by noisy validation" not in text
