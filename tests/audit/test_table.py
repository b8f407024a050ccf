"""The table, what is selected from it, and its files."""

import csv
import errno
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bayesmooth.audit import audit
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.table import KINDS, Audit
from bayesmooth.errors import InputError
from tests.audit.conftest import clouds

Make = Callable[..., Audit]


def test_the_worst_come_first_and_ties_stay_in_the_order_of_the_data(made_up: Make) -> None:
    made = made_up(4, disagreement=np.array([1.0, 3.0, 3.0, 2.0]))
    assert made.order.tolist() == [1, 2, 3, 0]
    assert made.columns()["rank"] == [4, 1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "count", "least", "sentence"),
    [
        (0, 300, 0.0, "None of the 300 labels looks wrong."),
        (1, 300, 0.0, "1 of 300 labels looks wrong (0.3\u00a0%)."),
        (1000, 2000, 0.0, "1,000 of 2,000 labels look wrong (50.0\u00a0%)."),
        (90, 300, 0.123, "At least 12.3\u00a0% of the labels are wrong, and 90 of 300 look wrong."),
    ],
)
def test_headline_says_what_holds(made_up: Make, wrong: int, count: int, least: float, sentence: str) -> None:
    given = np.arange(count) % 4
    suggested = np.where(np.arange(count) < wrong, (given + 1) % 4, given)
    made = made_up(count, suggested=suggested, summary={"noise_rate_at_least": least})
    assert made.headline == sentence


def test_frame_has_one_row_per_example_with_names_and_the_data(made_up: Make) -> None:
    pytest.importorskip("pandas", reason="needs pandas, the extra data")
    rows = [{"row": i + 2, "text": f"text {i} <b>", "given": "theirs"} for i in range(300)]
    frame = made_up(texts=rows).to_frame()
    assert len(frame) == 300
    assert frame["given"][5] == "class 1"  # the audit's own column, not the data's of that name
    assert (frame["text"][5], frame["row"][5]) == ("text 5 <b>", "7")
    assert frame["rank"].min() == 1


def test_selections_are_those_of_the_report_and_worst_first(made_up: Make) -> None:
    pytest.importorskip("pandas", reason="needs pandas, the extra data")
    first, other = np.full(300, -1), np.full(300, "", object)
    first[[10, 14]] = 10
    other[60] = "test-9"
    found = Findings(
        rare_class=np.arange(300) == 7,
        duplicate_of=first,
        conflicting=np.arange(300) == 14,
        outlier_score=np.where(np.arange(300) == 50, 2.0, 0.5),
        in_other_split=other,
        label_in_other_split=other,
    )
    made = made_up(findings=found)
    chosen = {kind: set(made.select(kind)["id"]) for kind in KINDS[5:]}
    assert chosen == {
        "duplicates": {"10", "14"}, "conflicts": {"14"}, "outliers": {"50"}, "rare": {"7"}, "leaks": {"60"},
    }  # fmt: skip
    assert len(made.mislabelled) == made.counts["mislabelled"] > 0
    assert made.mislabelled["rank"].is_monotonic_increasing
    assert sum(len(made.select(kind)) for kind in KINDS[1:5]) == 300
    assert len(made_up().select("duplicates")) == 0  # nobody looked
    with pytest.raises(InputError, match="kind='wrong': must be one of 'contradicted', 'clear'"):
        made.select("wrong")


def test_the_files_agree_with_the_table_and_with_each_other(tmp_path: Path, made_up: Make) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    made = audit(clouds(), quiet=True)
    page = made.save(tmp_path / "new" / "folder")
    assert page.name == "audit.html"
    assert sorted(p.name for p in page.parent.iterdir()) == ["audit.csv", "audit.html", "audit.json", "audit.parquet"]
    rows = list(csv.DictReader(io.StringIO((page.parent / "audit.csv").read_text())))
    table = parquet.read_table(page.parent / "audit.parquet").to_pydict()
    assert [row["given"] for row in rows] == table["given"] == made.columns()["given"]
    assert [int(row["rank"]) for row in rows] == table["rank"]
    summary = json.loads((page.parent / "audit.json").read_text())
    counts = np.zeros((3, 3), int)
    np.add.at(counts, (made.given, made.suggested), 1)
    assert [one["contradicted"] for one in summary["classes"]] == (counts.sum(1) - counts.diagonal()).tolist()
    assert "<script>alert" not in page.read_text()
    many = made_up(1200, classes=600).save(tmp_path).with_suffix(".json").read_text()
    assert len(many) < 200_000


def test_files_of_an_audit_are_all_new_or_all_old(
    made_up: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up().save(tmp_path)
    (tmp_path / "annotators.csv").touch()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    write = Path.write_bytes

    def fill_up(path: Path, content: bytes) -> int:
        if "audit.html" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill_up)
        with pytest.raises(InputError, match=r".*audit\.html: cannot be written: No space left"):
            made_up(200).save(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    made_up(200).save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == before.keys() - {"annotators.csv"}
    assert all(file.read_bytes() != before[file.name] for file in tmp_path.iterdir())


def test_report_and_csv_of_a_table_have_every_column_its_row_and_no_path(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas, the extra data")
    rng, kind = np.random.default_rng(0), np.arange(40) // 20
    frame = pandas.DataFrame({"bill": rng.normal(5 * kind), "mass": rng.normal(size=40)})
    frame["label"] = np.array(["cat", "dog"])[kind]
    frame.loc[3, "label"] = ""  # row 5 of the spreadsheet: it has no label and is left out
    frame.to_csv(tmp_path / "pets.csv", index=False)
    made = audit(tmp_path / "pets.csv", quiet=True)
    assert made.columns()["row"][:4] == ["2", "3", "4", "6"]
    page = made.save(tmp_path / "out").read_text()
    assert '"keys":["bill","mass"]' in page
    assert str(tmp_path) not in page
    frame.to_csv(tmp_path / "pets.csv.gz", index=False)
    assert "--out pets-cleaned.csv.gz" in audit(tmp_path / "pets.csv.gz", quiet=True).save(tmp_path).read_text()
