from pathlib import Path

import pytest

from bayesmooth.files import records
from benchmarks import regret
from benchmarks.regret_tasks import NOISES, PICTURES, TASKS, Cell, cells, problem


def result(cell, method, accuracy, validation=50.0):
    return {"cell": cell, "method": method, "accuracy": accuracy, "validation": validation}


def everyone(cell, accuracy=80.0, **others):
    names = [*regret.METHODS, regret.STOPPED]
    return [result(cell, name, others.get(name, accuracy)) for name in names]


def test_regret_is_the_distance_to_the_best_method_of_each_cell():
    runs = everyone("a · x", **{"SGD": 70.0, "IVON auto": 90.0}) + everyone("b · x")
    found = regret.regrets(regret.complete(runs))
    assert found["SGD"] == {"a · x": 20, "b · x": 0}
    assert found["IVON auto"] == {"a · x": 0, "b · x": 0}
    assert found["LS α=0.5"] == {"a · x": 10, "b · x": 0}


def test_a_family_may_choose_by_noisy_validation_but_auto_is_not_among_the_choices():
    runs = [r for r in everyone("a · x") if "SAM" not in r["method"]]
    rhos = [name for name in regret.METHODS if "SAM" in name]
    runs += [result("a · x", name, 70.0 + i, 50.0 - i) for i, name in enumerate(rhos)]
    runs[-1]["accuracy"] = 90.0
    runs = [{**r, "validation": 99.0} if r["method"] == "IVON auto" else r for r in runs]
    found = regret.regrets(regret.complete(runs))
    assert found["SAM, ρ by validation in each cell"] == {"a · x": 20}  # the first has the best
    assert found["IVON, h₀ by validation in each cell"] == {"a · x": 10}


def test_seeds_are_averaged_and_cells_without_all_methods_are_left_out():
    runs = everyone("a · x") + everyone("a · x", 90.0) + everyone("b · x")[1:]
    runs += everyone("c · x") + everyone("c · x")[1:]  # the second seed is not whole
    table = regret.complete(runs)
    assert list(table) == ["a · x"]
    assert table["a · x"]["SGD"]["accuracy"] == 85


def test_the_table_has_the_best_first_and_a_column_for_each_task():
    lines = regret.report(everyone("digits · x", **{"IVON auto": 90.0})).splitlines()
    assert "over 1 cells" in lines[0]
    assert lines[1].split() == ["mean", "max", "digits"]
    assert lines[2].split() == ["IVON", "auto", "0.00", "0.00", "0.00"]
    assert regret.report([]) == "no cell has all methods yet"


def test_every_task_has_every_noise_two_lengths_and_a_network_without_batch_norm():
    for task in TASKS:
        own = list(cells((task,)))
        assert {cell.noise for cell in own} == set(NOISES)
        assert len({cell.epochs for cell in own}) == 2
        assert {"+bn" in cell.network for cell in own} == {True, False}
        assert len(set(own)) == len(own)


@pytest.mark.parametrize("task", [task for task in TASKS if task not in PICTURES])
def test_the_noise_is_in_the_labels_that_are_trained_and_chosen_by_and_not_in_the_test(task):
    clean, noisy = (problem(task, noise, 0) for noise in ("clean", "symmetric"))
    assert 0.3 < (noisy.labels != noisy.clean_labels).double().mean() < 0.5
    assert (clean.labels == clean.clean_labels).all()
    assert 0.2 < (noisy.held_labels != clean.held_labels).double().mean() < 0.6
    assert (noisy.test_labels == clean.test_labels).all()
    assert len(noisy.inputs) > 2 * len(noisy.held_inputs)


def test_what_is_stored_is_not_run_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "regret.jsonl"
    monkeypatch.setenv("BAYESMOOTH_OUT", str(tmp_path))
    few = {
        name: regret.METHODS[name]
        for name in ("SGD", "LS α=0.5", "SAM ρ=0.1", "IVON h₀=1", "IVON auto")
    }
    monkeypatch.setattr(regret, "METHODS", few)
    monkeypatch.setattr(regret, "SEEDS", {})
    monkeypatch.setattr(regret, "cells", lambda tasks: [Cell("table", "mlp+bn", "symmetric", 2)])
    regret.main(quick=True)
    first = path.read_bytes()
    assert [each["method"] for each in records(path)] == ["SGD", regret.STOPPED, *list(few)[1:]]
    assert "over 1 cells" in capsys.readouterr().out
    regret.main(quick=True)
    assert path.read_bytes() == first
    assert records(path)[-1]["h0"] > 0


def test_the_report_is_that_of_the_stored_runs():
    root = Path(__file__).parents[1]
    runs = records(root / "results" / "regret.jsonl")
    assert regret.report(runs) + "\n" == (root / "results" / "regret.txt").read_text("utf-8")
