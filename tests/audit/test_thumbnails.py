import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth.audit.findings import Findings
from bayesmooth.audit.table import Audit
from bayesmooth.audit.thumbnails import Thumbnails, make_thumbnails, report_thumbnails
from bayesmooth.data import Labels, Source, open_source
from bayesmooth.errors import InputError

Image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")


def tile(thumbnails: Thumbnails, i: int) -> np.ndarray:
    """Tile i as the page cuts it out of its sheet."""
    sheet = np.asarray(
        Image.open(io.BytesIO(thumbnails.sheets[i // thumbnails.per_sheet])).convert("RGB")
    )
    place, size = i % thumbnails.per_sheet, thumbnails.tile
    y, x = place // thumbnails.columns * size, place % thumbnails.columns * size
    return sheet[y : y + size, x : x + size].astype(int)


def flat_images(count: int, side: int = 16) -> np.ndarray:
    """Images of one grey each, which every encoder keeps nearly."""
    greys = np.linspace(0, 255, count).astype(np.uint8)
    return np.broadcast_to(greys[:, None, None], (count, side, side)).copy()


def count_bytes(thumbnails: Thumbnails) -> int:
    return sum(map(len, thumbnails.sheets))


def test_each_tile_shows_its_example_over_several_sheets() -> None:
    images = flat_images(300)
    index = np.arange(300)[::-1]
    thumbnails = make_thumbnails(images, index)
    assert len(thumbnails.sheets) == 2
    for i in (0, 17, 255, 256, 299):
        assert abs(tile(thumbnails, i) - int(images[index[i], 0, 0])).mean() < 4


def test_sheets_are_smaller_than_one_file_each() -> None:
    rng = np.random.default_rng(0)
    smooth = rng.uniform(0, 255, (200, 4, 4, 3)).repeat(8, 1).repeat(8, 2).astype(np.uint8)
    together = count_bytes(make_thumbnails(smooth, range(200)))
    apart = sum(count_bytes(make_thumbnails(smooth, [i])) for i in range(200))
    assert together < apart


def test_smallest_format_is_kept() -> None:
    text_like = (np.random.default_rng(0).random((40, 16, 16)) > 0.5) * np.uint8(255)
    assert make_thumbnails(text_like, range(40)).media_type == "image/png"
    noise = np.random.default_rng(0).integers(0, 255, (40, 32, 32, 3), dtype=np.uint8)
    assert make_thumbnails(noise, range(40)).media_type != "image/png"


def test_layouts_and_number_types_give_the_same_picture() -> None:
    grey = flat_images(8)
    colour = np.repeat(grey[..., None], 3, axis=3)
    reference = make_thumbnails(colour, [5])
    variants = {
        "float": colour / 255.0,
        "channels first": torch.tensor(colour).permute(0, 3, 1, 2),
        "one channel": grey[:, None],
        "with a gradient": torch.tensor(grey / 255.0, requires_grad=True),
        "alpha": np.concatenate([colour, np.full_like(grey[..., None], 255)], axis=3),
        "pillow": [Image.fromarray(image) for image in grey],
    }
    for name, images in variants.items():
        difference = tile(make_thumbnails(images, [5]), 0) - tile(reference, 0)
        assert abs(difference).max() <= 2, name


def test_standardised_floats_are_stretched_to_the_visible_range() -> None:
    ramp = np.linspace(-2, 2, 16 * 16).reshape(1, 16, 16)
    shown = tile(make_thumbnails(ramp, [0]), 0)
    assert shown.min() < 8
    assert shown.max() > 247


def test_large_images_shrink_with_their_proportions_and_small_ones_stay() -> None:
    wide = np.full((100, 400), 255, np.uint8)
    thumbnails = make_thumbnails([wide], [0], size=96)
    assert thumbnails.tile == 96
    bright = tile(thumbnails, 0)[:, :, 0].max(axis=1) > 128
    assert bright.sum() == 24
    assert bright[36:60].all()
    assert make_thumbnails(flat_images(3, side=8), range(3), size=96).tile == 8


def test_pictures_named_by_their_paths_are_drawn_in_the_report(
    made_up: Callable[..., Audit], tmp_path: Path
) -> None:
    greys = np.linspace(0, 255, 40).astype(np.uint8)
    for i, grey in enumerate(greys):
        Image.fromarray(np.full((20, 20), grey)).save(tmp_path / f"{i}.png")
    np.savez(
        tmp_path / "pets.npz",
        embeddings=np.random.default_rng(0).normal(size=(40, 4)),
        labels=np.arange(40) % 4,
        images=np.array([f"{i}.png" for i in range(40)]),
    )
    audit = made_up(40, examples=open_source(tmp_path / "pets.npz"))
    drawn, _ = report_thumbnails(audit, 10)
    assert drawn is not None
    assert drawn.index.tolist() == audit.order[:10].tolist()
    for place, example in enumerate(drawn.index):
        assert abs(tile(drawn, place) - int(greys[example])).mean() < 4


def test_findings_have_pictures_too(made_up: Callable[..., Audit]) -> None:
    first = np.full(40, -1)
    first[[38, 39]] = 38
    found = Findings(
        rare_class=np.zeros(40, bool),
        duplicate_of=first,
        conflicting=first >= 0,
        outlier_score=np.zeros(40),
    )
    images = torch.from_numpy(flat_images(40))[:, None]
    data = Source(torch.zeros(40, 1), Labels(torch.arange(40) % 4, tuple("abcd")), pictures=images)
    audit = made_up(40, examples=data, findings=found)
    drawn, _ = report_thumbnails(audit, 10)
    assert drawn is not None
    assert drawn.index.tolist() == [*audit.order[:10], 38, 39]


def test_impossible_input_is_refused() -> None:
    with pytest.raises(InputError, match="index is empty"):
        make_thumbnails(flat_images(3), [])
    with pytest.raises(InputError, match=r"image of shape \(2, 3, 4, 5\)"):
        make_thumbnails(np.zeros((1, 2, 3, 4, 5)), [0])


def test_budget_ends_the_sheets_and_the_index_says_where() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 100, 100), dtype=np.uint8)
    everything = make_thumbnails(noise, range(900), budget=10**9)
    assert len(everything.index) == 900
    half = count_bytes(everything) // 2
    part = make_thumbnails(noise, range(900), budget=half)
    assert count_bytes(part) <= half
    assert part.sheets == everything.sheets[: len(part.sheets)]
    assert len(part.index) == part.per_sheet * len(part.sheets)
    assert len(make_thumbnails(noise, range(900), budget=1).sheets) == 1
