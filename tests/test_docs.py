"""Every block of code in the README and the pages runs, in order, as a reader would type it.

- `python`: all blocks of a page are one session. A `text` block after one is what it prints, with the
  title "about" up to 4 in each number; `>>>` is checked by line.
- `sh`, `console`: bash, in the page's own folder (of `console`, the lines after `$`). What takes long does less work.
- Any other block with a title is a file of that name: ```toml title="mine.toml"
- `<!-- not run: why -->` before a block keeps it from running; how often that happens is counted below.
"""

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from bayesmooth import IVON
from bayesmooth.data import DATASETS, load
from bayesmooth.losses import LOSSES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = {
    "needs the network": 1,
    "needs a GPU": 1,
    "takes hours": 1,
    "needs the benchmarks' data": 1,
    "has a test of its own": 1,
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
FENCE = re.compile(
    r'^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)

NUMBER = r"\d+"


class Block(NamedTuple):
    reason: str | None
    language: str
    title: str | None
    code: str


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in FENCE.finditer(page.read_text("utf-8"))]


# --- what a reader has at hand ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def files_at_hand(tmp_path_factory) -> Path:
    """The files that the pages speak of, small: two classes that are easily told apart, and a few wrong labels."""
    folder = tmp_path_factory.mktemp("reader")
    labels = np.arange(60) % 2
    given = np.where(np.arange(60) % 20 == 7, 1 - labels, labels)
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(60, 8)).astype(np.float32) + 3 * labels[:, None]
    np.savez(folder / "embeddings.npz", embeddings=vectors, labels=given, clean_labels=labels)
    sure = np.where(labels == 1, 0.9, 0.1)
    np.savez(folder / "predictions.npz", probabilities=np.stack([1 - sure, sure], 1), labels=given)
    (folder / "mine.toml").write_text('[loss]\nname = "ls"\n')
    praise, blame = ("great, works well, love it", "broken, bad, sent it back")
    rows = [f'{i},"item {i}: {(blame, praise)[labels[i]]}",{(1, 5)[given[i]]}' for i in range(60)]
    (folder / "reviews.csv").write_text("\n".join(["id,review,stars", *rows]) + "\n")
    (folder / "decisions.csv").write_text('id,given,decision,new_label\n"7","1","relabel","5"\n')
    measured = [f"{vectors[i, 0]:.2f},{vectors[i, 1]:.2f},{'ab'[given[i]]}" for i in range(60)]
    (folder / "table.csv").write_text("\n".join(["width,height,kind", *measured]) + "\n")
    (folder / "new.csv").write_text("height,width\n3.1,2.9\n,0.2\n")
    image = pytest.importorskip("PIL.Image")
    for i in range(60):
        place = folder / "photos" / ("cat", "dog")[given[i]]
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 90, (16, 16, 3), dtype=np.uint8)
        pixels[..., 2 * labels[i]] += 150  # cats are red, dogs are blue
        image.fromarray(pixels).save(place / f"{i:02d}.png")
    votes = [
        f"{worker},{i:02d},photos/{('cat', 'dog')[given[i]]}/{i:02d}.png,{('cat', 'dog')[labels[i]]}"
        for i in range(60)
        for worker in ("ann", "bob", "cem")
    ]
    (folder / "votes.csv").write_text("\n".join(["worker,photo,path,label", *votes]) + "\n")
    return folder


def names_at_hand() -> dict[str, Any]:
    """The names that a snippet may take as given: a model, its data, and an optimizer that has seen them once."""
    digits = load("digits", "train")
    inputs, labels = digits.batch(torch.arange(200)), digits.labels[:200]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    train_set = torch.utils.data.TensorDataset(inputs, labels)
    loader = torch.utils.data.DataLoader(train_set, batch_size=50)
    optimizer = IVON(model.parameters(), lr=0.1, ess=len(train_set), hess_init=0.5, seed=0)
    for x, y in loader:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {
        "__name__": "page",
        "model": model,
        "train_set": train_set,
        "loader": loader,
        "optimizer": optimizer,
    }


