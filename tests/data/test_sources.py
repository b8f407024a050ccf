"""Whatever a data set is kept in: the wrong labels are found, and what cannot work is refused before the work."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesmooth.audit import Audit, audit, audit_probabilities
from bayesmooth.data import Columns, open_source
from bayesmooth.data.opening import make_ready
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
arrow = pytest.importorskip("pyarrow")
pil = pytest.importorskip("PIL.Image")

COUNT, WRONG = 60, {4, 17}
TRUE = np.arange(COUNT) % 2
GIVEN = np.where(np.isin(np.arange(COUNT), list(WRONG)), 1 - TRUE, TRUE)
NAMES = np.array(["bad", "good"])
TEXTS = [f"{'a lovely good film' if y else 'an awful bad film'} no {i}" for i, y in enumerate(TRUE)]
X = np.random.default_rng(0).normal(size=(COUNT, 3)) + 6 * TRUE[:, None]


@pytest.fixture
def frame() -> Any:
    return pandas.DataFrame({"x": X[:, 0], "y": X[:, 1], "label": NAMES[GIVEN]})


def worst(made: Audit) -> set[str]:
    places = [int(row["id"].partition("-")[0]) for row in made.top(len(WRONG))]
    first = 2 if "row" in made.columns() else 0  # a spreadsheet's first row is the header
    return {str(number - first) for number in places}


def run(source: Any, **options: Any) -> Audit:
    return audit(source, quiet=True, **options)


def opened(source: Any, labels: Any = None, **options: Any) -> Any:
    """What the front door makes of a source."""
    encoder = options.pop("encoder", None)
    columns = Columns(**options)
    return make_ready(open_source(source, columns, labels), columns, encoder=encoder)


WRONG_IDS = {str(i) for i in WRONG}


def test_a_data_frame_an_arrow_table_and_their_files_give_the_same_audit(frame: Any, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    ranked = run(frame).order.tolist()
    for source in (arrow.Table.from_pandas(frame), tmp_path / "t.csv", str(tmp_path / "t.parquet")):
        made = run(source)
        assert (worst(made), made.order.tolist()) == (WRONG_IDS, ranked)


def test_the_scale_of_a_column_changes_nothing(frame: Any) -> None:
    other = frame.assign(x=1e6 * frame["x"] - 3e9)
    np.testing.assert_allclose(run(other).disagreement, run(frame).disagreement, atol=1e-5)


def test_labels_may_be_words_bytes_or_in_a_series() -> None:
    for labels in (NAMES[GIVEN], NAMES[GIVEN].astype("S"), pandas.Series(NAMES[GIVEN])):
        made = audit(pandas.DataFrame(X), labels, quiet=True)
        assert (made.class_names, worst(made)) == (("bad", "good"), WRONG_IDS)
    numbers = pandas.Series(GIVEN)  # which hands out its values read-only
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(X)
    learned = torch.from_numpy(X).float().requires_grad_()
    for rows, labels in ((X, numbers), (sparse, GIVEN), (learned, torch.from_numpy(GIVEN))):
        assert worst(audit(rows, labels, quiet=True)) == WRONG_IDS


def test_missing_numbers_count_as_the_mean_of_their_column_and_are_counted(frame: Any) -> None:
    frame.loc[[3, 8, 9], "x"] = np.nan
    made = run(frame)
    filled = run(frame.fillna({"x": frame["x"].mean()}))
    np.testing.assert_allclose(made.disagreement, filled.disagreement)
    assert made.summary["notes"][1] == "missing numbers count as the mean of their column: 3 in 'x'"
    words = run(frame.astype({"x": object}).fillna({"x": "unknown"}))
    np.testing.assert_allclose(words.disagreement, filled.disagreement)
    (problem,) = words.findings.problems
    assert (problem.kind, problem.ids) == ("not_a_number", ("3", "8", "9"))
    assert problem.text.startswith("3 of 60 cells in 'x' are no numbers and count as missing")


def test_texts_in_a_table_are_embedded(frame: Any, tmp_path: Path) -> None:
    frame.assign(review=TEXTS, stars=np.where(GIVEN, 5, 1)).drop(columns="label").to_csv(
        tmp_path / "reviews.csv", index=False
    )
    made = run(tmp_path / "reviews.csv", text="review", label="stars", encoder="plain")
    assert (made.class_names, worst(made)) == (("1", "5"), WRONG_IDS)
    assert "TF-IDF" in made.summary["notes"][-1]
    assert "weak" in made.summary["notes"][-1]
    assert made.examples is not None
    assert made.examples.meta["text"] == TEXTS
    with pytest.raises(InputError, match=r"'text' holds paths of pictures.* \(--image\)"):
        run(frame.assign(text=[f"{i}.JPG" for i in range(COUNT)])[["text", "label"]])


def test_a_weak_encoder_says_so_and_estimates_no_noise_rate(frame: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = frame.assign(text=TEXTS)[["text", "label"]]
    chosen = run(texts, text="text", encoder="plain")  # whoever chose it needs no warning
    assert chosen.summary["warning"].startswith("The encoder is weak")
    assert chosen.summary["noise_rate_at_least"] is None
    monkeypatch.setattr(sys.modules["bayesmooth.data.encoders"], "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="The encoder is weak"):
        run(texts, text="text")


def test_an_array_stays_on_the_disk(tmp_path: Path) -> None:
    for kind in (X, np.asfortranarray(X), X.astype(">f4"), (10 * X).astype(np.int16)):
        np.save(tmp_path / "x.npy", kind)
        np.save(tmp_path / "y.npy", GIVEN)
        examples = opened(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))
        assert isinstance(examples.inputs.array, np.memmap)
        index = torch.tensor([3, 0, 3])
        np.testing.assert_allclose(examples.batch(index).numpy(), kind[[3, 0, 3]], rtol=1e-6)
    with pytest.raises(InputError, match=r"name a \.npy of them with labels"):
        opened(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
    with pytest.raises(InputError, match="ends too early"):
        opened(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))


def test_pictures_in_a_table_are_embedded(photos: Path) -> None:
    files = sorted(path.relative_to(photos.parent).as_posix() for path in photos.rglob("*.png"))
    labels = [file.split("/")[1] for file in files]
    table = pandas.DataFrame({"file": files, "label": labels, "id": files})
    table.to_csv(photos.parent / "t.csv", index=False)
    made = run(photos.parent / "t.csv", image="file", encoder="plain")
    assert made.top(1)[0]["id"] == "photos/cat/5.png"


def test_pictures_in_a_hugging_face_data_set_are_audited(photos: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = sorted(photos.rglob("*.png"))
    pictures = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    labels = [int(file.parent.name == "dog") for file in files]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    made = datasets.Dataset.from_dict({"image": pictures, "label": labels}, features=datasets.Features(kinds))
    made.save_to_disk(tmp_path / "set")
    first = run(tmp_path / "set", encoder="plain").top(1)[0]
    assert first["id"].partition("-")[0] == str(files.index(photos / "cat" / "5.png"))


def never(batch: Any) -> Any:
    raise AssertionError("the encoder was called before everything was checked")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ["same"] * COUNT}, "60 examples share their id.*'same'; id .--id. names another"),
        ({"id": [*map(str, range(25)), *["same"] * 35]}, "35 of 60 examples cannot be audited"),
        ({"label": ["one"] * COUNT}, "at least two classes"),
        ({"label": ["one", *["two"] * (COUNT - 1)]}, "at least two classes"),
        ({"label": [None] * COUNT}, "no row has a label"),
        ({"text": [""] * COUNT}, "empty texts, left out: 60"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_embedded(change: Any, message: str) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "label": NAMES[GIVEN]} | change)
    with pytest.raises(InputError, match=message):
        run(frame, text="text", encoder=never)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "kind"}, "no column 'kind'"),
        ({"text": "review"}, "no column 'review'"),
        ({"features": ["z"]}, "no column 'z', only"),
        ({"features": ["x", "label"]}, "'label' holds the labels"),
        ({"id": "key"}, "no column 'key'"),
    ],
)
def test_a_column_that_is_not_there_is_named(frame: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(frame, **options)


SURE = np.where(TRUE[:, None] == [[0, 1]], 0.9, 0.1)


def test_probabilities_are_matched_by_the_names_of_their_columns(tmp_path: Path) -> None:
    for before, after in (("", ""), ("p_", ""), ("", " (probability)")):
        columns = {f"{before}{name}{after}": SURE[:, k] for k, name in reversed([*enumerate(NAMES)])}
        table = pandas.DataFrame({"n": range(COUNT), **columns, "label": NAMES[GIVEN]})
        assert worst(audit_probabilities(table, quiet=True)) == WRONG_IDS


def test_an_embedding_function_of_the_users_own_is_called_with_batches() -> None:
    def length(texts: list[str]) -> Any:
        return np.array([[t.count("good"), t.count("bad"), len(t)] for t in texts], np.float32)

    frame = pandas.DataFrame({"text": TEXTS, "label": NAMES[GIVEN]})
    examples = opened(frame, text="text", encoder=length)
    assert examples.inputs[:2].tolist() == length(TEXTS[:2]).tolist()
    assert examples.notes[-1].text == "texts encoded by length"


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (np.ma.masked_greater(X, 5), GIVEN, "the rows: a masked array; fill it in"),
        (X, np.ma.masked_equal(GIVEN, 1), "labels: a masked array"),
        (X + 1j, GIVEN, "the rows: complex numbers; must be real"),
        (torch.from_numpy(X) + 1j, GIVEN, "the rows: complex numbers; must be real"),
        (np.array([["a"]] * COUNT, object), GIVEN, "the rows: not an array of numbers"),
    ],
)
def test_arrays_that_would_lose_something_are_refused(rows: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit(rows, labels, quiet=True)
