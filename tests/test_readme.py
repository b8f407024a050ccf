"""Every command and snippet of the README runs as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SNIPPETS = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line
    for language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
    if line.strip()
]
SETS_UP = (
    "make test",
    "make demo",
    "pip install",
    "git clone",
    "cd ",
)  # run by CI, by the demo's test, by hand
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def test_the_readme_has_its_two_commands():
    assert {"make demo", "make test"} <= {command.split("#")[0].strip() for command in COMMANDS}


def test_snippets_run_one_after_the_other(tmp_path):
    code = "\n".join(SNIPPETS)
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        check=True,
        timeout=120,
        env=ENVIRONMENT,
    )
    assert (tmp_path / "audit" / "audit.html").exists()


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if not c.startswith(SETS_UP)], ids=lambda command: command
)
def test_commands_run(command, tmp_path):
    words = shlex.split(command, comments=True)
    assert words[0] == "bayesmooth"
    run = [sys.executable, "-m", "bayesmooth.cli", *words[1:]]
    subprocess.run(
        run, cwd=tmp_path, check=True, timeout=200, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text()):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
