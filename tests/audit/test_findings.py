import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesmooth.audit import audit, audit_probabilities, findings, neighbours, predictors
from bayesmooth.audit.findings import Findings
from bayesmooth.data import Labels, Source
from bayesmooth.data.encoders import PLAIN
from bayesmooth.data.features import Reading
from bayesmooth.errors import InputError
from bayesmooth.progress import silence

Image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")
Filter = pytest.importorskip("PIL.ImageFilter")


def clusters(dims: int, count: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten Gaussian clouds, the class of each example the cloud it is from."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(10, dims, generator=generator)
    labels = torch.arange(count) % 10
    return centres[labels] + torch.randn(count, dims, generator=generator), labels


def find(labels: Tensor, x: Tensor, against: Source | None = None) -> Findings:
    """What is found in these rows."""
    names = tuple(map(str, range(int(labels.max()) + 1)))
    with silence():
        return findings.find(Source(x, Labels(labels, names)), labels, against=against)


def copies(x: Tensor, rows: list[int], noise: float = 0.02) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return x[rows] + noise * x.std(0) * torch.randn(len(rows), x.shape[1], generator=generator)


def duplicates(found: Findings) -> dict[int, int]:
    """Each example with near duplicates, and the first of them."""
    assert found.duplicate_of is not None
    return {int(i): int(found.duplicate_of[i]) for i in np.flatnonzero(found.duplicate_of >= 0)}


@pytest.mark.parametrize("dims", [2, 3, 5, 10, 50, 384])
def test_clean_data_raises_few_alarms(dims: int) -> None:
    x, labels = clusters(dims)
    found = find(labels, x, other_half(dims)).counts()
    assert found["near_duplicates"] <= 4  # two pairs in a thousand
    assert found["in_other_split"] <= 4
    assert found["in_rare_classes"] == 0
    if dims > 3:  # on a circle or a sphere, directions have no outside
        assert found["outliers"] <= 30


NAMES = tuple("abcdefghij")


def other_half(dims: int) -> Source:
    x, labels = clusters(dims, 2000)
    ids = tuple(f"test-{i}" for i in range(1000))
    return Source(x[1000:], Labels(labels[1000:], NAMES), ids=ids, name="test")


@pytest.mark.parametrize("dims", [10, 50, 384])
def test_planted_duplicates_are_found_and_nothing_else(dims: int) -> None:
    x, labels = clusters(dims)
    originals = list(range(0, 1000, 50))
    both = torch.cat([x, copies(x, originals)])
    found = find(torch.cat([labels, labels[originals]]), both)
    expected = {1000 + n: i for n, i in enumerate(originals)} | {i: i for i in originals}
    assert duplicates(found) == expected
    assert found.counts()["near_duplicates_with_different_labels"] == 0


def test_duplicates_with_different_labels_are_told_apart() -> None:
    x, labels = clusters(20)
    found = find(torch.cat([labels, (labels[:3] + torch.tensor([0, 1, 0])) % 10]), torch.cat([x, x[:3]]))
    assert found.conflicting is not None
    assert np.flatnonzero(found.conflicting).tolist() == [1, 1001]
    assert str(found).startswith("6 near duplicates, 2 near duplicates with different labels")


def test_many_copies_of_one_example_are_one_group() -> None:
    x, labels = clusters(20)
    many = [7] * 40  # more than there are neighbours to look at
    found = find(torch.cat([labels, labels[many]]), torch.cat([x, x[many]]))
    assert duplicates(found) == dict.fromkeys([7, *range(1000, 1040)], 7)
    thrice = find(torch.cat([labels] * 3), torch.cat([x] * 3))  # where most examples have copies
    assert duplicates(thrice) == {i: i % 1000 for i in range(3000)}


def test_rows_that_are_equal_by_chance_are_no_copies() -> None:
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0).integers(0, 3, (400, 4))
    table = pandas.DataFrame(draw[:, :3], columns=list("abc")).assign(d=[*map("pqrst".__getitem__, draw[:, 3])])
    table["label"] = draw[:, 0] > 1
    made = audit(table, against=table, quiet=True)
    assert {"duplicates", "conflicts", "leaks", "outliers"}.isdisjoint(made.findings.masks())
    assert any("equal rows occur by chance" in note for note in made.summary["notes"])
    made = audit(pandas.concat([table.assign(real=np.sin(np.arange(400)))] * 3), quiet=True)
    assert made.findings.counts()["near_duplicates"] == 1200


def test_what_all_rows_have_in_common_makes_no_duplicates_and_hides_none() -> None:
    x, labels = clusters(20)
    both = torch.cat([x, copies(x, [3, 4, 5])])
    found = find(torch.cat([labels, labels[3:6]]), both)
    moved = find(torch.cat([labels, labels[3:6]]), both + 1000)
    assert duplicates(moved) == duplicates(found) == {i: i for i in (3, 4, 5)} | {1000: 3, 1001: 4, 1002: 5}


