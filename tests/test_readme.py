"""What the README says is what the commands gave; its code is run by `test_docs.py`."""

import json
import re
from pathlib import Path

import pytest

from bayesmooth.files import records

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DEMO = ROOT / "results" / "demo" / "demo.json"


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table, without bold type and the line below its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip(" *") for cell in line] for line in lines]
    return [row for row in cells if set(row[0]) != {"-"}]


def test_a_visitor_decides_in_thirty_seconds():
    """The picture, how to get it, and how to use it come before anything else; tables are short."""
    order = [
        "**Find",
        "![",
        "pip install",
        "bayesmooth audit",
        "IVON.auto(",
        "## What you get",
        "make demo",
        "make test",
    ]
    places = [README.index(part) for part in order]
    assert places == sorted(places)
    tables = re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE)
    assert len(tables) == 2
    assert all(len(rows(table)) <= 6 for table in tables)  # a head, and five


def test_the_table_of_the_demo_is_what_the_demo_gave():
    """`make demo`, then out/demo/demo.* to results/demo. The README shows some of its rows and columns."""
    head, *made = json.loads(DEMO.read_text("utf-8"))["table"]
    shown_head, *shown = rows(README.partition("<!-- demo -->")[2].partition("<!-- end -->")[0])
    columns = [head.index(name) for name in shown_head]
    known = [[row[column] for column in columns] for row in made]
    for row in shown:
        assert row in known, "\n".join(f"| {' | '.join(each)} |" for each in known)


def test_the_audits_tables_are_what_the_benchmark_gave():
    """`python -m benchmarks audit` fills them, here and on the page, from the lines it wrote."""
    pytest.importorskip("cleanlab")
    from benchmarks.audit import tables_of

    tables = tables_of(records(ROOT / "results" / "audit.jsonl"))
    page = (ROOT / "docs" / "evidence-audit.md").read_text("utf-8")
    assert f"<!-- audit -->\n{tables.pop('audit')}\n<!-- end -->" in README
    marks = re.findall(r"<!-- (audit .*?) -->", page)
    assert len(marks) >= 9
    for name in marks:
        assert f"<!-- {name} -->\n{tables[name]}\n<!-- end -->" in page, name
