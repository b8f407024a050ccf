"""Dirt in real data is listed with its ids, and the rest is audited."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit import Audit, audit, audit_probabilities
from bayesmooth.audit.decisions import clean
from bayesmooth.cli import main
from bayesmooth.data import Columns, Labels, Source, open_source, pictures
from bayesmooth.data.opening import make_ready, settle
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
pil = pytest.importorskip("PIL.Image")

COUNT = 40
TEXTS = [f"{'a lovely good film' if i % 2 else 'an awful bad film'} no {i}" for i in range(COUNT)]
NAMES = ["good" if i % 2 else "bad" for i in range(COUNT)]


def found(made: Audit) -> dict[str, list[str]]:
    """The ids of every kind of problem."""
    assert made.findings is not None
    return {p.kind: [id.partition("-")[0] for id in p.ids] for p in made.findings.problems}


def reviews(**changes: Any) -> Any:
    return pandas.DataFrame({"text": TEXTS, "label": NAMES} | changes)


def run(frame: Any, **options: Any) -> Audit:
    return audit(frame, text="text", encoder="plain", quiet=True, **options)


def test_a_class_with_one_example_is_found_and_the_rest_is_audited_as_without_it() -> None:
    made = run(reviews(label=["CHANGE PIN", *NAMES[1:]]))
    assert found(made) == {"single_example": ["0"]}
    assert made.class_names == ("bad", "good")
    np.testing.assert_array_equal(made.disagreement, run(reviews()[1:]).disagreement)


def test_a_class_that_the_user_named_stays_one() -> None:
    made = run(reviews(label=["ugly", *NAMES[1:]]), class_names=["bad", "good", "ugly"])
    assert (found(made), made.class_names[2]) == ({"single_example": ["0"]}, "ugly")


def test_predictions_of_somebody_else_need_no_second_example_of_a_class() -> None:
    p = np.full((6, 3), 0.1)
    p[range(6), [0, 0, 0, 1, 1, 2]] = 0.8
    made = audit_probabilities(p, [0, 0, 1, 1, 1, 2], quiet=True)
    assert (len(made), found(made)) == (6, {"single_example": ["5"]})
    assert made.columns()["problem"] == ["", "", "", "", "", "single_example"]


def test_empty_texts_are_no_conflicting_copies() -> None:
    texts = [" " if i in (3, 4, 5) else text for i, text in enumerate(TEXTS)]
    made = run(reviews(text=texts))
    assert found(made) == {"empty_text": ["3", "4", "5"]}
    assert made.findings is not None
    assert made.findings.counts()["near_duplicates_with_different_labels"] == 0


def test_examples_that_share_an_id_are_all_left_out_and_named() -> None:
    ids = ["7" if i in (2, 9) else f"n{i}" for i in range(COUNT)]
    made = run(reviews(id=ids))
    assert (len(made), found(made)) == (COUNT - 2, {"duplicate_id": ["7", "7"]})
    assert "7" not in made.ids


def test_labels_that_differ_in_case_or_blanks_are_listed_and_stay_classes() -> None:
    labels = ["Good " if i in (1, 3) else name for i, name in enumerate(NAMES)]
    made = run(reviews(label=labels))
    assert (found(made), made.class_names) == ({"label_spelling": ["1", "3"]}, ("Good", "bad", "good"))
    assert made.columns()["problem"][:4] == ["", "label_spelling", "", "label_spelling"]


def test_missing_labels_in_arrays_are_left_out_and_rows_keep_their_numbers() -> None:
    x = np.random.default_rng(0).normal(size=(COUNT, 3)) + 6 * (np.arange(COUNT) % 2)[:, None]
    for gap in (None, float("nan"), "NA", " "):
        labels = np.array(NAMES, object)
        labels[4] = gap
        made = audit(x, labels, quiet=True)
        assert (found(made), made.ids[3:5]) == ({"missing_label": ["4"]}, ("3", "5"))


def test_missing_labels_in_files_are_left_out_and_clean_finds_the_rows_again(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(COUNT, 3)) + 6 * (np.arange(COUNT) % 2)[:, None]
    numbers = np.arange(COUNT) % 2
    kinds = {
        "words": (np.array(NAMES), "", {}),
        "bytes": (np.array(NAMES, "S"), b"NA", {}),
        "reals": (numbers.astype(float), np.nan, {}),
        "positions": (numbers, -1, {"class_names": np.array(["bad", "good"])}),
    }
    for kind, (labels, gap, further) in kinds.items():
        labels[4] = gap
        labels[7], wrong = labels[6], str(labels[6])
        np.savez(tmp_path / f"{kind}.npz", embeddings=x, labels=labels, **further)
        np.save(tmp_path / "labels.npy", labels)
        np.save(tmp_path / "rows.npy", x)
        names = list(further.get("class_names", [])) or None
        made = audit(tmp_path / f"{kind}.npz", quiet=True)
        apart = audit(tmp_path / "rows.npy", labels=tmp_path / "labels.npy", class_names=names, quiet=True)
        memory = audit(x, labels, class_names=names, quiet=True)
        for one in (made, apart, memory):
            assert found(one) == {"missing_label": ["4"]}, kind
            assert [id.partition("-")[0] for id in one.ids[3:5]] == ["3", "5"]
            assert one.top(1)[0]["id"].partition("-")[0] == "7"
        cells = [made.top(1)[0][name] for name in ("id", "given", "suggested")]
        decision = "id,given,decision,new_label\n{},{},relabel,{}\n".format(*cells)
        (tmp_path / "decisions.csv").write_text(decision)
        clean(tmp_path / f"{kind}.npz", tmp_path / "decisions.csv", tmp_path / "new.npz")
        fixed = np.load(tmp_path / "new.npz")["labels"]
        assert (fixed[7] == labels[9], str(labels[6])) == (True, wrong)
        np.testing.assert_array_equal(np.delete(fixed, 7), np.delete(labels, 7))


@pytest.mark.parametrize("labels", [5, [], [[0, 1]] * 4, [None, "a", "b"], ["a", "b", "a", "b", None]])
def test_labels_that_do_not_go_with_the_rows_are_refused(labels: Any) -> None:
    with pytest.raises(InputError, match=r"label|classes"):
        audit(np.eye(4), labels, quiet=True)


def spoil(photos: Path) -> list[str]:
    """A text, an empty file, half a file, a tiny picture and a link to nowhere; their ids."""
    (photos / "dog" / "1.png").write_text("no picture")
    (photos / "dog" / "3.png").write_bytes(b"")
    half = (photos / "cat" / "4.png").read_bytes()
    (photos / "cat" / "4.png").write_bytes(half[: len(half) // 2])
    pil.new("RGB", (1, 1)).save(photos / "cat" / "6.png")
    (photos / "cat" / "8.png").unlink()
    os.symlink(photos / "gone.png", photos / "cat" / "8.png")
    return ["cat/4.png", "cat/6.png", "cat/8.png", "dog/1.png", "dog/3.png"]


def test_unreadable_and_tiny_pictures_are_listed_and_the_rest_is_audited(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled, out = spoil(photos), tmp_path / "out"
    command = ["audit", str(photos), "--encoder", "plain", "--out", str(out), "--quiet"]
    for _ in range(2):  # the second time from the cache
        assert main(command) == 0
        assert "problem: 5 of 24 pictures cannot be read" in capsys.readouterr().out
        summary = json.loads((out / "audit.json").read_text())
        (problem,) = summary["problems"]
        assert (problem["kind"], len(problem["ids"])) == ("unreadable_picture", 5)
        assert problem["ids"] == spoiled
        assert summary["examples"] == 19
    page = (out / "audit.html").read_text()
    assert str(photos) not in page  # where the data lie is nobody's business
    assert '"problems":[{"kind":"unreadable_picture"' in page


def test_a_class_that_loses_its_pictures_is_none_any_more(photos: Path) -> None:
    for name in ("bird", "cow"):
        (photos / name).mkdir()
        for i in range(2):
            pil.new("RGB", (20, 20)).save(photos / name / f"{i}.png")
    (photos / "bird" / "0.png").write_text("no picture")
    (photos / "bird" / "1.png").write_text("no picture")
    (photos / "cow" / "0.png").write_text("no picture")
    made = audit(photos, encoder="plain", quiet=True)
    assert made.class_names == ("cat", "dog")
    assert made.examples is not None
    assert isinstance(made.examples.pictures, pictures.ImageFiles)
    assert made.examples.pictures.items == list(made.ids)
    assert found(made)["single_example"] == ["cow/1.png"]


def test_most_pictures_must_be_readable(photos: Path) -> None:
    for file in (photos / "dog").iterdir():
        file.write_text("no picture")
    for number in (0, 2):
        (photos / "cat" / f"{number}.png").write_text("no picture")
    with pytest.raises(InputError, match=r"13 of 24 examples cannot be audited: .*cannot be read"):
        audit(photos, encoder="plain", quiet=True)


def test_every_file_of_a_picture_is_read_once_to_be_embedded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    before = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: (read.append(self), before(self))[1])
    make_ready(open_source(photos), Columns(), encoder="plain")
    assert sorted(read) == sorted(photos.rglob("*.png"))


def test_pictures_that_are_only_shown_may_be_missing(tmp_path: Path) -> None:
    frame = reviews(path=["gone.png", ""] * (COUNT // 2))
    made = run(frame)
    assert (len(made), len(found(made)["missing_picture"])) == (COUNT, COUNT)
    assert made.save(tmp_path / "out").exists()


@given(st.lists(st.sampled_from(["a", "A", " a", "b", "c", "C"]), min_size=4, max_size=30), st.data())
@settings(max_examples=40)
def test_every_example_is_audited_or_listed(labels: list[str], data: Any) -> None:
    ids = data.draw(st.lists(st.sampled_from("123456789"), min_size=len(labels), max_size=len(labels)))
    names = tuple(sorted(set(labels)))
    numbers = torch.tensor([names.index(label) for label in labels])
    examples = Source(torch.zeros(len(labels), 1), Labels(numbers, names), ids=tuple(ids))
    try:
        left = settle(examples, learned=True)
    except InputError:
        return
    out = [p for p in left.problems if p.kind in ("duplicate_id", "single_example")]
    assert len(left) + sum(len(p.ids) for p in out) == len(labels)
    assert len(set(left.ids or ())) == len(left)
    counts = torch.bincount(left.labels.numbers)
    assert int(counts.min()) > 1
    spelled = [note for note in left.problems if note.kind == "label_spelling"]
    assert all(len(note.ids) for note in spelled)