def test_a_longer_vector_of_the_same_direction_is_no_copy() -> None:
    x = torch.arange(1.0, 101.0)[:, None].repeat(1, 3)
    found = find(torch.arange(100) % 2, x)
    assert duplicates(found) == {}


def test_planted_outliers_are_found() -> None:
    x, labels = clusters(50)
    strange = 3 * torch.randn(10, 50, generator=torch.Generator().manual_seed(5))
    found = find(torch.cat([labels, labels[:10]]), torch.cat([x, strange]))
    assert found.outlier_score is not None
    assert (found.outlier_score[1000:] > 1).all()
    assert (found.outlier_score[:1000] > 1).mean() < 0.02
    assert found.outlier_score[1000:].min() > np.quantile(found.outlier_score[:1000], 0.99)


def with_leaks(x: Tensor, leaked: list[int]) -> Source:
    """The other half, and copies of some examples of this one, all called j."""
    other = other_half(x.shape[1])
    return Source(
        torch.cat([other.inputs[:], copies(x, leaked)]),
        Labels(torch.cat([other.labels.numbers, torch.full((len(leaked),), 9)]), NAMES),
        ids=(*(other.ids or ()), *(f"copy of {i}" for i in leaked)),
        name="test",
    )


def test_leaks_are_found_with_the_id_and_label_they_have_there() -> None:
    x, labels = clusters(50)
    leaked = list(range(100, 110))
    found = find(labels, x, with_leaks(x, leaked))
    assert found.in_other_split is not None
    assert found.label_in_other_split is not None
    assert np.flatnonzero(found.in_other_split != "").tolist() == leaked
    assert found.in_other_split[105] == "copy of 105"
    assert found.label_in_other_split[105] == "j"


def test_one_call_audits_labels_and_finds_the_rest_with_the_other_split_scaled_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    x = 3 * labels[:, None] + torch.randn(60, 8, generator=generator)
    scaled = Source(1000 + 5 * x, Labels(labels, ("cat", "dog")), mean=(1000.0,), std=(5.0,))
    other = Source(1000 + 5 * x[:9], Labels(labels[:9], ("cat", "dog")), mean=(0.0,), std=(1.0,))
    made = audit(scaled, against=other, quiet=True)
    assert made.findings.counts()["in_other_split"] == 9
    columns = made.columns()
    assert columns["in_other_split"][8:10] == ["8", ""]
    assert {"duplicate_of", "outlier_score", "rare_class"} < set(columns)


def test_splits_that_cannot_be_compared_are_refused_before_the_fit() -> None:
    x, labels = clusters(20)
    these = Source(x, Labels(labels, NAMES), name="train")
    with pytest.raises(InputError, match=r"test has rows of shape \[50\], train of \[20\]"):
        audit(these, against=other_half(50), quiet=True)
    reading = Reading(encoder=PLAIN)
    texts = Source(x, Labels(labels, NAMES), meta={"text": ["a"] * 1000}, reading=reading)
    with pytest.raises(InputError, match="name an encoder"):
        audit(these, against=texts, quiet=True)
    with pytest.raises(InputError, match="a int: no data"):
        audit(these, against=3, quiet=True)


def test_tables_with_other_categories_are_refused_by_name() -> None:
    pandas = pytest.importorskip("pandas")

    def table(*colours: str) -> Any:
        size = np.sin(range(40))
        rows = {"size": size, "colour": colours * 20, "label": ["a", "b"] * 20}
        return pandas.DataFrame(rows)

    with pytest.raises(InputError, match="audited has 'colour=green'; only the other has 'colour=red'"):
        audit(table("blue", "green"), against=table("blue", "red"), quiet=True)
    made = audit(table("blue", "red"), against=table("blue", "red").assign(label=["a"] * 20 + [None] * 20), quiet=True)
    assert made.findings.counts()["in_other_split"] == 20
    assert "table: 20 of 40 rows have no label and are left out" in made.summary["notes"]


def many(monkeypatch: pytest.MonkeyPatch, exact: int) -> tuple[Source, Source, Findings]:
    """Copies, outliers and leaks among rows that are compared at once, then all settings for pieces of them."""
    x, _ = clusters(50)
    strange = 3 * torch.randn(10, 50, generator=torch.Generator().manual_seed(5))
    rows = torch.cat([x, copies(x, list(range(0, 1000, 50))), strange])
    these = Source(rows, Labels(torch.arange(len(rows)) % 10, NAMES), name="train")
    other = with_leaks(x, list(range(100, 110)))
    whole = find(these.labels.numbers, rows, other)
    monkeypatch.setattr(predictors, "ROWS_AT_ONCE", 300)
    monkeypatch.setattr(neighbours, "EXACT_ROWS", exact)
    return these, other, whole


