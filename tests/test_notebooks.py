"""The notebooks run from the first cell to the last, in a folder of their own; only the installation is left out."""

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    found = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def show(code: str, session: dict) -> str:
    """Run a cell; a last expression is shown as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), session)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), session)
            print(value._repr_markdown_() if hasattr(value, "_repr_markdown_") else value)
    return printed.getvalue()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_claims(path, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESMOOTH_CACHE", str(tmp_path / "cache"))
    install, *code = cells(path, "code")
    assert install.startswith("%pip install")
    session: dict = {}
    shown = "\n".join(show(cell, session) for cell in code)
    claims = {"audit": ["look wrong", "labels were left out", "| red | blue |"], "train": ["IVON, averaged"]}
    assert all(claim in shown for claim in claims[path.stem]), shown
    if path.stem == "train":
        sgd, mean = (float(shown.split(f"{name} ")[1].split("%")[0]) for name in ("SGD", "mean"))
        assert mean > sgd + 5
    assert path.name in cells(path, "markdown")[0]  # the badge opens this one


def test_there_are_two_notebooks_without_outputs():
    assert [path.stem for path in NOTEBOOKS] == ["audit", "train"]
    for path in NOTEBOOKS:
        assert '"outputs": []' in path.read_text("utf-8")
        assert "image/png" not in path.read_text("utf-8")
