import errno
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bayesmooth
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
    data = Source(
        torch.zeros(300, 1), Labels(torch.arange(300) % 4, tuple("abcd")), pictures=images
    )
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


def test_plot_draws_every_label_once(made_up: Make) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, the extra plot")
    scatter, matrix = made_up().plot().axes
    assert sum(len(points.get_offsets()) for points in scatter.collections) == 300
    assert matrix.images[0].get_array().sum() == 30


def test_a_notebook_shows_the_figure(made_up: Make) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, the extra plot")
    assert made_up().plot()._repr_png_().startswith(b"\x89PNG")


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