def alike(one: Findings, other: Findings) -> bool:
    """Whether the same examples are copies, outliers and leaks."""
    return one.counts() == other.counts() and all(
        (getattr(one, column) == getattr(other, column)).all()
        for column in ("duplicate_of", "conflicting", "in_other_split", "label_in_other_split")
    )


@pytest.mark.parametrize("exact", [10_000, 0], ids=["all pairs", "cells"])
def test_rows_that_are_read_in_pieces_have_the_findings_of_all_at_once(
    monkeypatch: pytest.MonkeyPatch, exact: int
) -> None:
    these, other, whole = many(monkeypatch, exact)
    assert whole.counts()["in_other_split"] == 11  # 100 has a copy here too
    assert alike(find(these.labels.numbers, these.inputs[:], other), whole)


def test_predictions_alone_tell_of_rare_classes_only() -> None:
    _, labels = clusters(2)
    p = torch.nn.functional.one_hot(labels, 10) * 0.5 + 0.05
    made = audit_probabilities(p, labels, quiet=True)
    assert list(made.findings.counts()) == ["in_rare_classes"]
    assert str(made.findings) == "nothing"


def test_classes_with_less_than_a_tenth_of_an_even_share_are_rare() -> None:
    for sizes, rare in (([300, 300, 22, 23], []), ([300, 300, 14, 15], [2, 3])):
        labels = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
        found = find(labels, torch.randn(len(labels), 3))
        assert labels[torch.from_numpy(found.rare_class)].unique().tolist() == rare


def draw(seed: int, size: int = 120) -> Any:
    """A picture of smooth shapes with fine grain, unlike those of other seeds."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    shapes = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), float)
    grain = rng.normal(0, 12, (size, size, 1))
    return Image.fromarray((shapes + grain).clip(0, 255).astype(np.uint8))


def change(picture: Any, size: int, quality: int) -> Any:
    file = io.BytesIO()
    picture.resize((size, size)).save(file, "JPEG", quality=quality)
    return Image.open(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 20, copies of the first ten, and three pictures that show nothing."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    for i in range(40):
        draw(i).save(tmp_path / ("cat" if i < 20 else "dog") / f"{i}.png")
    for i in range(10):
        change(draw(i), 60 + 20 * i, 30 + 6 * i).save(tmp_path / "cat" / f"copy-{i}.jpg")
    Image.new("RGB", (90, 90), (250, 250, 250)).save(tmp_path / "dog" / "blank.png")
    Image.eval(draw(50), lambda value: value // 10).save(tmp_path / "dog" / "dark.png")
    draw(51).filter(Filter.GaussianBlur(8)).save(tmp_path / "dog" / "blurred.png")
    return tmp_path


@pytest.mark.filterwarnings("ignore:Nothing can be told")
def test_copies_survive_resizing_and_compression_and_odd_pictures_are_named(photos: Path) -> None:
    small = [torch.from_numpy(np.array(change(draw(i), 70, 60))).permute(2, 0, 1) for i in (30, 60, 61)]
    other = Source(torch.rand(3, 6), Labels(torch.arange(3) % 2, ("cat", "dog")), pictures=torch.stack(small))
    made = audit(photos, encoder=lambda batch: torch.rand(len(batch), 6), against=other, quiet=True)
    assert {a: b for a, b in zip(made.ids, made.columns()["in_other_split"], strict=True) if b} == {"dog/30.png": "0"}
    first = made.columns()["duplicate_of"]
    copies = dict(zip(made.ids, first, strict=True))
    assert {id for id, of in copies.items() if of} == {
        f"cat/{name}" for i in range(10) for name in (f"{i}.png", f"copy-{i}.jpg")
    }
    assert all(copies[f"cat/{i}.png"] == copies[f"cat/copy-{i}.jpg"] for i in range(10))
    odd = {problem.kind: problem.ids for problem in made.findings.problems}
    assert odd == {f"{kind}_picture": (f"dog/{kind}.png",) for kind in ("blank", "dark", "blurred")}


def test_ordinary_pictures_raise_no_alarm() -> None:
    pictures = torch.from_numpy(np.stack([np.asarray(draw(i, 40)) for i in range(60)]))
    labels = Labels(torch.arange(60) % 2, ("a", "b"))
    data = Source(torch.randn(60, 4), labels, pictures=pictures.permute(0, 3, 1, 2))
    with silence():
        assert not findings.find(data, labels.numbers).problems
