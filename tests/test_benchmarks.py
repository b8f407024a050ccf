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
pytest.importorskip("datasets")

from benchmarks import finetune
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
    assert [json.loads(line)["method"] for line in first.splitlines()] == 2 * [
        "20 neighbours",
        "AUM",
    ]
    head, row, mean = table(records(path), MADE)
    assert head == ["data", "wrong", "20 neighbours", "AUM"]
    assert row[0] == "digits/train (300)"
    assert sum(cell.startswith("**") for cell in row) == 1
    assert mean[2:] == row[2:]
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
    assert {n for n, x in facts["first_fold"].items() if x <= NEAR * least} == set(
        facts["all_folds"]
    )
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
    assert len(named) > 5
    assert named <= set(BENCHMARKS)
    files = set(re.findall(r"`(results/[\w/]+\.\w+)`", text))
    assert len(files) > 2
    assert [file for file in files if not (root / file).exists()] == []


def test_a_cell_of_fine_tuning_is_compared_with_the_best_column_of_adamw() -> None:
    def row(method: str, accuracy: float, validation: float, **more: object) -> dict[str, object]:
        figures = {"accuracy": accuracy, "nll": 1.0, "ece": 0.1, "validation": validation}
        return {
            "task": "top10",
            "noise": "symmetric",
            "seed": 0,
            "method": method,
            "end": figures,
            "stopped": figures,
            **more,
        }

    rows = [row("AdamW 0.1", 60.0, 50.0), row("AdamW 0.2", 70.0, 40.0), row("AdamW 1", 9.0, 9.0)]
    rows += [row("LS 0.1", 62.0, 50.0), row("LS 0.4", 65.0, 40.0), row("SAM", 64.0, 50.0)]
    wide = {"accuracy": 59.0, "nll": 1.0, "ece": 0.1}
    rows += [row("IVON", 61.5, 50.0, averaged=wide, scaled=wide)]
    rows += [{**rows[0], "seed": 1}]  # not all methods have run: left out
    first, _, _, _, cells, *_ = finetune.report(rows).splitlines()
    assert "in 1 of 1 cells, and −0.5 points" in first
    assert "+1.5 (AdamW stopped), +1.5 (AdamW end), −0.5 (LS), −2.5 (SAM)" in first
    assert cells.endswith("| 1 | 60.0 | 60.0 | 62.0 | 64.0 | 61.5 | 59.0 | 59.0 |")


def test_the_report_of_fine_tuning_is_that_of_the_stored_runs() -> None:
    root = Path(__file__).parents[1]
    report = finetune.report(records(root / "results" / "finetune.jsonl"))
    assert report + "\n" == (root / "results" / "finetune.txt").read_text("utf-8")
