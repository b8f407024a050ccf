"""What pictures look like, beside what they show: copies that were resized or compressed again, and pictures that are
blank, dark or blurred. All of it from small numbers per picture, read once and in pieces."""

from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d

from bayesmooth.data.source import Inputs, Kind, Note, Source
from bayesmooth.errors import InputError
from bayesmooth.progress import track

AT_ONCE = 256  # pictures that are in memory
SIDE = 64  # pixels to which a picture is reduced before it is measured
TILES = 8  # × TILES colours stand for a picture: what resizing and compression leave as it is
BLANK = (
    2.5  # of 255, the standard deviation of the brightness: less is one colour with a little noise
)
DARK = 40.0  # of 255, the brightness that only a hundredth of a dark picture exceeds
BLURRED = 10.0  # times less sharp than the median picture
FENCE = 2.0  # interquartile ranges below the lower quartile of the sharpness: Tukey's rule
FEWEST = 8  # pictures that it takes to say what is usual
WORDS = {
    "blank": "{} of one colour all over",
    "dark": "{} so dark that hardly anything shows",
    "blurred": "{} much less sharp than the others",
}


class Looks(NamedTuple):
    """Of N pictures."""

    colours: Tensor
    """(N, 3 · TILES²): the mean colour of each tile."""
    spread: Tensor
    """The standard deviation of the brightness."""
    bright: Tensor
    """The brightness that a hundredth of the pixels exceed."""
    sharpness: Tensor
    """Mean square of the Laplacian over the variance of the brightness."""

    def find_odd(self) -> dict[str, Tensor]:
        """Which pictures are blank, which dark, which blurred; a blank one is nothing else."""
        blank = self.spread < BLANK
        dark = (self.bright < DARK) & ~blank
        usual = self.sharpness.log()
        low, middle, high = (float(usual.quantile(q)) for q in (0.25, 0.5, 0.75))
        fence = min(low - FENCE * (high - low), middle - log(BLURRED))
        blurred = (usual < fence) & ~blank & ~dark & (len(usual) >= FEWEST)
        return {"blank": blank, "dark": dark, "blurred": blurred}


def inspect_pictures(source: Source | None, quiet: bool = True) -> tuple[Tensor | None, list[Note]]:
    """The colours of all pictures, by which copies are known, and a note for each kind of odd ones that occurs.

    None where there are no pictures, or one of them cannot be opened.
    """
    looks = None if source is None or source.pictures is None else look_at(source.pictures, quiet)
    if looks is None or source is None:
        return None, []
    notes = []
    for kind, odd in looks.find_odd().items():
        which = odd.nonzero().flatten().tolist()
        if which:
            count = "1 picture is" if len(which) == 1 else f"{len(which)} pictures are"
            ids = tuple(source.ids[i] for i in which)
            notes.append(Note(Kind(f"{kind}_picture"), WORDS[kind].format(count), ids))
    return looks.colours, notes


def look_at(pictures: Inputs, quiet: bool = True) -> Looks | None:
    """The looks of all pictures; None where one of them cannot be opened."""
    parts = torch.split(torch.arange(len(pictures), device="cpu"), AT_ONCE)
    try:
        measured = [
            _measure(pictures[at]) for at in track(parts, description="looking", quiet=quiet)
        ]
    except InputError:  # it is among the problems already
        return None
    return Looks(*map(torch.cat, zip(*measured, strict=True)))


def _measure(pictures: Tensor) -> Looks:
    scale = 1.0 if pictures.dtype == torch.uint8 else 255.0
    colour = adaptive_avg_pool2d(pictures.float() * scale, SIDE).clamp(0, 255)
    colour = colour.expand(-1, 3, -1, -1)
    grey = colour.mean(1, keepdim=True)
    kernel = grey.new_tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    variance = grey.flatten(1).var(1)
    edges = conv2d(grey, kernel).square().flatten(1).mean(1)
    return Looks(
        adaptive_avg_pool2d(colour, TILES).flatten(1),
        variance.sqrt(),
        grey.flatten(1).quantile(0.99, dim=1),
        (edges / variance.clamp_min(1e-6)).clamp_min(1e-9),
    )
