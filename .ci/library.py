"""Build the wheel, install it into a clean environment, and run the library's tests against it.

`python .ci/library.py` takes the newest packages; `--oldest` the oldest that pyproject.toml admits. Further arguments
go to pytest.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TESTING = ("hypothesis", "ivon-opt", "pytest", "pytest-timeout", "pytest-xdist", "torchmetrics")
NOT_THE_LIBRARY = (
    "train",
    "reproduce",
    "cli",
    "test_benchmarks",
    "test_cli",
    "test_docs",
    "test_examples",
    "test_house",
    "test_readme",
    "test_release",
)
NEWER_TORCH = (
    "tests/optim/test_two_ranks.py",  # FSDP2 on the CPU
    "tests/optim/test_schedule.py::test_cosine_agrees_with_torch_schedulers_step_by_step",  # torch 2.6 warns of itself
    "tests/optim/test_samples.py::test_a_gradient_of_another_dtype_is_converted",  # torch 2.6 refuses such gradients
)


def requirements(oldest: bool) -> list[str]:
    """What the library, its extras and its tests need."""
    extras = [r for name in ("train", "data") for r in EXTRAS[name]]
    needed = PROJECT["dependencies"] + [r for r in extras if not r.startswith("bayesmooth")]
    return [*TESTING, *(r.replace(">=", "==") if oldest else r for r in needed)]


def main() -> None:
    """Work in a temporary folder, so that nothing but the wheel can be imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oldest", action="store_true", help="the oldest packages admitted")
    arguments, for_pytest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "env", with_pip=True)
        python = place / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", place, ROOT], check=True)
        (wheel,) = place.glob("*.whl")
        subprocess.run([*pip, "install", wheel, *requirements(arguments.oldest)], check=True)
        shutil.copytree(ROOT / "tests", place / "tests")
        shutil.copy(ROOT / "pyproject.toml", place)
        tests = [python, "-m", "pytest", "-q", "-n", "2", "tests"]
        tests += [f"--ignore-glob=tests/{name}*" for name in NOT_THE_LIBRARY]
        if arguments.oldest:  # old packages warn of their own age
            tests += ["-o", "filterwarnings=default", *(f"--deselect={t}" for t in NEWER_TORCH)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        sys.exit(subprocess.call([*tests, *for_pytest], cwd=place, env=environment))


if __name__ == "__main__":
    main()
