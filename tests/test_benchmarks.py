import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import benchmarks
from bayesmooth.data import Labels, Source, corrupt, load
from benchmarks.__main__ import BENCHMARKS

pytest.importorskip("cleanlab")
pytest.importorskip("dataeval")
pytest.importorskip("ivon")

from benchmarks import training
from benchmarks.audit import CLEAN, MADE, METHODS, Case, run
from benchmarks.competitors import NEAR, consensus
from docs.make_tables import compare_methods, compare_training


@pytest.fixture(scope="module")
def digits() -> Source:
    noisy, _ = corrupt(load("digits", "train"), "symmetric", rate=0.2, seed=0)
    return noisy.subset(torch.arange(300))


def test_every_method_finds_most_of_the_errors_and_no_row_is_measured_twice(digits, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.competitors.STRENGTHS", {"unit norm": 0})
    clean = replace(digits, labels=digits.labels.renumber(digits.clean), name="clean digits")
    cases, path = [Case(MADE, digits), Case(CLEAN, clean)], tmp_path / "audit.jsonl"
    rows = run(cases, path, METHODS)
    assert [row["method"] for row in rows] == [*METHODS, *METHODS]
    for row in rows[: len(METHODS)]:
        assert row["ap"] > 0.75, row
        assert row["at_errors"] > 0.7, row
        assert row["recall"] > 0.6, row
    assert "ap" not in rows[-1]  # nothing to find among clean labels
    (tuned,) = (row for row in rows[: len(METHODS)] if "chosen" in row)
    assert tuned["chosen"] == min(tuned["all_folds"], key=tuned["all_folds"].get)
    least = min(tuned["first_fold"].values())
    assert {n for n, x in tuned["first_fold"].items() if x <= NEAR * least} == set(tuned["all_folds"])
    assert run(cases, path, dict.fromkeys(METHODS)) == rows  # nothing is called
    head, line, mean = compare_methods(pd.DataFrame(rows), MADE)
    assert head == ["data", "wrong", *METHODS]
    assert line[2:] == mean[2:]


def test_consensus_of_neighbours_finds_the_transition_matrix_of_well_separated_classes():
    generator = torch.Generator().manual_seed(0)
    clean = torch.arange(3000) % 3
    rows = 9 * torch.eye(3)[clean] + torch.randn(3000, 3, generator=generator)
    true = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]])
    given = torch.multinomial(true[clean], 1, generator=generator).squeeze(1)
    found, prior = consensus(Source(rows, Labels(given, ("a", "b", "c")), clean))
    assert torch.allclose(found, true, atol=0.08)
    assert torch.allclose(prior, torch.full((3,), 1 / 3), atol=0.03)


def test_every_benchmark_is_listed_with_what_it_compares_and_its_time():
    folder = Path(benchmarks.__path__[0])
    with_main = {p.stem for p in folder.glob("*.py") if "def main(quick" in p.read_text("utf-8")}
    assert with_main == set(BENCHMARKS)
    assert all(about and time for about, time in BENCHMARKS.values())


def test_every_command_and_file_of_results_that_the_pages_name_is_there():
    root = Path(__file__).parents[1]
    pages = [root / "README.md", root / "results" / "README.md", *(root / "docs").rglob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    named = set(re.findall(r"python -m benchmarks (\w+)", text))
    assert len(named) > 3
    assert named <= set(BENCHMARKS)
    files = set(re.findall(r"`(results/[\w/]+\.\w+)`", text))
    assert len(files) > 2
    assert [file for file in files if not (root / file).exists()] == []


def test_a_cell_is_compared_with_the_peer_that_validation_chooses():
    def row(method, validation, accuracy):
        figures = {"validation": validation, "validation_nll": 1.0, "accuracy": accuracy, "nll": 1.0}
        return {"cell": "x · mlp · pair · 3 epochs", "seed": 0, "method": method, **figures}

    rows = [row("AdamW", 50, 60), row("SGD", 40, 70), row("LS", 45, 65), row("SAM", 30, 90)]
    *_, ours = compare_training(pd.DataFrame([*rows, row("fit", 20, 61)]))
    assert (ours[0], ours[1], ours[-1]) == ("fit", "61.0", "+1.0")
    assert len(compare_training(pd.DataFrame(rows[1:]))) == 1  # not all peers have run


def test_the_pools_share_no_data_set_and_are_large_enough():
    pools = [{cell.data for cell in pool} for pool in training.POOLS.values()]
    assert not set.intersection(*pools)
    assert all(len(set(map(str, pool))) == len(pool) >= 20 for pool in training.POOLS.values())
