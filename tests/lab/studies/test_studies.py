import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.lab import Run
from bayesmooth.lab.loop import Loop
from bayesmooth.lab.splits import Splits
from bayesmooth.lab.studies import STUDIES
from bayesmooth.lab.studies.cost import DATA
from bayesmooth.lab.studies.methods import EARLY
from bayesmooth.lab.studies.page import write_page
from bayesmooth.lab.studies.reproduce import (
    Folders,
    change_cells,
    publish,
    redraw,
    reproduce,
    tabulate,
)
from bayesmooth.lab.studies.rows import find_best, make_table, read_table, write_table
from bayesmooth.lab.studies.scale import FEATURES, FULL, LAPTOP, OVERNIGHT, SMOKE, find_scale

RESULTS = Path(__file__).parents[3] / "results"
FACTS = {"scale": "smoke", "command": "", "runs": 0, "seconds": 0}
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


@pytest.mark.parametrize("name", ["natural-noise", "mnist-noise"])
def test_the_same_figure_comes_from_the_csv_alone(name, smoke, tmp_path):
    study = STUDIES[name]
    for kind in ("csv", "svg"):
        (tmp_path / f"{study.name}.{kind}").write_bytes(
            (smoke.out / f"{study.name}.{kind}").read_bytes()
        )
    before = (tmp_path / f"{study.name}.svg").read_text()
    redraw(study, tmp_path, FACTS)
    assert (tmp_path / f"{study.name}.svg").read_text() == before


def test_the_page_begins_with_all_verdicts_and_the_way_to_each_study(smoke):
    page = (smoke.out / "index.html").read_text()
    claims = [json.loads(path.read_text())["claims"] for path in smoke.out.glob("*.json")]
    first = page.partition("<section")[0]
    assert f"<p>{sum(map(len, claims))} claims: " in first
    for name in STUDIES:
        assert f"href='#{name}'" in first
        assert f"<section id='{name}'" in page


def test_where_a_run_is_missing_nothing_is_judged(smoke, tmp_path):
    study = STUDIES["cifar10-noisy"]
    (tmp_path / f"{study.name}.csv").write_bytes((smoke.out / f"{study.name}.csv").read_bytes())
    redraw(study, tmp_path, {**FACTS, "missing": 1})
    content = json.loads((tmp_path / f"{study.name}.json").read_text())
    assert {claim["verdict"] for claim in content["claims"]} == {"not run"}
    assert "1 runs missing" in (tmp_path / "index.html").read_text()


def test_the_number_of_missing_runs_is_counted(smoke, tmp_path):
    study = STUDIES["natural-noise"]
    cells = study.cells(SMOKE)
    copies = shutil.copytree(smoke.runs, tmp_path / "runs")
    shutil.rmtree(copies / cells[-1].recipe.title)
    folders = Folders(tmp_path, copies)
    publish(study, SMOKE, cells, tabulate(study, cells, folders), folders)
    content = json.loads((tmp_path / f"{study.name}.json").read_text())
    assert (content["missing"], content["runs"]) == (1, len(study.recipes(SMOKE)) - 1)


def test_rows_of_an_earlier_table_are_kept_and_not_trained_again(smoke, tmp_path):
    study = STUDIES["natural-noise"]
    shutil.copy(smoke.out / f"{study.name}.csv", tmp_path)
    before = (tmp_path / f"{study.name}.csv").read_text()
    reproduce(study, SMOKE, Folders(tmp_path, tmp_path / "runs"), None)  # nothing could train
    assert (tmp_path / f"{study.name}.csv").read_text() == before