STAND_INS = {
    "bayesmooth": """#!/bin/sh
case "$1 $2" in "audit photos/"|"audit reviews.csv"|"audit votes.csv") set -- "$@" --encoder plain ;; esac
case "$1" in
  train | tune) set -- "$@" --set train.epochs=1 ;;
  sweep) set -- $(echo "$@" | sed s/0:5/0:1/) --set train.epochs=1 ;;
  tune) set -- "$@" --set train.epochs=4 ;;
  reproduce) set -- "$@" --scale smoke ;;
  demo) set -- "$@" --seeds 1 ;;
esac
exec "$PYTHON" -m bayesmooth.cli "$@"
""",
    "python": '#!/bin/sh\nexec "$PYTHON" "$@"\n',
    "make": f'#!/bin/sh\nexec {shutil.which("make")} -n -C "$ROOT" "$@"\n',  # only whether there is such a target
    "pip": "#!/bin/sh\n",
}


@pytest.fixture(scope="session")
def commands_at_hand(tmp_path_factory) -> Path:
    """The commands of this environment; what would take long does less, and nothing is installed."""
    folder = tmp_path_factory.mktemp("bin")
    for name, script in STAND_INS.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


# --- running ---------------------------------------------------------------------------------------------------------


def run_python(code: str, session: dict[str, Any], page: str) -> str:
    """Run a block in the page's session; returns what it printed."""
    printed = io.StringIO()
    if code.lstrip().startswith(">>>"):
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        lines = doctest.DocTestParser().get_doctest(code, session, page, page, 0)
        lines.globs = session  # one session: the parser made a copy
        runner.run(lines, out=printed.write, clear_globs=False)
        assert not runner.failures, printed.getvalue()
        return ""
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), session)
    return printed.getvalue()


def run_shell(code: str, place: Path, commands: Path) -> None:
    env = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "ROOT": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def typed(block: Block) -> str:
    """The commands of a shell block."""
    if block.language != "console":
        return block.code
    return "\n".join(line[2:] for line in block.code.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_page)
def test_what_a_page_shows_is_what_happens(
    page, tmp_path, files_at_hand, commands_at_hand, monkeypatch
):
    shutil.copytree(files_at_hand, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESMOOTH_CACHE", str(tmp_path / "cache"))
    session, printed = names_at_hand(), ""
    for block in blocks(page):
        if block.reason:
            continue
        if block.language == "python":
            printed = run_python(block.code, session, name_page(page))
        elif block.language in ("sh", "console"):
            run_shell(typed(block), tmp_path, commands_at_hand)
        elif block.language == "text" and block.title == "about":
            assert re.sub(NUMBER, "", printed) == re.sub(NUMBER, "", block.code)
            ours, theirs = (map(int, re.findall(NUMBER, text)) for text in (block.code, printed))
            assert all(abs(a - b) <= 4 for a, b in zip(ours, theirs, strict=True)), printed
        elif block.language == "text":
            assert printed == block.code
        elif block.title:
            (tmp_path / block.title).write_text(block.code)
        else:
            assert block.language in ("toml", "csv", "bibtex", "tree"), (
                f"{block}: of a kind that nobody runs"
            )


def test_few_blocks_are_not_run():
    reasons = Counter(block.reason for page in PAGES for block in blocks(page) if block.reason)
    assert reasons == NOT_RUN


def test_every_fence_is_seen():
    """A fence that the pattern does not match would not run, and nobody would notice."""
    for page in PAGES:
        assert page.read_text("utf-8").count("```") == 2 * len(blocks(page)), name_page(page)


# --- what else the pages say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in PAGES[1:]:
        assert str(page.relative_to(ROOT / "docs")) in navigation


def test_settings_are_recommended_in_one_place():
    """What docs/settings.md says holds in the snippets of all pages."""
    for page in PAGES:
        shown = "".join(
            block.code for block in blocks(page) if block.language in ("python", "toml")
        )
        found = re.findall(r"\b(?:hess_init|beta2) ?= ?[^,)\s]+", shown)
        assert not found, f"{name_page(page)}: {found[0]}; they follow from epochs and steps"


def test_the_page_on_data_names_every_data_set():
    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    assert all(f"| `{name}` |" in text for name in DATASETS)


def test_the_page_on_losses_names_every_loss_and_its_class():
    text = (ROOT / "docs" / "losses.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, re.MULTILINE))
    assert rows == {name: cls.__name__ for name, cls in LOSSES.items()}


def test_whatever_pip_is_asked_for_exists():
    for page in PAGES:
        for extras in re.findall(r"pip install \S*\[([\w,-]+)\]", page.read_text("utf-8")):
            assert set(extras.split(",")) <= EXTRAS.keys(), f"{name_page(page)}: {extras}"
