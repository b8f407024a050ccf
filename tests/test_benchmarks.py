import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import benchmarks
from bayesmooth.data import Labels, Source, corrupt, load
from bayesmooth.files import records
from benchmarks.__main__ import BENCHMARKS

pytest.importorskip("cleanlab")
pytest.importorskip("dataeval")
pytest.importorskip("datasets")

from benchmarks import training
from benchmarks.audit import CLEAN, MADE, Case, measure, run, table
from benchmarks.competitors import METHODS, NEAR, choose_classifier, confident_learning, consensus
from benchmarks.harness import markdown


@pytest.fixture(scope="module")
def digits() -> Source:
    noisy, _ = corrupt(load("digits", "train"), "symmetric", rate=0.2, seed=0)
    return noisy.subset(torch.arange(300))


@pytest.mark.parametrize("method", METHODS)
def test_every_peer_finds_most_of_the_errors(digits: Source, method: str) -> None:
    found = measure(lambda: METHODS[method](digits), digits)
    assert found["ap"] > 0.75, found
    assert found["at_errors"] > 0.7, found
    assert found["recall"] > 0.6, found


def test_consensus_of_neighbours_finds_the_transition_matrix_of_well_separated_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = torch.arange(3000) % 3
    rows = 9 * torch.eye(3)[clean] + torch.randn(3000, 3, generator=generator)
    true = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]])
    given = torch.multinomial(true[clean], 1, generator=generator).squeeze(1)
    found, prior = consensus(Source(rows, Labels(given, ("a", "b", "c")), clean))
    assert torch.allclose(found, true, atol=0.08)
    assert torch.allclose(prior, torch.full((3,), 1 / 3), atol=0.03)


def test_what_is_measured_is_kept_and_not_measured_again(digits: Source, tmp_path: Path) -> None:
    clean = replace(digits, labels=digits.labels.renumber(digits.clean), name="clean digits")
    every = [Case(MADE, digits), Case(CLEAN, clean)]
    path, calls = tmp_path / "audit.jsonl", []

    def jobs(examples: Source):
        calls.append(examples.name)
        neighbours, area = METHODS["20 neighbours"], METHODS["AUM"]
        return {"20 neighbours": lambda: neighbours(examples), "AUM": lambda: area(examples)}

    run(every, path, jobs)
    first = path.read_text()
    run(every, path, lambda examples: dict.fromkeys(jobs(examples), _fail))
    assert path.read_text() == first
    assert [json.loads(line)["method"] for line in first.splitlines()] == 2 * ["20 neighbours", "AUM"]
    shown = table(records(path), MADE, "ap")
    assert list(shown.columns) == ["20 neighbours", "AUM"]
    assert shown.loc["mean"].equals(shown.loc["digits/train"].rename("mean"))
    assert "ap" not in records(path)[2]  # nothing to find among clean labels
    assert markdown([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_cleanlab_gets_the_classifier_with_the_least_log_loss_on_the_given_labels(
    digits: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.competitors.STRENGTHS", {"unit norm": 0})
    monkeypatch.setattr("benchmarks.competitors.BOOSTED", 0)
    probabilities, facts = choose_classifier(digits)
    assert facts["chosen"] == min(facts["all_folds"], key=facts["all_folds"].get)
    least = min(facts["first_fold"].values())
    assert {n for n, x in facts["first_fold"].items() if x <= NEAR * least} == set(facts["all_folds"])
    assert measure(lambda: confident_learning(digits, probabilities), digits)["ap"] > 0.9


def _fail() -> None:
    raise AssertionError("measured twice")


def test_every_benchmark_is_listed_with_what_it_compares_and_its_time() -> None:
    folder = Path(benchmarks.__path__[0])
    with_main = {p.stem for p in folder.glob("*.py") if "def main(quick" in p.read_text("utf-8")}
    assert with_main == set(BENCHMARKS)
    assert all(about and time for about, time in BENCHMARKS.values())


def test_every_command_and_file_of_results_that_the_pages_name_is_there() -> None:
    root = Path(__file__).parents[1]
    pages = [root / "README.md", root / "results" / "README.md", *(root / "docs").rglob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    named = set(re.findall(r"python -m benchmarks (\w+)", text))
    assert len(named) > 3
    assert named <= set(BENCHMARKS)
    files = set(re.findall(r"`(results/[\w/]+\.\w+)`", text))
    assert len(files) > 2
    assert [file for file in files if not (root / file).exists()] == []


def test_a_cell_is_compared_with_the_peer_that_validation_chooses() -> None:
    def row(method: str, validation: float, accuracy: float, cell: str = "x · mlp · pair") -> dict[str, object]:
        figures = {"validation": validation, "validation_nll": 1.0, "accuracy": accuracy, "nll": 1.0}
        return {"cell": f"{cell} · 3 epochs", "seed": 0, "method": method, **figures}

    rows = [row("AdamW", 50, 60), row("SGD", 40, 70), row("LS", 45, 65), row("SAM", 30, 90)]
    assert training.compare([*rows, row("fit", 20, 61)], "fit") == {"clean": [], "wrong": [1]}
    assert training.compare(rows, "fit") == {"clean": [], "wrong": []}  # not all have run


def test_the_pools_share_no_data_set_and_are_large_enough() -> None:
    pools = [{cell.data for cell in pool} for pool in training.POOLS.values()]
    assert not set.intersection(*pools)
    assert all(len(set(map(str, pool))) == len(pool) >= 20 for pool in training.POOLS.values())