def test_ctrl_c_leaves_the_figure_of_what_has_run(smoke, tmp_path, monkeypatch):
    study = STUDIES["natural-noise"]
    copies = shutil.copytree(smoke.runs, tmp_path / "runs")
    shutil.rmtree(copies / study.cells(SMOKE)[-1].recipe.title)

    def stopped(*given, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesmooth.lab.studies.reproduce.sweep", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(study, SMOKE, Folders(tmp_path, copies), None)
    content = json.loads((tmp_path / f"{study.name}.json").read_text())
    assert content["missing"] == 1
    assert {claim["verdict"] for claim in content["claims"]} == {"not run"}
    assert (tmp_path / f"{study.name}.png").exists()
    before = (tmp_path / f"{study.name}.csv").read_text()
    kept = replace(study, cells=lambda scale: study.cells(scale)[:1])  # as with other settings
    monkeypatch.setattr("bayesmooth.lab.studies.reproduce._train", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(kept, SMOKE, Folders(tmp_path, copies), None)
    assert (tmp_path / f"{study.name}.csv").read_text() == before


def test_label_noise_is_measured_once(smoke, tmp_path):
    study, calls = STUDIES["mnist-noise"], []

    def measure(finished):
        calls.append(finished)
        return study.measure(finished)

    counting = replace(study, measure=measure)
    with ThreadPoolExecutor(1) as executor:
        reproduce(counting, SMOKE, Folders(tmp_path, smoke.runs), executor, quiet=True)
    assert [finished.quiet for finished in calls] == [True]


def test_what_the_grids_chose_gets_more_seeds(smoke):
    table = read_table(smoke.out / "natural-noise.csv")
    for method in ("LS", "SAM"):
        own = table[table["method"] == method]
        for by in ("accuracy", "validation"):
            _, values = find_best(own, by)
            assert len(values) == len(SMOKE.seeds + SMOKE.more_seeds)
        assert own["seed"].nunique() == 2


def test_sgd_has_as_many_seeds_as_early_stopping_though_another_rate_is_better(smoke):
    study, key = STUDIES["natural-noise"], ("LS", 0.0)
    table = read_table(smoke.out / "natural-noise.csv")
    plain = (table["method"] == key[0]) & (table["strength"] == key[1])
    table.loc[plain, ["accuracy", "validation"]] = 0.0
    labels = [cell.labels for cell in study.more(SMOKE, table)]
    seeds = [each["seed"] for each in labels if (each["method"], each["strength"]) == key]
    assert seeds == list(SMOKE.more_seeds)


def test_stopping_early_takes_the_epoch_that_noisy_validation_labels_like_best(smoke):
    cell = next(c for c in STUDIES["natural-noise"].cells(SMOKE) if c.labels["method"] == EARLY)
    records = Run.open(smoke.runs / cell.recipe.title).metrics()
    best = max(records, key=lambda record: record["validation.accuracy"])
    table = read_table(smoke.out / "natural-noise.csv")
    row = table[table["method"] == EARLY].iloc[0]
    assert row["accuracy"] == pytest.approx(best["test.accuracy"], rel=1e-5)
    assert len(records) > 1


def test_a_diverged_run_counts_as_chance_and_is_told(smoke, tmp_path):
    study = STUDIES["natural-noise"]
    cells = study.cells(SMOKE)
    copies = shutil.copytree(smoke.runs, tmp_path / "runs")
    Run.open(copies / cells[0].recipe.title).set_status("diverged")
    folders = Folders(tmp_path, copies)
    publish(study, SMOKE, cells, tabulate(study, cells, folders), folders)
    assert json.loads((tmp_path / f"{study.name}.json").read_text())["diverged"] == 1
    first = read_table(tmp_path / f"{study.name}.csv").iloc[0]
    assert first["accuracy"] == pytest.approx(0.1)
    assert first["nll"] == pytest.approx(math.log(10), rel=1e-5)


def test_averaged_predictions_are_what_counts_for_ivon(smoke):
    cell = STUDIES["natural-noise"].cells(SMOKE)[0]
    report = Run.open(smoke.runs / cell.recipe.title).report()
    row = read_table(smoke.out / "natural-noise.csv").iloc[0]
    assert row["method"] == "IVON"
    assert row["nll"] == pytest.approx(report["averaged.nll"], rel=1e-5)
    assert row["nll"] != pytest.approx(report["test.nll"], rel=1e-5)
    assert row["at_mean"] == pytest.approx(report["test.accuracy"], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "setting", "why"),
    [
        ("cifar10-noisy", "corruption.rate=0.01", "noise and seeds"),
        ("strategies", "train.seed=7", "noise and seeds"),
        ("fixed-covariance", "optimizer.hess_init=.5", "makes runs equal"),
    ],
)
def test_a_setting_that_would_make_labels_lie_is_refused(name, setting, why):
    with pytest.raises(InputError, match=why):
        change_cells(STUDIES[name].cells(SMOKE), [setting])


def test_a_setting_that_touches_no_label_is_in_every_recipe():
    cells = change_cells(STUDIES["cifar10-noisy"].cells(SMOKE), ["train.epochs=3"])
    assert {cell.recipe.train.epochs for cell in cells} == {3}


def test_a_place_that_cannot_be_written_is_refused_before_any_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be made.*choose another place"):
        reproduce(
            STUDIES["natural-noise"], SMOKE, Folders(tmp_path / "file", tmp_path / "runs"), None
        )
    assert not (tmp_path / "runs").exists()


def test_files_that_are_not_a_studys_or_are_torn_do_not_spoil_the_page(smoke, tmp_path):
    for name in ("natural-noise", "mnist-noise"):
        for kind in ("json", "png"):
            source = smoke.out / f"{name}.{kind}"
            (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "notes.json").write_text("[]")
    (tmp_path / "mnist-noise.json").write_text('{"study": "mn')
    page = write_page(tmp_path, STUDIES).read_text()
    assert "id='natural-noise'" in page
    assert "mnist-noise</h2><p>Its files are damaged" in page


def test_one_page_shows_every_study(smoke):
    page = (smoke.out / "index.html").read_text()
    for study in STUDIES.values():
        assert f"id='{study.name}'" in page
        assert f"src='{study.name}.png'" in page
    assert "src='http" not in page


def test_what_was_not_run_is_not_judged(tmp_path, smoke):
    study = STUDIES["cifar10-noisy"]
    table = read_table(smoke.out / "cifar10-noisy.csv").query("method != 'IVON'")
    verdicts = {claim.paper: claim.verdict for claim in study.claims(table)}
    assert verdicts["SAM is sensitive to ρ"] != "not run"
    assert [v for p, v in verdicts.items() if "IVON" in p] == ["not run"] * 6


def test_equal_places_share_a_run():
    cells = STUDIES["cifar10-noisy"].cells(LAPTOP)
    shared = [c for c in cells if c.labels["strength"] == 0 and c.labels["seed"] == 0]
    assert len(shared) == 6
    assert len({cell.recipe.hash for cell in shared}) == 3


@pytest.mark.parametrize("scale", [LAPTOP, OVERNIGHT, FEATURES])
def test_smaller_scales_keep_the_papers_regime(scale):
    """Batch norm, the paper's learning rates and weight decay, one schedule for all methods, one h₀."""
    cells = STUDIES["data-dependent"].cells(scale)
    rates = {"sgd": 0.05, "sam": 0.05, "ivon": 0.2}
    for cell in cells:
        options = cell.recipe.optimizer.options
        assert options["lr"] == rates[cell.recipe.optimizer.name]
        assert options["weight_decay"] == 1e-3
        model = cell.recipe.model
        assert model.name == "cnn_batchnorm" or model.options["batchnorm"]
        assert (cell.recipe.schedule.name, cell.recipe.schedule.options["warmup"]) == (
            "cosine",
            0.05,
        )
    ours = [c.recipe.optimizer.options["hess_init"] for c in cells if c.labels["method"] == "IVON"]
    assert len(set(ours)) == 1


def test_laptop_has_two_seeds_of_every_grid_and_five_of_what_is_compared():
    cells = STUDIES["data-dependent"].cells(LAPTOP)
    seeds = {}
    for cell in cells:
        seeds.setdefault(cell.labels["method"], set()).add(cell.labels["seed"])
    assert {method: len(found) for method, found in seeds.items()} == {
        "IVON": 5,
        EARLY: 5,
        "LS": 2,
        "SAM": 2,
        "IVON, h₀": 2,
    }


def test_the_hessian_forgets_its_start_at_laptop_scale_as_at_full_scale():
    for scale in (LAPTOP, OVERNIGHT, FULL):
        recipe = next(
            c.recipe for c in STUDIES["cifar10-noisy"].cells(scale) if c.labels["method"] == "IVON"
        )
        examples = (recipe.data.limit or 50_000) * (1 - recipe.data.validation)
        steps = recipe.train.epochs * examples / recipe.train.batch_size
        assert (1 - recipe.optimizer.options["beta2"]) * steps == pytest.approx(2)


SYMMETRIC, HALF, PAIRS = "symmetric 20 %", "symmetric 40 %", "pairflip 20 %"
APPENDIX = [  # study, noise, method, learning rate, weight decay
    *(("cifar10-noisy", n, m, 0.05, 1e-3) for n in (SYMMETRIC, HALF, PAIRS) for m in ("LS", "SAM")),
    *(("cifar10-noisy", n, "IVON", 0.2, 1e-3) for n in (SYMMETRIC, HALF, PAIRS)),
    *(("data-dependent", f"κ = 0.{k}", m, 0.05, 1e-3) for k in range(1, 6) for m in ("LS", "SAM")),
    *(("data-dependent", f"κ = 0.{k}", "IVON", 0.2, 1e-3) for k in range(1, 6)),
    ("cifar100-noisy", SYMMETRIC, "LS", 0.1, 2e-4),
    ("cifar100-noisy", HALF, "LS", 0.1, 2e-4),
    ("cifar100-noisy", PAIRS, "LS", 0.1, 5e-4),
    ("cifar100-noisy", SYMMETRIC, "SAM", 0.05, 2e-4),
    ("cifar100-noisy", HALF, "SAM", 0.1, 2e-4),
    ("cifar100-noisy", PAIRS, "SAM", 0.1, 5e-4),
    ("cifar100-noisy", SYMMETRIC, "IVON", 0.8, 2e-4),
    ("cifar100-noisy", HALF, "IVON", 0.8, 2e-4),
    ("cifar100-noisy", PAIRS, "IVON", 0.5, 5e-4),
]


@pytest.mark.parametrize(("study", "noise", "method", "lr", "decay"), APPENDIX)
def test_full_scale_is_the_papers_appendix(study, noise, method, lr, decay):
    labels = {"noise": noise, "method": method}
    cells = [c for c in STUDIES[study].cells(FULL) if labels.items() <= c.labels.items()]
    assert {cell.labels["seed"] for cell in cells} == {0, 1, 2, 3, 4}
    for recipe in (cell.recipe for cell in cells):
        assert recipe.model.name == "resnet34"
        assert (recipe.train.epochs, recipe.train.batch_size) == (200, 50)
        options = recipe.optimizer.options
        assert (options["lr"], options["weight_decay"]) == (lr, decay)
        if method == "IVON":
            first = 0.9 if "cifar100" not in study else 0.5 if noise == PAIRS else 0.2
            assert (options["hess_init"], options["beta2"]) == (first, 1 - 1e-5)
            assert (recipe.schedule.name, recipe.schedule.options["warmup"]) == ("cosine", 5 / 200)
            assert options["beta1"] == 0.9
            assert "ess" not in options  # so it is the number of training examples
        else:
            assert options["momentum"] == 0.9
            assert recipe.schedule.name == "steps"
    strengths = {cell.labels["strength"] for cell in cells}
    assert (
        strengths
        == {
            "LS": {0, 0.1, 0.3, 0.5, 0.7, 0.9},
            "SAM": {0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.5},
            "IVON": {None},
        }[method]
    )


def test_a_fixed_covariance_has_a_beta2_of_one():
    for cell in STUDIES["fixed-covariance"].cells(FULL):
        fixed = cell.labels["method"] == "fixed Σ"
        assert cell.recipe.optimizer.options["beta2"] == (1 if fixed else 1 - 1e-5)
        assert cell.recipe.optimizer.options["hess_init"] == cell.labels["strength"]


def test_what_learns_from_its_past_has_one_in_time():
    for scale in (SMOKE, LAPTOP, FULL):
        for cell in STUDIES["strategies"].cells(scale):
            if cell.labels["loss"] == "self-knowledge":
                assert cell.recipe.evaluate.every < cell.recipe.train.epochs


def test_self_knowledge_is_not_cross_entropy(smoke):
    nll = {
        (cell.labels["loss"], cell.labels["method"]): Run.open(
            smoke.runs / cell.recipe.title
        ).report()["test.nll"]
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
    count, _, classes, shape = DATA[recipe.data.name]
    inputs = torch.randint(256, (2, *shape), dtype=torch.uint8)
    examples = Examples(inputs, torch.tensor([0, 1]), tuple(map(str, range(classes))))
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


def test_an_unknown_scale_is_refused():
    with pytest.raises(
        ValueError, match="must be one of smoke, demo, laptop, overnight, features, showcase, full"
    ):
        find_scale("huge")


def test_a_table_survives_its_csv(tmp_path):
    row = {"method": "LS", "strength": 0.1, "validation": None, "noise": "1", "seed": 0}
    write_table(make_table([{**row, "accuracy": 0.123456789}]), tmp_path / "t.csv")
    again = read_table(tmp_path / "t.csv").to_dict("records")[0]
    assert math.isnan(again.pop("validation"))
    assert again == {"method": "LS", "strength": 0.1, "noise": "1", "seed": 0, "accuracy": 0.123457}


@pytest.mark.parametrize("scale", [LAPTOP, OVERNIGHT, FEATURES], ids=lambda scale: scale.name)
def test_published_tables_can_be_continued(scale):
    """A new option of a loss or an optimizer must leave the hashes of all recipes as they were: its default is None."""
    rows = read_table(RESULTS / scale.name / "data-dependent.csv")
    assert {cell.recipe.hash for cell in STUDIES["data-dependent"].cells(scale)} <= {*rows["hash"]}
