import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth.audit import audit
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.table import Audit
from bayesmooth.audit.thumbnails import Thumbnails, make_thumbnails, report_thumbnails
from bayesmooth.data import Labels, Source, open_source

Image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")


def tile(thumbnails: Thumbnails, i: int) -> np.ndarray:
    """Tile i as the page cuts it out of its sheet."""
    sheet = np.asarray(Image.open(io.BytesIO(thumbnails.sheets[i // thumbnails.per_sheet])).convert("RGB"))
    place, size = i % thumbnails.per_sheet, thumbnails.tile
    y, x = place // thumbnails.columns * size, place % thumbnails.columns * size
    return sheet[y : y + size, x : x + size].astype(int)


def flat_images(count: int, side: int = 16) -> torch.Tensor:
    """Images of one grey each, which every encoder keeps nearly."""
    greys = torch.linspace(0, 255, count).to(torch.uint8)
    return greys[:, None, None, None].repeat(1, 1, side, side)


def count_bytes(thumbnails: Thumbnails) -> int:
    return sum(map(len, thumbnails.sheets))


def test_each_tile_shows_its_example_over_several_sheets() -> None:
    images = flat_images(300)
    index = list(range(300))[::-1]
    thumbnails = make_thumbnails(images, index)
    assert len(thumbnails.sheets) == 2
    for i in (0, 17, 255, 256, 299):
        assert abs(tile(thumbnails, i) - int(images[index[i], 0, 0, 0])).mean() < 4


def test_sheets_are_smaller_than_one_file_each() -> None:
    rng = np.random.default_rng(0)
    smooth = rng.uniform(0, 255, (200, 3, 4, 4)).repeat(8, 2).repeat(8, 3).astype(np.uint8)
    smooth = torch.from_numpy(smooth)
    together = count_bytes(make_thumbnails(smooth, range(200)))
    apart = sum(count_bytes(make_thumbnails(smooth, [i])) for i in range(200))
    assert together < apart


def test_smallest_format_is_kept() -> None:
    text_like = 255 * (torch.rand(40, 1, 16, 16) > 0.5).to(torch.uint8)
    assert make_thumbnails(text_like, range(40)).media_type == "image/png"
    noise = torch.randint(0, 255, (40, 3, 32, 32), dtype=torch.uint8)
    assert make_thumbnails(noise, range(40)).media_type != "image/png"


def test_reals_and_colours_give_the_same_picture() -> None:
    grey = flat_images(8)
    reference = tile(make_thumbnails(grey, [5]), 0)
    for images in (grey / 255.0, grey.expand(-1, 3, -1, -1)):
        assert abs(tile(make_thumbnails(images, [5]), 0) - reference).max() <= 2


def test_large_images_shrink_with_their_proportions_and_small_ones_stay() -> None:
    wide = torch.full((1, 1, 100, 400), 255, dtype=torch.uint8)
    thumbnails = make_thumbnails(wide, [0], size=96)
    assert thumbnails.tile == 96
    bright = tile(thumbnails, 0)[:, :, 0].max(axis=1) > 128
    assert bright.sum() == 24
    assert bright[36:60].all()
    assert make_thumbnails(flat_images(3, side=8), range(3), size=96).tile == 8


def test_pictures_named_by_their_paths_are_drawn_in_the_report(made_up: Callable[..., Audit], tmp_path: Path) -> None:
    greys = np.linspace(0, 255, 40).astype(np.uint8)
    for i, grey in enumerate(greys):
        Image.fromarray(np.full((20, 20), grey)).save(tmp_path / f"{i}.png")
    np.savez(
        tmp_path / "pets.npz",
        embeddings=np.random.default_rng(0).normal(size=(40, 4)),
        labels=np.arange(40) % 4,
        images=np.array([f"{i}.png" for i in range(40)]),
    )
    made = made_up(40, examples=open_source(tmp_path / "pets.npz"))
    drawn, _ = report_thumbnails(made, 10)
    assert drawn is not None
    assert drawn.index.tolist() == made.order[:10].tolist()
    for place, example in enumerate(drawn.index):
        assert abs(tile(drawn, place) - int(greys[example])).mean() < 4


def test_findings_have_pictures_too(made_up: Callable[..., Audit]) -> None:
    first = np.full(40, -1)
    first[[38, 39]] = 38
    found = Findings(
        rare_class=np.zeros(40, bool), duplicate_of=first, conflicting=first >= 0, outlier_score=np.zeros(40)
    )
    images = flat_images(40)
    data = Source(torch.zeros(40, 1), Labels(torch.arange(40) % 4, tuple("abcd")), pictures=images)
    made = made_up(40, examples=data, findings=found)
    drawn, _ = report_thumbnails(made, 10)
    assert drawn is not None
    assert drawn.index.tolist() == [*made.order[:10], 38, 39]


def test_every_label_of_the_sample_to_review_has_a_picture() -> None:
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    labels = Labels(torch.arange(60) % 3, tuple("abc"))
    source = Source(rows + 3 * labels.numbers[:, None], labels, pictures=flat_images(60))
    made = audit(source, budget=20, quiet=True)
    drawn, _ = report_thumbnails(made, 1)
    assert made.review is not None
    assert drawn is not None
    assert {*made.review.queue.tolist()} <= {*drawn.index.tolist()}


@pytest.mark.slow
def test_budget_ends_the_sheets_and_the_index_says_where() -> None:
    noise = torch.randint(0, 255, (900, 1, 100, 100), dtype=torch.uint8)
    everything = make_thumbnails(noise, range(900), budget=10**9)
    assert len(everything.index) == 900
    half = count_bytes(everything) // 2
    part = make_thumbnails(noise, range(900), budget=half)
    assert count_bytes(part) <= half
    assert part.sheets == everything.sheets[: len(part.sheets)]
    assert len(part.index) == part.per_sheet * len(part.sheets)
    assert len(make_thumbnails(noise, range(900), budget=1).sheets) == 1
