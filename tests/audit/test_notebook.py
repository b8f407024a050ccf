import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bayesmooth
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.table import KINDS, Audit
from bayesmooth.data import Examples
from bayesmooth.errors import InputError

Make = Callable[..., Audit]


def with_texts(made_up: Make, **changes: Any) -> Audit:
    texts = [f"text {i} <b>" for i in range(300)]
    labels = torch.arange(300) % 4
    names = tuple(f"class {k}" for k in range(4))
    meta = {"row": [str(i + 2) for i in range(300)], "text": texts, "given": ["theirs"] * 300}
    data = Examples(torch.zeros(300, 1), labels, names, meta=meta)
    return made_up(examples=data, **changes)


def test_frame_has_one_row_per_example_with_names_and_the_data(made_up: Make) -> None:
    pytest.importorskip("pandas", reason="needs pandas, the extra data")
    made = with_texts(made_up)
    frame = made.to_frame()
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
    with pytest.raises(InputError, match="kind='wrong': must be one of contradicted, clear"):
        made.select("wrong")


def test_ten_worst_show_as_texts_or_pictures_and_are_escaped(made_up: Make) -> None:
    notes = {"notes": ["texts encoded <i>"], "warning": None}
    shown = with_texts(made_up, summary=notes)._repr_html_()
    worst = made_up().order[:10]
    assert all(f"text {i} &lt;b&gt;" in shown for i in worst)
    assert shown.count("<tr>") == 11
    assert "texts encoded &lt;i&gt;" in shown
    pytest.importorskip("PIL", reason="needs pillow, the extra data")
    images = torch.zeros(300, 1, 8, 8, dtype=torch.uint8)
    data = Examples(torch.zeros(300, 1), torch.arange(300) % 4, tuple("abcd"), pictures=images)
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


def test_names_of_the_package_are_the_public_ones() -> None:
    assert set(dir(bayesmooth)) == {*bayesmooth.__all__, "__version__"}
    assert bayesmooth.Audit.__doc__
    assert bayesmooth.Audit.__doc__.startswith("Which labels of a data set are probably wrong")
