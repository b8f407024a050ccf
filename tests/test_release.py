"""A release could go out today: the metadata agree with the code, the README reads well on PyPI, the site builds."""

import ast
import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bayesmooth

ROOT = Path(__file__).parents[1]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = CONFIGURATION["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert importlib.metadata.version("bayesmooth") == bayesmooth.__version__
    assert bayesmooth.__version__ in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_python_of_the_classifiers_is_tested_and_gets_a_wheel():
    named = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"]]
    versions = [name for name in named if re.fullmatch(r"3\.\d+", name)]
    tested = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert versions
    assert re.search(r"python: \[(.*?)\]", tested)[1] == ", ".join(f'"{v}"' for v in versions)
    wheels = CONFIGURATION["tool"]["cibuildwheel"]["build"]
    assert wheels == " ".join(f"cp{v.replace('.', '')}-*" for v in versions)


def test_every_extra_that_a_message_names_exists():
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
                extra = [*node.args[1:], *(word.value for word in node.keywords)][0]
                assert not isinstance(extra, ast.Constant) or extra.value in EXTRAS, path


def test_addresses_of_the_project_stand_in_pyproject_and_the_site_agrees():
    urls, site = PROJECT["urls"], (ROOT / "mkdocs.yml").read_text("utf-8")
    assert f"site_url: {urls['Documentation']}\nrepo_url: {urls['Homepage']}\n" in site
    assert all(urls[name].startswith(urls["Homepage"]) for name in ("Changelog", "Issues"))
    hosts = [urls[name].removeprefix("https://") for name in ("Homepage", "Documentation")]
    kinds = {".py", ".md", ".toml", ".yml", ".cff", ".html", ".js"}
    places = [ROOT / name for name in ("docs", "src", "examples", "benchmarks", ".github", ".ci")]
    files = [path for place in places for path in place.rglob("*") if path.suffix in kinds]
    for path in [*files, *ROOT.glob("*.md"), ROOT / "CITATION.cff", ROOT / "setup.py"]:
        assert not any(host in path.read_text("utf-8") for host in hosts), path


def test_links_of_the_readme_are_absolute_on_pypi():
    absolute_links = runpy.run_path(str(ROOT / "setup.py"))["absolute_links"]
    text = absolute_links((ROOT / "README.md").read_text("utf-8"))
    targets = re.findall(r"\]\(([^)]+)\)", text)
    home = PROJECT["urls"]["Homepage"]
    assert len(targets) > 10
    assert all(target.startswith("https://") for target in targets)
    raw = home.replace("github.com", "raw.githubusercontent.com")
    assert absolute_links("![x](a.png)") == f"![x]({raw}/main/a.png)"
    assert absolute_links("[x](a.md#b) [y](https://z)") == f"[x]({home}/blob/main/a.md#b) [y](https://z)"


def test_the_site_builds_and_every_public_name_is_in_the_reference(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    reference = "".join(page.read_text("utf-8") for page in (tmp_path / "api").rglob("index.html"))
    for name in [*bayesmooth.__all__, *names_of_integrations()]:
        assert re.search(rf'id="bayesmooth\.(\w+\.)*{name}"', reference), name


def names_of_integrations():
    """Read, not imported: their frameworks need not be here."""
    for path in (ROOT / "src" / "bayesmooth" / "integrations").glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name
