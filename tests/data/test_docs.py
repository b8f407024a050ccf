import doctest
from pathlib import Path

import pytest

from bayesmooth.data import DATASETS

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_what_the_page_shows_is_what_happens(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(
        str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8"
    )
    assert results.failed == 0
    assert results.attempted > 5


def test_the_page_names_every_data_set():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in DATASETS)
