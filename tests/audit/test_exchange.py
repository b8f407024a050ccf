"""A team's tool in between: what is exported, answered there and read again does what the report's decisions do."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bayesmooth import audit, cli
from bayesmooth.audit.decisions import clean, read_decisions
from bayesmooth.audit.exchange import REMOVE
from bayesmooth.errors import InputError
from tests.audit.conftest import make_tags

WORDS = ("broken, bad, sent it back", "great, works well, love it")


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Sixty texts of two kinds; three labels are wrong."""
    lines = ["id,review,stars"]
    for i in range(60):
        kind = i % 2
        given = 1 - kind if i in (7, 27, 47) else kind
        lines.append(f'r{i},"item {i}: {WORDS[kind]}",{("bad", "good")[given]}')
    (tmp_path / "reviews.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "reviews.csv"


def answer(tasks: Any, choose: dict[str, list[str]]) -> Any:
    """What the tool exports after somebody chose these labels, by id."""
    for task in tasks:
        labels = choose.get(task["data"]["example"])
        result = {"type": "choices", "value": {"choices": labels}}
        task["annotations"] = [{"was_cancelled": True, "result": []}]
        task["annotations"] += [{"was_cancelled": False, "result": [result]}] if labels else []
    return tasks


def test_answers_come_back_and_are_applied(reviews: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "out", tmp_path / "corrected.csv"
    line = ["audit", str(reviews), "--text", "review", "--label", "stars", "--encoder", "plain"]
    assert cli.main([*line, "--out", str(out), "--export", "label-studio", "--quiet"]) == 0
    tasks = json.loads((out / "label-studio.json").read_text())
    choose = {"r7": ["good"], "r27": ["good"], "r47": [REMOVE]}
    (out / "export.json").write_text(json.dumps(answer(tasks, choose)))
    options = ["--label", "stars", "--out", str(table)]
    assert cli.main(["clean", str(reviews), str(out / "export.json"), *options]) == 0
    expected = [row for row in reviews.read_text().splitlines() if not row.startswith("r47,")]
    for place in (8, 28):
        expected[place] = expected[place].replace(",bad", ",good")
    assert table.read_text().splitlines() == expected
    kept = {row.id: row.decision for row in read_decisions(out / "export.json")}
    assert kept == {"r7": "relabel", "r27": "relabel", "r47": "remove"}


def test_suggestions_have_their_scores_and_stand_worst_first(reviews: Path, tmp_path: Path) -> None:
    made = audit(reviews, text="review", label="stars", encoder="plain", quiet=True)
    worst = made.top(1)[0]
    task = json.loads(made.export(tmp_path).read_text())[0]
    assert task["data"]["example"] == worst["id"]
    assert task["data"]["text"] == worst["text"]
    (prediction,) = task["predictions"]
    assert prediction["score"] == pytest.approx(worst["suggested_probability"], abs=1e-4)
    assert prediction["result"][0]["value"] == {"choices": [worst["suggested"]]}
    view = ElementTree.parse(tmp_path / "label-studio.xml").getroot()
    names = {part.get("name") for part in view}
    assert {prediction["result"][0][key] for key in ("from_name", "to_name")} == names
    assert {part.get("value") for part in view.iter("Choice")} == {"bad", "good", REMOVE}


def test_tags_go_and_come_back_as_lists(tmp_path: Path) -> None:
    names, (rows, given, true) = ("beach", "dog", "night"), make_tags(120)
    lines = [",".join(map(str, [*x, *tags])) for x, tags in zip(rows, given, strict=True)]
    path = tmp_path / "photos.csv"
    path.write_text("\n".join(["x,y,z,beach,dog,night", *lines]) + "\n")
    made = audit(path, tags=names, quiet=True)
    items = json.loads(made.export(tmp_path).read_text())
    right = [[n for n, on in zip(names, row, strict=True) if on] for row in true]
    choose = {made.ids[i]: right[i] for i in (7, 20) if right[i]}
    (tmp_path / "export.json").write_text(json.dumps(answer(items, choose)))
    clean(path, tmp_path / "export.json", tmp_path / "out.csv", tags=names)
    after = [row.split(",")[3:] for row in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    assert len(choose) == 2
    assert np.array_equal(np.array(after, int), true)


def test_pictures_are_named_below_their_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")
    for i in range(24):
        place = tmp_path / "photos" / ("dark" if (i % 2) ^ (i == 5) else "light")
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 60, (20, 20, 3), dtype=np.uint8)
        image.fromarray(pixels + np.uint8(0 if i % 2 else 190)).save(place / f"{i}.png")
    made = audit(tmp_path / "photos", encoder="plain", quiet=True)
    task = json.loads(made.export(tmp_path).read_text())[0]
    assert task["data"]["image"] == "/data/local-files/?d=light/5.png"


def test_what_no_tool_exported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"data": {"example": "r1", "given": "bad"}}]')
    with pytest.raises(InputError, match="holds no answer"):
        read_decisions(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="must be a JSON export of Label Studio"):
        read_decisions(tmp_path / "x.json")
