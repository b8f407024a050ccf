"""Every snippet of the README runs as printed, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def test_the_readme_has_its_two_commands():
    """CI runs the one, the demo's test the other; a third would need a test of its own."""
    assert {command.split("#")[0].strip() for command in COMMANDS} == {"make demo", "make test"}


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


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text()):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
