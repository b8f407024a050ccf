"""The house plan holds: imports point downward, the front door is light, everything public is documented."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bayesmooth

SOURCE = Path(bayesmooth.__file__).parent
FLOORS = [
    {"errors", "_kernels"},
    {"progress", "files"},
    {"randomness", "theory", "calling"},
    {"posterior"},
    {"optim", "losses", "data", "models", "metrics", "labelnoise"},
    {"audit"},
    {"fitting"},
    {"integrations"},
    {"train"},
    {"cli"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))


def modules_imported(path: Path):
    """All names that a file imports, in full."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downward_and_neighbours_do_not_meet(path):
    modules = set(modules_imported(path))
    assert not {name.split(".")[0] for name in modules} & {"reproduce", "benchmarks", "docs"}
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return  # the front door knows every room
    assert room in FLOOR, f"{room} has no floor: give it one in FLOORS"
    imported = {name.split(".")[1] for name in modules if name.startswith("bayesmooth.")}
    for other in (imported & FLOOR.keys()) - {room}:
        assert FLOOR[other] < FLOOR[room], f"{path.name} ({room}) imports {other}"


def run_python(code: str) -> str:
    """What a new process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_front_door_loads_torch_and_numpy_and_nothing_heavier():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); from bayesmooth import *;"
        "print(' '.join(sorted({m.split('.')[0] for m in set(sys.modules) - before})))"
    )
    foreign = set(run_python(code).split()) - {"bayesmooth", "numpy", "torch"} - sys.stdlib_module_names
    assert not foreign


def test_every_public_name_is_there_and_documented():
    for name in bayesmooth.__all__:
        assert getattr(bayesmooth, name).__doc__, name


def test_the_function_audit_stays_public_when_the_package_of_that_name_is_loaded():
    run_python("import bayesmooth.audit.table; from bayesmooth import audit; audit.__code__; bayesmooth.audit.__code__")


@pytest.mark.parametrize("code", ["from bayesmooth import *", "import bayesmooth.cli.audit"])
def test_whoever_wants_the_library_never_loads_the_training(code):
    show = f"{code}; import sys; print([m for m in sys.modules if (m + '.').startswith('bayesmooth.train.')])"
    assert run_python(show).strip() == "[]"
