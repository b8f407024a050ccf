"""The page about the losses tells the truth."""

import re
from pathlib import Path

import pytest

from bayesmooth.losses import LOSSES

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), SNIPPETS)
def test_snippets_print_what_the_page_says(code, printed, capsys):
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_the_table_names_every_method_and_class():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE))
    assert rows == {name: cls.__name__ for name, cls in LOSSES.items()}
