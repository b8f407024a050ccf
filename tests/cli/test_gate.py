"""The audit as a gate: exit codes, the line on stderr, machine output, and the action and the hook as they are run."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesmooth import cli
from bayesmooth.data import open_source

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]


def write(path: Path, wrong: int = 0, count: int = 200, extra: str = "") -> Path:
    """Two clear classes, some labels wrong; `extra` lines come last."""
    rows = np.random.default_rng(0).normal(size=(count, 3)) + 9 * (np.arange(count)[:, None] % 2)
    labels = np.array(["cat", "dog"])[(np.arange(count) + (np.arange(count) < wrong)) % 2]
    lines = [f"{name},{','.join(map(str, row))}" for name, row in zip(labels, rows, strict=True)]
    path.write_text("\n".join(["label,a,b,c", *lines]) + "\n" + extra)
    return path


def run(*words: object) -> int:
    return cli.main(["audit", *map(str, words), "--quiet"])


def test_too_many_wrong_labels_fail_with_one_line(tmp_path, capsys):
    bad, out = write(tmp_path / "bad.csv", wrong=40), tmp_path / "out"
    assert run(bad, "--out", out, "--fail-above", "5%") == 1
    said = capsys.readouterr().err
    assert said.startswith("bayesmooth: failed: at least 1")
    assert said.count("\n") == 1
    assert (out / "audit.html").exists()
    assert run(bad, "--out", out, "--fail-above", "0.3") == 0
    assert run(write(tmp_path / "good.csv"), "--out", out, "--fail-above", "5%") == 0


def test_findings_fail_by_name(tmp_path, capsys):
    copies = "cat,5,5,5\ndog,5,5,5\n"
    bad, other = write(tmp_path / "bad.csv", extra=copies), write(tmp_path / "other.csv", count=20)
    out = tmp_path / "out"
    assert run(bad, "--out", out, "--fail-on", "conflicts") == 1
    assert "2 near duplicates with different labels (conflicts)" in capsys.readouterr().err
    assert run(bad, "--out", out, "--fail-on", "leaks", "--against", other) == 1
    assert "20 in other split (leaks)" in capsys.readouterr().err
    assert run(write(tmp_path / "good.csv"), "--out", out, "--fail-on", "conflicts") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--fail-on", "leak"], "did you mean 'leaks'"), (["--fail-on", "leaks"], "name the other split with --against")],
)
def test_a_gate_that_cannot_be_held_is_refused(words, message, tmp_path, capsys):
    assert run(write(tmp_path / "x.csv"), "--out", tmp_path / "out", *words) == 2
    assert message in capsys.readouterr().err
    for share in ("5", "many"):
        with pytest.raises(SystemExit):
            run("x.csv", "--fail-above", share)
        assert f"{share}: must be a share such as 5% or 0.05" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:Nothing can be told")
def test_where_nothing_can_be_told_a_gate_on_the_rate_does_not_pass(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(80, 3))
    np.savez(tmp_path / "x.npz", embeddings=rows, labels=np.arange(80) % 2)
    assert run(tmp_path / "x.npz", "--out", tmp_path / "out", "--fail-above", "50%") == 1
    assert "cannot be told" in capsys.readouterr().err


def test_json_is_all_that_is_printed(tmp_path, capsys):
    assert run(write(tmp_path / "x.csv", wrong=3), "--out", tmp_path / "out", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["examples"] == 200
    assert {*printed["top"][:3]} == {*open_source(tmp_path / "x.csv").ids[:3]}


def test_the_summary_is_appended_as_markdown_and_nothing_in_it_is_markup(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n")
    table = write(tmp_path / "x.csv", wrong=2)
    table.write_text(table.read_text().replace("cat", "<b>|cat"))
    run(table, "--out", tmp_path / "out", "--summary", page, "--fail-above", "0%")
    lines = page.read_text().splitlines()
    assert lines[:2] == ["before", "## ❌ x"]
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 12
    assert all("<b>" not in row for row in rows)
    assert "&lt;b&gt;\\|cat" in page.read_text()
    assert run(table, "--out", tmp_path / "out", "--summary", tmp_path / "no" / "page.md") == 2


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script as a runner runs it; `bayesmooth` is the one of this checkout."""
    command = folder / "bin" / "bayesmooth"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bayesmooth "$@"\n')
    command.chmod(0o755)
    variables = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", **environment}
    line = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "code"), [("5%", 1), ("60%", 0), ("", 0)])
def test_the_action_runs_and_fails_the_job(allowed, code, tmp_path):
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    audit = next(step for step in steps if step["name"] == "Audit")
    write(tmp_path / "my data.csv", wrong=40)
    given = {"DATA": "my data.csv", "FAIL_ABOVE": allowed, "FAIL_ON": "conflicts", "OUT": "audit"}
    given |= {"OPTIONS": "--label label --top 3", "GITHUB_STEP_SUMMARY": str(tmp_path / "page.md")}
    assert given.keys() - {"GITHUB_STEP_SUMMARY"} == audit["env"].keys()
    done = shell(audit["run"], tmp_path, **given)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "page.md").read_text().startswith("## ❌" if code else "## ✅")
    assert (tmp_path / "audit" / "audit.html").exists()


@pytest.mark.slow
def test_the_hook_runs_with_the_arguments_of_the_example(tmp_path):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    example = (ROOT / "docs" / "ci.md").read_text().split('-config.yaml"\n')[1].split("```")[0]
    (repo,) = yaml.safe_load(example)["repos"]
    (used,) = repo["hooks"]
    assert used["id"] == hook["id"]
    write(tmp_path / "train.csv", wrong=40)
    write(tmp_path / "test.csv", count=20)
    done = shell(shlex.join([*hook["entry"].split(), *used["args"]]), tmp_path)
    assert done.returncode == 1, done.stderr
    assert "failed: at least" in done.stderr
    assert "in other split (leaks)" in done.stderr
