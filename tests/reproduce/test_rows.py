import math
from pathlib import Path

import pytest

from bayesmooth.train import Run
from reproduce import STUDIES
from reproduce.scale import LAPTOP, OVERNIGHT, SMOKE
from reproduce.table import EARLY, make_table, read_table, write_table

RESULTS = Path(__file__).parents[2] / "results"


def test_stopping_early_takes_the_epoch_that_noisy_validation_labels_like_best(smoke):
    cell = next(c for c in STUDIES["natural-noise"].cells(SMOKE) if c.method == EARLY)
    records = Run.open(smoke.runs / cell.recipe.title).metrics()
    best = max(records, key=lambda record: record["validation.accuracy"])
    table = read_table(smoke.out / "natural-noise.csv")
    row = table[table["method"] == EARLY].iloc[0]
    assert row["accuracy"] == pytest.approx(best["test.accuracy"], rel=1e-5)
    assert len(records) > 1


def test_averaged_predictions_are_what_counts_for_ivon(smoke):
    cell = STUDIES["natural-noise"].cells(SMOKE)[0]
    report = Run.open(smoke.runs / cell.recipe.title).report()
    row = read_table(smoke.out / "natural-noise.csv").iloc[0]
    assert row["method"] == "IVON"
    assert row["nll"] == pytest.approx(report["averaged.nll"], rel=1e-5)
    assert row["nll"] != pytest.approx(report["test.nll"], rel=1e-5)
    assert row["at_mean"] == pytest.approx(report["test.accuracy"], rel=1e-5)
    assert row["validation"] == pytest.approx(report["averaged.validation.accuracy"], rel=1e-5)
    assert row["validation_at_mean"] == pytest.approx(report["validation.accuracy"], rel=1e-5)


def test_a_table_survives_its_csv(tmp_path):
    row = {"method": "LS", "strength": 0.1, "validation": None, "noise": "1", "seed": 0}
    write_table(make_table([{**row, "accuracy": 0.123456789}]), tmp_path / "t.csv")
    again = read_table(tmp_path / "t.csv").to_dict("records")[0]
    assert math.isnan(again.pop("validation"))
    assert again == {"method": "LS", "strength": 0.1, "noise": "1", "seed": 0, "accuracy": 0.123457}


@pytest.mark.parametrize("scale", [LAPTOP, OVERNIGHT], ids=lambda scale: scale.name)
def test_published_tables_can_be_continued(scale):
    """A new option of a loss or an optimizer must leave the hashes of all recipes as they were: its default is None."""
    rows = read_table(RESULTS / scale.name / "data-dependent.csv")
    assert {cell.recipe.hash for cell in STUDIES["data-dependent"].cells(scale)} <= {*rows["hash"]}
