"""Three walks through the code, traced: one step of IVON, an audit of a folder, a study of the paper.

    python tests/walks.py           how many functions and files each walk has
    python tests/walks.py --list    the functions of each file, in the order of their first call

Named functions of `src/` and `reproduce/` count, in every thread and process of the walk; functions that run while a
module is imported do not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
ROOMS = (str(ROOT / "src"), str(ROOT / "reproduce"))
LOG = "BAYESMOOTH_WALK"
Calls = dict[str, list[str]]  # file → its functions, both in the order of their first call

COMMANDS = {
    "step": (sys.executable, __file__, "--step"),
    "audit": (sys.executable, "-m", "bayesmooth", "audit", "photos/", "--encoder", "plain"),
    "study": (
        *(sys.executable, "-m", "bayesmooth", "reproduce", "data-dependent"),
        *("--scale", "smoke", "--jobs", "1"),
    ),
}


def record(log: str) -> None:
    """From here on, write each function into the log when it is first called."""
    seen: set[str] = set()
    importing: list[FrameType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and importing and importing[-1] is frame:
            importing.pop()
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOMS):
            return
        if code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            importing.append(frame)
        elif not importing and not code.co_name.startswith("<"):
            line = f"{code.co_filename}\t{code.co_qualname.replace('.<locals>', '')}\n"
            if line not in seen:
                seen.add(line)
                with open(log, "a", encoding="utf-8") as file:
                    file.write(line)

    threading.setprofile(note)
    sys.setprofile(note)


def take_step() -> None:
    """One step of IVON, after a first one that is not recorded."""
    import torch

    from bayesmooth import IVON

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = IVON(model.parameters(), lr=0.1, ess=100, hess_init=0.5, seed=0)
    inputs, labels = torch.ones(10, 8), torch.arange(10) % 2
    for log in (None, os.environ[LOG]):
        if log:
            record(log)
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    sys.setprofile(None)


def draw_photos(folder: Path) -> None:
    """36 pictures in three folders, one colour each."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 90, (36, 32, 32, 3), dtype=np.uint8)
    for i, picture in enumerate(pixels):
        picture[..., i % 3] += 150
        place = folder / ("red", "green", "blue")[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i:02d}.png")


def trace(walk: str) -> Calls:
    """Take the walk in processes of its own, in an empty folder; returns the functions that it calls."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_photos(folder / "photos")
        # Python runs this at the start of every process, the workers of a sweep included.
        start = "import os, walks\nwalks.record(os.environ['BAYESMOOTH_WALK'])\n"
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(start if walk != "step" else "")
        paths = [folder / "hook", ROOT / "src", ROOT, ROOT / "tests"]
        env = os.environ | {
            LOG: str(folder / "log"),
            "BAYESMOOTH_CACHE": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        }
        done = subprocess.run(COMMANDS[walk], cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{walk}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        calls: Calls = {}
        for line in dict.fromkeys((folder / "log").read_text("utf-8").splitlines()):
            file, function = line.split("\t")
            short = str(Path(file).relative_to(ROOT)).removeprefix("src/bayesmooth/")
            calls.setdefault(short, []).append(function)
        return calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("walks", nargs="*", default=list(COMMANDS), help="step, audit, study")
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        take_step()
        return
    for walk in options.walks:
        calls = trace(walk)
        print(f"{walk:6} {sum(map(len, calls.values())):4} functions in {len(calls):3} files")
        if options.list:
            for file, functions in calls.items():
                print(f"  {file}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
