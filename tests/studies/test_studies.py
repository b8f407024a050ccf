import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from bayesmooth.data import Examples
from bayesmooth.studies import STUDIES, table
from bayesmooth.studies.cost import DATA, steps
from bayesmooth.studies.reproduce import redraw
from bayesmooth.studies.scale import FULL, LAPTOP, SMOKE, beta2, named
from bayesmooth.training.distributed import ALONE
from bayesmooth.training.loop import Loop
from bayesmooth.training.splits import Splits
from bayesmooth.training.state import begin

VERDICTS = {"reproduced", "direction only", "not reproduced", "not run"}
every_study = pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))


def test_every_figure_of_the_paper_has_a_study():
    figures = {study.figure for study in STUDIES.values()}
    assert len(STUDIES) == 11
    assert {
        "fig:illustration",
        "fig:cifar10_all",
        "fig:cifar100_all",
        "fig:cifar10_inc_acc",
    } < figures


@every_study
def test_it_writes_a_picture_a_drawing_a_table_and_its_claims(study, smoke):
    files = {kind: smoke.out / f"{study.name}.{kind}" for kind in ("png", "svg", "csv", "json")}
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(files["svg"]).getroot().tag.endswith("svg")
    assert table.read(files["csv"])
    content = json.loads(files["json"].read_text())
    assert content["command"] == "a command"
    assert content["runs"] == len(study.recipes(SMOKE))
    assert content["claims"]
    for claim in content["claims"]:
        assert claim["paper"]
        assert claim["measured"]
        assert claim["verdict"] in VERDICTS - {"not run"} or "κ = .4" in claim["paper"]


@every_study
def test_the_table_has_a_row_for_every_cell(study, smoke):
    rows = table.read(smoke.out / f"{study.name}.csv")
    if study.measure is table.figures:
        assert len(rows) == len(study.cells(SMOKE))
        assert all(0 <= row["accuracy"] <= 1 for row in rows)


@pytest.mark.parametrize("name", ["natural-noise", "mnist-noise"])
def test_the_same_figure_comes_from_the_csv_alone(name, smoke, tmp_path):
    study = STUDIES[name]
    for kind in ("csv", "svg"):
        (tmp_path / f"{study.name}.{kind}").write_bytes(
            (smoke.out / f"{study.name}.{kind}").read_bytes()
        )
    before = (tmp_path / f"{study.name}.svg").read_text()
    redraw(study, tmp_path, {"scale": "smoke", "command": "", "runs": 0, "seconds": 0})
    assert (tmp_path / f"{study.name}.svg").read_text() == before


def test_one_page_shows_every_study(smoke):
    page = (smoke.out / "index.html").read_text()
    for study in STUDIES.values():
        assert f"id='{study.name}'" in page
    assert page.count("data:image/png;base64,") == len(STUDIES)
    assert "src='http" not in page


def test_what_was_not_run_is_not_judged(tmp_path, smoke):
    study = STUDIES["cifar10-noisy"]
    rows = [row for row in table.read(smoke.out / "cifar10-noisy.csv") if row["method"] != "IVON"]
    verdicts = {claim.paper: claim.verdict for claim in study.claims(rows)}
    assert verdicts["SAM is sensitive to ρ"] != "not run"
    assert [v for p, v in verdicts.items() if "IVON" in p] == ["not run"] * 5


def test_equal_places_share_a_run():
    cells = STUDIES["cifar10-noisy"].cells(LAPTOP)
    shared = [c for c in cells if c.labels["strength"] == 0 and c.labels["seed"] == 0]
    assert len(shared) == 6
    assert len({cell.recipe.hash for cell in shared}) == 3


def test_laptop_keeps_the_whole_grids():
    strengths = {m: set() for m in ("LS", "SAM", "IVON")}
    for cell in STUDIES["data-dependent"].cells(LAPTOP):
        strengths[cell.labels["method"]].add(cell.labels["strength"])
    assert strengths["LS"] == {0, 0.1, 0.3, 0.5, 0.7, 0.9}
    assert strengths["SAM"] == {0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.5}
    assert len(LAPTOP.seeds) >= 2


def test_the_hessian_forgets_its_start_at_laptop_scale_as_at_full_scale():
    for scale in (LAPTOP, FULL):
        recipe = next(
            c.recipe for c in STUDIES["cifar10-noisy"].cells(scale) if c.labels["method"] == "IVON"
        )
        assert (1 - recipe.optimizer.options["beta2"]) * steps(recipe) == pytest.approx(2)


def test_full_scale_is_the_papers():
    cells = STUDIES["cifar100-noisy"].cells(FULL)
    ivon = {c.labels["noise"]: c.recipe for c in cells if c.labels["method"] == "IVON"}
    for noise, lr, h0, decay in (
        ("symmetric 20 %", 0.8, 0.2, 2e-4),
        ("symmetric 40 %", 0.8, 0.2, 2e-4),
        ("pairflip 20 %", 0.5, 0.5, 5e-4),
    ):
        options = ivon[noise].optimizer.options
        assert (options["lr"], options["hess_init"], options["weight_decay"]) == (lr, h0, decay)
        assert ivon[noise].model.name == "resnet34"
        assert (ivon[noise].train.epochs, ivon[noise].train.batch_size) == (200, 50)
    assert {cell.labels["seed"] for cell in cells} == {0, 1, 2, 3, 4}
    ten = {c.labels["method"]: c.recipe for c in STUDIES["cifar10-noisy"].cells(FULL)}
    assert ten["SAM"].optimizer.options["lr"] == 0.05
    assert ten["IVON"].optimizer.options["hess_init"] == 0.9
    assert ten["IVON"].optimizer.options["beta2"] == 0.99999
    assert ten["IVON"].schedule.options["warmup"] == 5 / 200


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
    count, _, classes, shape = DATA[recipe.data.name]
    inputs = torch.randint(256, (2, *shape), dtype=torch.uint8)
    examples = Examples(inputs, torch.tensor([0, 1]), tuple(map(str, range(classes))))
    recipe = replace(
        recipe,
        data=replace(recipe.data, augment="none"),
        train=replace(recipe.train, batch_size=2),
    )
    if recipe.optimizer.name == "ivon":
        known = {**recipe.optimizer.options, "ess": count}
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, options=known))
    if "correction" in recipe.loss.name:
        known = {"transition": torch.eye(classes)}
        recipe = replace(recipe, loss=replace(recipe.loss, options=known))
    state = begin(recipe, Splits(examples, examples, None, None), torch.device("cpu"))
    loop = Loop(recipe, Splits(examples, examples, None, None), state, torch.device("cpu"), ALONE)
    before = next(state.model.parameters()).clone()
    next(loop.steps())
    after = next(state.model.parameters())
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)


def test_beta2_of_the_papers_run_is_the_papers():
    assert beta2(200 * 1000) == pytest.approx(1 - 1e-5)


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="must be one of smoke, laptop, full"):
        named("huge")


def test_a_table_survives_its_csv(tmp_path):
    rows = [
        {"method": "LS", "strength": 0.1, "accuracy": 0.123456789, "validation": None, "noise": "1"}
    ]
    table.write(rows, tmp_path / "t.csv")
    assert table.read(tmp_path / "t.csv") == [
        {"method": "LS", "strength": 0.1, "accuracy": 0.123457, "validation": None, "noise": "1"}
    ]
