from pathlib import Path

import benchmarks
import pytest
import torch
from benchmarks.__main__ import BENCHMARKS
from benchmarks.audit import benchmark, print_rows, print_summary, read_known

from bayesmooth.data import Examples, corrupt, load
from bayesmooth.errors import InputError

pytest.importorskip("cleanlab")


@pytest.fixture(scope="module")
def digits() -> Examples:
    noisy, _ = corrupt(load("digits", "train"), "symmetric", rate=0.2, seed=0)
    return noisy.subset(torch.arange(300))


def test_every_method_finds_most_of_the_errors_and_need_not_be_measured_twice(
    digits: Examples,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = print_rows(benchmark(digits, quiet=True))
    (tmp_path / "known.txt").write_text(f"{digits}\n{capsys.readouterr().out}")
    assert read_known() == {}
    monkeypatch.setenv("BAYESMOOTH_KNOWN", str(tmp_path / "known.txt"))
    known = read_known()[str(digits)]
    assert set(known) == {row.method for row in rows[1:]}
    again = print_rows(benchmark(digits, known=known, quiet=True))
    assert again[1:] == list(known.values())
    capsys.readouterr()
    print_rows(iter(rows))
    print_summary({"digits": rows})
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("bayesmooth")
    assert printed[-2].startswith(f"digits | {rows[0].ap:.3f}")
    for row in rows:
        assert row.ap > 0.75, row
        assert row.auroc > 0.9, row
        assert row.precision > 0.7, row


def test_without_known_errors_there_is_nothing_to_measure(digits: Examples) -> None:
    unknown = Examples(digits.inputs, digits.labels, digits.class_names)
    with pytest.raises(InputError, match="needs the true labels"):
        list(benchmark(unknown))
    right = load("digits", "train")
    clean = Examples(right.inputs, right.labels, right.class_names, right.labels)
    with pytest.raises(InputError, match="nothing to find"):
        list(benchmark(clean))


def test_every_benchmark_is_listed_with_what_it_compares_and_its_time() -> None:
    folder = Path(benchmarks.__path__[0])
    with_main = {p.stem for p in folder.glob("*.py") if "def main(quick" in p.read_text("utf-8")}
    assert with_main == set(BENCHMARKS)
    assert all(about and time for about, time in BENCHMARKS.values())
