"""Three walks through the code, traced: `python tests/walks.py [step audit study] [--list] [--write]`.

Counts the functions and files of each walk. `--list` names them in the order of their first call, `--write` puts them
into docs/architecture.md. Named functions of `src/` and `reproduce/` count, in every thread and process; functions that
run while a module is imported do not.
"""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = (str(ROOT / "src"), str(ROOT / "reproduce"))
LOG = "BAYESMOOTH_WALK"
COMMANDS = {
    "step": f"{__file__} --step",
    "audit": "-m bayesmooth audit photos/ --encoder plain",
    "study": "-m bayesmooth reproduce data-dependent --scale smoke --jobs 1",
}
Calls = dict[str, list[str]]  # file → its functions, both in the order of their first call


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
    for number in range(2):
        if number:
            record(os.environ[LOG])
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
        (place := folder / "rgb"[i % 3]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i:02d}.png")


def trace(walk: str) -> Calls:
    """Take the walk in processes of its own, in an empty folder; returns the functions that it calls."""
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name, "log")
        draw_photos(folder / "photos")
        if walk != "step":  # Python runs this file at the start of every process, also of a sweep's
            start = f"import os, walks\nwalks.record(os.environ['{LOG}'])\n"
            (folder / "sitecustomize.py").write_text(start)
        paths = os.pathsep.join(map(str, (folder, ROOT / "src", ROOT, ROOT / "tests")))
        env = os.environ | {LOG: str(log), "BAYESMOOTH_CACHE": f"{name}/cache", "PYTHONPATH": paths}
        command = [sys.executable, *COMMANDS[walk].split()]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{walk}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        calls: Calls = {}
        for line in dict.fromkeys(log.read_text("utf-8").splitlines()):
            file, function = line.split("\t")
            short = str(Path(file).relative_to(ROOT)).removeprefix("src/bayesmooth/")
            calls.setdefault(short, []).append(function)
        return calls


def describe(calls: Calls) -> str:
    """The walk as it stands on the page."""
    cells = {file: ", ".join(names).replace("__", r"\_\_") for file, names in calls.items()}
    rows = [f"| `{file}` | {names} |" for file, names in cells.items()]
    head = f"{sum(map(len, calls.values()))} functions in {len(calls)} files:"
    return "\n".join([head, "", "| file | functions |", "| --- | --- |", *rows])


def main() -> None:
    options = {argument for argument in sys.argv[1:] if argument.startswith("--")}
    if "--step" in options:
        take_step()
        return
    for walk in [argument for argument in sys.argv[1:] if argument in COMMANDS] or COMMANDS:
        shown = describe(trace(walk))
        print(f"{walk}: {shown if '--list' in options else shown.partition(':')[0]}")
        if "--write" in options:
            before, mark, rest = PAGE.read_text("utf-8").partition(f"<!-- walk: {walk} -->\n")
            after = rest[rest.index("<!-- end -->") :]
            PAGE.write_text(f"{before}{mark}{shown}\n{after}", "utf-8")


if __name__ == "__main__":
    main()
