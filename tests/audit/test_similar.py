from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth import audit
from bayesmooth.audit.outputs import to_html
from bayesmooth.audit.similar import EACH, find_similar, find_usual


def test_nearest_with_each_label_are_those_of_a_plain_search() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 5)), rng.integers(0, 4, 60)
    suggested = (labels + 1) % 4
    found = find_similar(torch.from_numpy(x), labels, suggested, np.arange(60))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for i in range(60):
        order = [j for j in np.argsort(-(unit @ unit[i])) if j != i]
        assert found.given[i].tolist() == [j for j in order if labels[j] == labels[i]][:EACH]
        wanted = [j for j in order if labels[j] == suggested[i]][:EACH]
        assert found.suggested[i].tolist() == wanted


def test_usual_values_follow_the_class_and_ignore_the_odd_one() -> None:
    labels = np.repeat([0, 1], 50)
    size = [*([3.0] * 25 + [4.0] * 24 + [90.0]), *[40.0 + i % 3 for i in range(50)]]
    names = [f"name {i}" for i in range(100)]
    city = ["Lima"] * 49 + ["Rome"] + ["Rome"] * 50
    usual = find_usual({"size": size, "name": names, "city": city, "gap": [""] * 100}, labels, 2)
    assert usual[0] == [(3.0, 5.5), None, ["Lima", "Rome"], None]
    assert usual[1][2] == ["Rome"]
    low, high = usual[1][0] or (0, 0)
    assert low >= 37
    assert high <= 45


def test_report_and_csv_of_a_table_have_every_column_its_row_and_no_path(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas, the extra data")
    rng = np.random.default_rng(0)
    label = np.array(["cat", "dog"])[np.arange(40) // 20]
    frame = pandas.DataFrame(
        {"bill": rng.normal(5 * (np.arange(40) // 20)), "mass": rng.normal(size=40)}
    )
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
