from bayesmooth.studies.summary import accuracies, fill, verdicts
from bayesmooth.studies.table import read


def test_the_tables_hold_what_the_files_hold(smoke):
    text = accuracies(smoke.out)
    row = next(line for line in text.splitlines() if "pairflip" in line)
    rows = read(smoke.out / "cifar10-noisy.csv")
    ours = next(r for r in rows if r["noise"] == "pairflip 20 %" and r["method"] == "IVON")
    plain = next(r for r in rows if r["noise"] == "pairflip 20 %" and r["strength"] == 0.0)
    assert [cell.strip(" *") for cell in row.split("|")[3:5]] == [
        f"{100 * each['accuracy']:.1f} ± 0.0" for each in (plain, ours)
    ]
    assert "**" in row
    assert len(set(map(len, (line.split("|") for line in text.splitlines())))) == 1


def test_every_claim_has_a_line(smoke):
    assert verdicts(smoke.out).count("\n") > 20
    assert "sigmoid-noise" in verdicts(smoke.out)


def test_only_what_stands_between_the_marks_is_replaced(smoke, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- verdicts -->\nold\n<!-- end -->\nafter\n")
    fill(page, smoke.out)
    text = page.read_text()
    assert text.startswith("before\n<!-- verdicts -->\n| study |")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "old" not in text
    fill(page, smoke.out)
    assert page.read_text() == text
