"""The demo at a tiny budget, from the command line to the page."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bayesmooth import cli
from reproduce import STUDIES
from reproduce.demo import summarise_demo
from reproduce.study import SCALES
from reproduce.table import EARLY, read_table

DEMO, SMOKE = (SCALES["demo"], SCALES["smoke"])


@pytest.fixture
def call(smoke, monkeypatch, capsys):
    """The command in this process at smoke scale, with the runs that are there already; what it prints."""
    monkeypatch.setattr("reproduce.commands.Processes", lambda jobs: ThreadPoolExecutor(1))
    monkeypatch.setitem(SCALES, "demo", replace(SMOKE, studies=DEMO.studies))

    def run(out, *options):
        assert cli.main(["demo", "--out", str(out), *options]) == 0
        return capsys.readouterr()

    return run


def test_it_prints_one_row_per_method_and_the_path_of_the_page_last(call, tmp_path):
    printed = call(tmp_path, "--seeds", "1")
    lines = printed.out.splitlines()
    assert lines[0].split() == ["method", "accuracy", "memorised", "NLL", "ECE"]
    assert len(lines) == 1 + 7 + 2
    assert lines[-1] == str(tmp_path / "index.html")
    assert "  SGD  0" in printed.err  # the run to the end has the name of its row,
    assert EARLY not in printed.err  # and not that of the row which reads it at its best epoch
    page = (tmp_path / "index.html").read_text()
    assert "of ours: " in page
    for name in DEMO.studies:
        assert f"src='{name}.png'" in page
        assert (tmp_path / f"{name}.png").exists()
    assert not re.search(r"https?://", page)


def test_the_table_has_every_method_with_the_numbers_of_its_runs(smoke):
    rows = read_table(smoke.out / "demo.csv")
    table = {row[0]: row[1:] for row in summarise_demo(rows)}
    assert set(table) > {"SGD, to the end", EARLY, "IVON, averaged"}
    (own,) = rows[(rows["method"] == "IVON") & rows["epoch"].isna()].to_dict("records")
    assert table["IVON, averaged"][0] == f"{100 * own['accuracy']:.1f} %"
    assert table["IVON, averaged"][2] == f"{own['nll']:.3f}"


def test_all_methods_have_the_same_digits_and_wrong_labels():
    for seed in DEMO.seeds:
        cells = [cell for cell in STUDIES["demo"].cells(DEMO) if cell.labels["seed"] == seed]
        for section in ("data", "corruption", "model", "train"):
            assert len({str(cell.recipe.to_dict()[section]) for cell in cells}) == 1
