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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from bayesmooth import IVON
from bayesmooth.cli import INTERRUPTED, main
from bayesmooth.data import datasets, load
from bayesmooth.losses import LOSSES

ROOT = Path(__file__).parents[1]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "SKILL.md", *SITE]
NOT_RUN = {"takes hours", "needs the benchmarks' data", "needs a person's decisions"}
MOST_WORDS, MOST_IN_ALL = 900, 21_300  # of a page beside its made tables, and of all pages
FENCE = re.compile(
    r'^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


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
    image = pytest.importorskip("PIL.Image")
    labels = np.arange(60) % 2
    given = np.where(np.arange(60) % 20 == 7, 1 - labels, labels)
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(60, 8)).astype(np.float32) + 3 * labels[:, None]
    np.savez(folder / "embeddings.npz", embeddings=vectors, labels=given, clean_labels=labels)
    write_lines(folder / "mine.toml", "[loss]", ['name = "ls"'])
    words = ("broken, bad, sent it back", "great, works well, love it")
    rows = (f'{i},"item {i}: {words[labels[i]]}",{(1, 5)[given[i]]}' for i in range(60))
    write_lines(folder / "reviews.csv", "id,review,stars", rows)
    rows = (f"{vectors[i, 0]:.2f},{vectors[i, 1]:.2f},{'ab'[given[i]]}" for i in range(60))
    write_lines(folder / "table.csv", "width,height,kind", rows)
    write_lines(folder / "new.csv", "height,width", ["3.1,2.9", ",0.2"])
    kinds, votes = ("cat", "dog"), []
    for i in range(60):
        place = folder / "photos" / kinds[given[i]]
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 90, (16, 16, 3), dtype=np.uint8)
        pixels[..., 2 * labels[i]] += 150  # cats are red, dogs are blue
        image.fromarray(pixels).save(place / f"{i:02d}.png")
        path = f"photos/{kinds[given[i]]}/{i:02d}.png"
        votes += [f"{who},{i:02d},{path},{kinds[labels[i]]}" for who in ("ann", "bob", "cem")]
    write_lines(folder / "votes.csv", "worker,photo,path,label", votes)
    return folder


def write_lines(path: Path, head: str, rows: Any) -> None:
    path.write_text("\n".join([head, *rows]) + "\n")


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
    at_hand = {"model": model, "train_set": train_set, "loader": loader, "optimizer": optimizer}
    return {"__name__": "page"} | at_hand


STAND_INS = {
    "bayesmooth": """#!/bin/sh
case "$1 $2" in "audit photos/" | "train photos/" | "audit reviews.csv" | "audit votes.csv")
  set -- "$@" --encoder plain ;;
esac
case "$1" in
  train) set -- "$@" --set train.epochs=1 ;;
  sweep) set -- $(echo "$@" | sed s/0:5/0:1/) --set train.epochs=1 ;;
  reproduce) set -- "$@" --scale smoke ;;
esac
exec "$PYTHON" -m bayesmooth "$@"
""",
    "python": '#!/bin/sh\nexec "$PYTHON" "$@"\n',
    "pip": "#!/bin/sh\n",  # nothing is installed
    "uv": "#!/bin/sh\n",
}


@pytest.fixture(scope="session")
def commands_at_hand(tmp_path_factory) -> Path:
    """The commands of this environment; what would take long does less."""
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


def run_shell(block: Block, place: Path, commands: Path) -> None:
    code = block.code
    if block.language == "console":
        code = "\n".join(line[2:] for line in code.splitlines() if line.startswith("$ "))
    env = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHON": sys.executable}
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def compare_printed(printed: str, block: Block) -> None:
    if block.title != "about":
        assert printed == block.code
        return
    assert re.sub(r"\d+", "", printed) == re.sub(r"\d+", "", block.code)
    pairs = zip(re.findall(r"\d+", printed), re.findall(r"\d+", block.code), strict=True)
    assert all(abs(int(ours) - int(shown)) <= 4 for ours, shown in pairs), printed


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_page)
def test_what_a_page_shows_is_what_happens(page, tmp_path, files_at_hand, commands_at_hand, monkeypatch):
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
            run_shell(block, tmp_path, commands_at_hand)
        elif block.language == "text":
            compare_printed(printed, block)
        elif block.title:
            (tmp_path / block.title).write_text(block.code)
        else:
            assert block.language in ("toml", "csv", "bibtex", "tree"), f"{block}: nobody runs it"


# --- what else the pages say -----------------------------------------------------------------------------------------


def test_few_blocks_are_not_run_and_every_fence_is_seen():
    reasons = [block.reason for page in PAGES for block in blocks(page) if block.reason]
    assert sorted(reasons) == sorted(NOT_RUN)
    for page in PAGES:
        assert page.read_text("utf-8").count("```") == 2 * len(blocks(page)), name_page(page)


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_a_page_is_short_and_its_links_and_extras_exist(page):
    text = page.read_text("utf-8")
    own = re.sub(r"<!-- (table|walk): .*?<!-- end -->", "", text, flags=re.DOTALL)
    assert len(own.split()) <= MOST_WORDS
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extras in re.findall(r"pip install \S*\[([\w,-]+)\]", text):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_the_pages_are_short_together_and_in_the_navigation():
    assert sum(len(page.read_text("utf-8").split()) for page in SITE) <= MOST_IN_ALL
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert all(str(page.relative_to(ROOT / "docs")) in navigation for page in SITE)


def test_the_list_for_agents_has_every_page_of_the_navigation_under_its_name():
    listed = re.findall(r"^- \[(.+?)\]\((.+?)\): .", (ROOT / "docs" / "llms.txt").read_text(), re.M)
    navigation = re.findall(r"- (\w.*): (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert listed == [(name, page) for name, page in navigation if not page.startswith("api/")]


def test_the_skill_names_the_files_and_the_exit_codes_that_there_are(tmp_path, files_at_hand, monkeypatch):
    text = (ROOT / "SKILL.md").read_text("utf-8")
    shutil.copytree(files_at_hand, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    table = ["table.csv", "--label", "kind", "--quiet"]
    ends = {
        0: [["audit", *table], ["train", *table, "--out", "run", "--set", "train.epochs=1"]],
        1: [["audit", *table, "--fail-on", "outliers"]],
        2: [["audit", "nowhere.csv"], ["nonsense"]],
    }
    for code, commands in ends.items():
        assert [main(command) for command in commands] == [code] * len(commands)
        assert f"\n| {code} | " in text
    assert f"\n| {INTERRUPTED} | " in text
    for kind, folder in (("an audit", "audit"), ("a run", "run")):
        rows = text.partition(f"file of {kind} ")[2].partition("\n\n")[0]
        written = {path.name for path in Path(folder).iterdir()} - {"lock"}
        assert set(re.findall(r"`(\w+\.\w+)`", rows)) - {"decisions.csv"} == written


def test_the_tables_are_those_of_the_results():
    command = [sys.executable, ROOT / "docs" / "make_tables.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_the_pages_on_data_and_losses_name_all_of_them():
    data, losses = ((ROOT / "docs" / name).read_text("utf-8") for name in ("data.md", "losses.md"))
    assert all(name in data for name in datasets())
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", losses, re.MULTILINE))
    assert rows == {name: cls.__name__ for name, cls in LOSSES.items()}
