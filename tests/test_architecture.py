"""The three walks on the page are those of the code, and do not grow."""

import re
from pathlib import Path

import pytest

from tests import walks

pytest.importorskip("PIL")
ROOT = Path(__file__).parents[1]
# Functions and files: these may only fall.
CEILINGS = {"step": (22, 4), "audit": (166, 24), "study": (230, 32)}


@pytest.mark.slow
@pytest.mark.parametrize("walk", walks.COMMANDS)
def test_the_walk_on_the_page_is_the_walk_of_the_code(walk):
    """Threads may change the order of the calls, so sets are compared."""
    calls = walks.trace(walk)
    functions, files = CEILINGS[walk]
    assert sum(map(len, calls.values())) <= functions
    assert len(calls) <= files
    text = walks.PAGE.read_text("utf-8").partition(f"<!-- walk: {walk} -->")[2]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", text.partition("<!-- end -->")[0], re.MULTILINE)
    on_page = {file: set(names.replace("\\", "").split(", ")) for file, names in rows}
    assert on_page == {file: set(names) for file, names in calls.items()}, "python tests/walks.py --write"
    drawing = (ROOT / "docs" / "architecture.svg").read_text("utf-8")
    drawn = set(re.findall(r'class="name"[^>]*>(\w+)', drawing))
    rooms = {file.split("/")[0].removesuffix(".py") for file in calls} & drawn
    assert set(re.findall(rf'id="{walk}-(\w+)"', drawing)) == rooms
