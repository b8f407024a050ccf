"""The demo at a tiny budget, from the command line to the page."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from rich.console import Console
from scipy.stats import spearmanr

from bayesmooth import cli
from bayesmooth.lab import Run
from bayesmooth.lab.studies.figures.demo.digits import Digits
from bayesmooth.lab.studies.figures.demo.entry import plan
from bayesmooth.lab.studies.figures.demo.live import Watched
from bayesmooth.lab.studies.figures.demo.results import (
    MEASURES,
    OURS,
    PLAIN,
    Result,
    compare,
    sentences,
)

ROW = re.compile(r"<tr class='[^']*'><th scope='row'>([^<]*)</th>(.*?)</tr>")
CELL = re.compile(r"<td[^>]*>([^<]*)<")


def call(out, seeds=2):
    """The command in this process; what it prints."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said:
        patch.setattr("bayesmooth.cli.demo.Processes", lambda jobs: ThreadPoolExecutor(1))
        line = ["demo", "--out", out, "--seeds", seeds, "--epochs", 2, "--quiet"]
        assert cli.main([str(word) for word in line]) == 0
    return said.getvalue()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def said(out):
    return call(out)


@pytest.fixture(scope="module")
def page(out, said):
    return (out / "index.html").read_text()


def reports(out, loss, optimizer, alpha=None):
    """Of the runs of a method, read from their files."""
    runs = [Run.open(recipe.parent) for recipe in out.glob("runs/*/recipe.toml")]
    found = [
        run.report()
        for run in runs
        if (run.recipe.loss.name, run.recipe.optimizer.name) == (loss, optimizer)
        and run.recipe.loss.options.get("alpha") == alpha
    ]
    assert len(found) == 2
    return found


def figures(found, kind="test"):
    """Accuracy, NLL and ECE as the page should print them."""
    columns = {
        key: [report[f"{kind}.{key}"] for report in found] for key in ("accuracy", "nll", "ece")
    }
    right = [100 * value for value in columns.pop("accuracy")]
    rest = [f"{mean(values):.2f} ± {stdev(values):.2f}" for values in columns.values()]
    return [f"{mean(right):.1f} ± {stdev(right):.1f} %", *rest]


def test_the_path_of_the_page_is_printed_last_and_the_pictures_lie_beside_it(out, said):
    assert said.splitlines()[-1] == str(out / "index.html")
    assert Path(said.splitlines()[-1]).exists()
    for name in ("illustration", "strips", "curves"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_of_the_page_are_those_of_the_reports(out, page, said):
    rows = {name: CELL.findall(cells) for name, cells in ROW.findall(page)}
    expected = {
        "cross-entropy": figures(reports(out, "ce", "sgd")),
        "label smoothing 0.1": figures(reports(out, "ls", "sgd", 0.1)),
        "label smoothing 0.7, tuned": figures(reports(out, "ls", "sgd", 0.7)),
        "IVON": figures(reports(out, "ce", "ivon")),
        "IVON, averaged": figures(reports(out, "ce", "ivon"), "averaged"),
    }
    assert list(rows) == list(expected)
    for name, (accuracy, nll, ece) in expected.items():
        assert [rows[name][0], *rows[name][2:4]] == [accuracy, nll, ece]
        line = next(line for line in said.splitlines() if line.startswith(f"{name}  "))
        assert all(figure in line for figure in (accuracy, nll, ece))
    memorised = [100 * report["memorised"] for report in reports(out, "ls", "sgd", 0.1)]
    assert rows["label smoothing 0.1"][1] == f"{mean(memorised):.1f} ± {stdev(memorised):.1f} %"
    right = mean(report["test.accuracy"] for report in reports(out, "ce", "ivon"))
    assert f"IVON reads {100 * right:.0f} % of new digits" in page


def test_the_page_needs_nothing_but_itself(page):
    assert page.count("data:image/png;base64,") == 6  # three pictures, for light and dark
    assert not re.search(r"(src|srcset|href)=['\"](?!data:)", page)
    assert "<script" not in page
    assert "$" not in page


def test_what_is_finished_is_only_drawn_again(out, said, monkeypatch):
    monkeypatch.setattr("bayesmooth.lab.sweep.train", None)
    (out / "index.html").unlink()
    assert call(out) == said
    assert (out / "index.html").exists()


def test_the_table_can_be_watched_before_and_after(out, said):
    for place, words in ((out / "nowhere", "loading"), (out / "runs", "measuring")):
        console = Console(file=io.StringIO(), width=80, record=True)
        console.print(Watched(plan(2, 2), place).table())
        text = console.export_text()
        assert words in text
        assert "label smoothing 0.7, tuned" in text
        assert max(map(len, text.splitlines())) <= 80


def test_no_seed_is_an_error_in_one_line(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path), "--seeds", "0"]) == 2
    assert capsys.readouterr().err == "bayesmooth: seeds=0: must be ≥ 1\n"


def results(**ours):
    level = {key: [0.5, 0.51, 0.49] for key in MEASURES}
    return [Result(PLAIN, PLAIN, level), Result(OURS, OURS, level | ours)]


def test_where_ivon_is_behind_the_page_says_so():
    worse = results(accuracy=[0.1, 0.11, 0.12], ece=[0.9, 0.9, 0.91], nll=[0.1, 0.1, 0.11])
    (found,) = compare(worse)
    assert (found.ahead, found.behind, found.level) == (["nll"], ["accuracy", "ece"], ["memorised"])
    told = "IVON against cross-entropy, ahead: NLL; behind: accuracy, ECE; level: memorised"
    assert sentences(worse) == [told]


def test_a_single_seed_decides_nothing():
    low, high = ({key: [value] for key in MEASURES} for value in (0.1, 0.9))
    (found,) = compare([Result(PLAIN, PLAIN, low), Result(OURS, OURS, high)])
    assert found.level == ["accuracy", "memorised", "nll", "ece"]


def test_typical_and_atypical_are_chosen_without_the_noise():
    noise = torch.rand(60, 10, generator=torch.Generator().manual_seed(0))
    distance = torch.linspace(0, 1, 60)
    digits = Digits(torch.zeros(60, 8, 8), torch.arange(60) % 10, noise, distance)
    assert digits.pair(6) == (6, 56)
    rank = spearmanr(digits.size, distance).statistic
    assert digits.correlation() == pytest.approx(rank)
    assert 0 <= digits.agreeing() <= 10
    clear, ambiguous = digits.extremes(3)
    assert digits.size[clear].max() < digits.size[ambiguous].min()
    assert digits.size[ambiguous[0]] == digits.size.max()
