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


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "bayesmooth":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayesmooth."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("bayesmooth.")}
    return found & FLOOR.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downward_and_neighbours_do_not_meet(path):
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return  # the front door knows every room
    assert room in FLOOR, f"{room} has no floor: give it one in FLOORS"
    for other in rooms_imported(path) - {room}:
        assert FLOOR[other] < FLOOR[room], f"{path.name} ({room}) imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_package_never_imports_what_stands_beside_it(path):
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [node.module] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not {(name or "").split(".")[0] for name in modules} & {"reproduce", "benchmarks"}


def test_the_front_door_loads_torch_and_numpy_and_nothing_heavier():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); from bayesmooth import *;"
        "print(' '.join(sorted({m.split('.')[0] for m in set(sys.modules) - before})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    foreign = set(out.stdout.split()) - {"bayesmooth", "numpy", "torch"} - sys.stdlib_module_names
    assert not foreign


def test_every_public_name_is_there_and_documented():
    for name in bayesmooth.__all__:
        assert getattr(bayesmooth, name).__doc__, name


def test_the_function_audit_stays_public_when_the_package_of_that_name_is_loaded():
    code = (
        "import bayesmooth.audit.table; from bayesmooth import audit; audit.__code__;"
        "import bayesmooth; bayesmooth.audit.__code__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("code", ["from bayesmooth import *", "import bayesmooth.cli.audit"])
def test_whoever_wants_the_library_never_loads_the_training(code):
    show = f"{code}; import sys; print([m for m in sys.modules if (m + '.').startswith('bayesmooth.train.')])"
    out = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
