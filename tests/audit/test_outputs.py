import errno
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesmooth
from bayesmooth import audit
from bayesmooth.audit.outputs import to_html
from bayesmooth.audit.report import find_usual
from bayesmooth.audit.table import Audit
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError

Make = Callable[..., Audit]


def test_ten_worst_show_as_texts_or_pictures_and_are_escaped(made_up: Make, of_texts: Make) -> None:
    notes = {"notes": ["texts encoded <i>"], "warning": None}
    shown = of_texts(summary=notes)._repr_html_()
    worst = made_up().order[:10]
    assert all(f"text {i} &lt;b&gt;" in shown for i in worst)
    assert shown.count("<tr>") == 11
    assert "texts encoded &lt;i&gt;" in shown
    pytest.importorskip("PIL", reason="needs pillow, the extra data")
    images = torch.zeros(300, 1, 8, 8, dtype=torch.uint8)
    data = Source(torch.zeros(300, 1), Labels(torch.arange(300) % 4, tuple("abcd")), pictures=images)
    assert made_up(examples=data)._repr_html_().count("<img") == 10


def test_report_shows_inline_in_a_notebook_and_else_in_the_browser(
    made_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    made_up().show()
    assert shown.pop().startswith("file://")
    ipython = types.SimpleNamespace(display=types.SimpleNamespace(display=shown.append, HTML=str))
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    made_up().show()
    assert shown[0].startswith('<iframe srcdoc="&lt;!doctype html&gt;')


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


def test_names_of_the_package_are_the_public_ones() -> None:
    assert set(dir(bayesmooth)) == {*bayesmooth.__all__, "__version__"}
    assert bayesmooth.Audit.__doc__
    assert bayesmooth.Audit.__doc__.startswith("Which labels of a data set are probably wrong")


def test_usual_values_follow_the_class_and_ignore_the_odd_one() -> None:
    labels = np.repeat([0, 1], 50)
    size = [*([3.0] * 25 + [4.0] * 24 + [90.0]), *[40.0 + i % 3 for i in range(50)]]
    names = [f"name {i}" for i in range(100)]
    city = ["Lima"] * 49 + ["Rome"] + ["Rome"] * 50
    columns = zip(size, names, city, [""] * 100, strict=True)
    rows = [dict(zip(("size", "name", "city", "gap"), row, strict=True)) for row in columns]
    usual = find_usual(rows, labels, 2)
    assert usual is not None
    assert usual[0] == [(3.0, 5.5), None, ["Lima", "Rome"], None]
    assert usual[1][2] == ["Rome"]
    low, high = usual[1][0] or (0, 0)
    assert low >= 37
    assert high <= 45


def test_report_and_csv_of_a_table_have_every_column_its_row_and_no_path(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas, the extra data")
    rng = np.random.default_rng(0)
    label = np.array(["cat", "dog"])[np.arange(40) // 20]
    frame = pandas.DataFrame({"bill": rng.normal(5 * (np.arange(40) // 20)), "mass": rng.normal(size=40)})
    frame["label"] = label
    frame.loc[3, "label"] = ""  # row 5 of the spreadsheet: it has no label and is left out
    frame.to_csv(tmp_path / "pets.csv", index=False)
    made = audit(tmp_path / "pets.csv", quiet=True)
    table = made.columns()
    assert table["row"][:4] == ["2", "3", "4", "6"]
    page = to_html(made, thumbnails=0)
    assert '"keys":["bill","mass"]' in page
    assert str(tmp_path) not in page


def test_report_of_a_folder_names_pictures_below_it_only(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")
    for name, grey in (("dark", 20), ("light", 220)):
        (tmp_path / name).mkdir()
        for i in range(6):
            pixels = np.full((40, 60, 3), grey + i, np.uint8)
            image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    made = audit(tmp_path, encoder="plain", cache=tmp_path / "cache", quiet=True)
    page = to_html(made, thumbnails=5)
    assert '"dark/0.png"' in page
    assert str(tmp_path) not in page
    assert '"sizes":[[60,40],' in page  # whole pictures, not squares cut out of them
