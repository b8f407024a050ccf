"""The snippets of every page run, one after the other, as a reader would type them (`py` marks a fragment)."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
ELSEWHERE = {
    "data.md",
    "losses.md",
}  # beside the rooms' own tests, which also check what is printed


def snippets(page: Path) -> str:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return "\n".join(block for block in blocks if not block.lstrip().startswith(">>>"))


PAGES = [
    page for page in sorted(DOCS.glob("*.md")) if page.name not in ELSEWHERE and snippets(page)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippets(page), page.name, "exec"), {"__name__": "page"})
    assert page.exists()


def test_links_between_pages_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
