import json
from pathlib import Path

import pytest

from reproduce.rows import make_table, read_table, write_table
from reproduce.summary import (
    fill_page,
    format_accuracies,
    format_ranges,
    format_strategies,
    format_verdicts,
)

HOME = Path(__file__).parents[2]


def test_the_tables_hold_what_the_files_hold(smoke):
    text = format_accuracies(smoke.out)
    row = next(line for line in text.splitlines() if "pairflip" in line)
    table = read_table(smoke.out / "cifar10-noisy.csv")
    plain = table.query("noise == 'pairflip 20 %' and method == 'LS' and strength == 0")["accuracy"]
    assert row.split("|")[3].strip(" *").startswith(f"{100 * plain.mean():.1f}")
    assert "**" in row
    assert len(set(map(len, (line.split("|") for line in text.splitlines())))) == 1


def test_every_claim_has_a_line(smoke):
    claims = [path.read_text().count('"verdict"') for path in smoke.out.glob("*.json")]
    first, _, *table = format_verdicts(smoke.out).splitlines()
    assert len(table) == 2 + sum(claims)
    assert first.startswith(f"{sum(claims)} claims: ")
    counts = [int(part.split()[0]) for part in first.partition(": ")[2].split(", ")]
    assert sum(counts) == sum(claims)


def test_a_claim_counts_at_the_scale_where_it_does_best(tmp_path):
    outs = [tmp_path / scale for scale in ("laptop", "features")]
    verdicts = [("not reproduced", "direction only"), ("reproduced", "not run")]
    for i, out in enumerate(outs):
        out.mkdir()
        claims = [{"paper": f"claim {j}", "verdict": each[i]} for j, each in enumerate(verdicts)]
        (out / "strategies.json").write_text(json.dumps({"claims": claims[: 2 - i]}))
    first, *_, second_last, last = format_verdicts(*outs).splitlines()
    assert first == "2 claims: 1 direction only, 1 reproduced."
    assert second_last == "| strategies | claim 0 | not reproduced | direction only |"
    assert last == "| strategies | claim 1 | **reproduced** | – |"


def test_only_what_stands_between_the_marks_is_replaced(smoke, tmp_path):
    page, results, scale = tmp_path / "page.md", smoke.out.parent, smoke.out.name
    mark = f"<!-- verdicts: {scale} -->\n"
    page.write_text(f"before\n{mark}old\n<!-- end -->\nbetween\n{mark}older\n<!-- end -->\nafter\n")
    fill_page(page, results)
    text = page.read_text()
    part = f"{mark}{format_verdicts(smoke.out)}\n<!-- end -->\n"
    assert text == f"before\n{part}between\n{part}after\n"
    fill_page(page, results)
    assert page.read_text() == text


def test_ranges_go_from_the_least_to_the_most_over_all_noises(tmp_path):
    def row(noise, method, strength, accuracy, memorised):
        facts = {"noise": noise, "method": method, "strength": strength, "seed": 0}
        return {**facts, "accuracy": accuracy, "validation": accuracy, "memorised": memorised}

    table = []
    for noise, ivon, best, known in (("a", 0.50, 0.52, 0.1), ("b", 0.45, 0.44, 0.2)):
        table += [row(noise, "IVON", None, ivon, known), row(noise, "LS", 0.0, 0.4, 4 * known)]
        table += [row(noise, "LS", 0.5, best, 0.0), row(noise, "SAM", 0.1, best - 0.1, 0.0)]
    write_table(make_table(table), tmp_path / "cifar10-noisy.csv")
    text = format_ranges(tmp_path)
    assert "−2.0 to +1.0 points above label smoothing" in text
    assert "+8.0 to +11.0 above SAM" in text
    assert "SGD memorises 40 to 80 % of the wrong labels, IVON 10 to 20 %" in text


def test_a_table_that_is_not_complete_says_so(tmp_path):
    assert format_strategies(tmp_path) == "Nothing is measured yet."
    study = {"study": "strategies", "runs": 3, "missing": 2, "table": [["loss"], ["ELR"]]}
    (tmp_path / "strategies.json").write_text(json.dumps(study))
    assert format_strategies(tmp_path).splitlines()[2:] == [
        "| ELR |",
        "",
        "`strategies` is not complete: 2 of 5 runs are missing, so nothing is judged.",
    ]


@pytest.mark.parametrize("page", ["docs/reproduce.md"])
def test_what_the_pages_say_is_what_the_results_hold(page, tmp_path):
    copy = tmp_path / "page.md"
    copy.write_text((HOME / page).read_text())
    fill_page(copy, HOME / "results")
    assert copy.read_text() == (HOME / page).read_text()
