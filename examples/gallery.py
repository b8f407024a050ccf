"""The four reports of the gallery in the docs: photographs, texts, a table, and a leak between two splits.

    pip install 'bayesmooth[audit]'
    python examples/gallery.py docs/gallery

Everything comes with scikit-learn or is written here: pieces of its two photographs (CC BY 2.0, danielbuechele and
vultilion on Flickr), its wines and its digits, and tickets made of a few phrases. Some labels are made wrong, and some
test digits are copies of training digits; the audit does not know which.
"""

import argparse
import csv
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image, load_wine
from torch.nn.functional import interpolate

import bayesmooth
from bayesmooth.data import load

WRONG = 0.08  # of the labels
SIDE = 96  # pixels of a piece of a photograph
# Photograph, then the top and the height of the strip that its pieces are cut from, and the left and the width.
PLACES = {
    "sky": ("china.jpg", 0, 150, 0, 420),
    "temple": ("china.jpg", 170, 120, 60, 420),
    "people": ("china.jpg", 300, 127, 0, 640),
    "petals": ("flower.jpg", 60, 260, 150, 300),
    "leaves": ("flower.jpg", 0, 427, 470, 170),
}
PHRASES = {
    "billing": ("I was charged twice for", "the invoice is wrong for", "refund the amount for"),
    "delivery": ("where is the parcel with", "the courier never came with", "still waiting for"),
    "defect": ("it broke after a day:", "the screen is dead on", "there is a crack in"),
    "account": ("I cannot log in to see", "reset the password for", "change my address for"),
}
THINGS = (
    "the kettle",
    "my order",
    "the headphones",
    "the blue lamp",
    "the office chair",
    "the phone case",
    "the mixer",
)
ENDS = (
    "",
    "please help",
    "this is the second time",
    "thanks",
    "I need an answer today",
    "very disappointed",
    "kind regards, Ada",
)


def photographs(top: Path) -> dict[str, object]:
    """Pieces of two photographs, one folder per class."""
    draw = random.Random(0)
    for name, (file, y, height, x, width) in PLACES.items():
        picture = load_sample_image(file)
        for number in range(48):
            row = y + draw.randrange(max(height - SIDE, 1))
            column = x + draw.randrange(max(width - SIDE, 1))
            place = top / "photos" / mislabel(draw, PLACES, name)
            place.mkdir(parents=True, exist_ok=True)
            piece = picture[row : row + SIDE, column : column + SIDE]
            Image.fromarray(piece).save(place / f"{row:03d}-{column:03d}-{number}.jpg", quality=80)
    return {"source": top / "photos"}


def mislabel(draw: random.Random, names: Iterable[str], own: str) -> str:
    """Now and then another of the names."""
    return draw.choice([n for n in names if n != own]) if draw.random() < WRONG else own


def texts(top: Path) -> dict[str, object]:
    """Tickets for a help desk, made of phrases."""
    return {
        "source": write(top / "tickets.csv", ["id", "ticket", "team"], tickets()),
        "text": "ticket",
        "label": "team",
    }


def tickets() -> Iterator[list[str]]:
    """Id, text and team."""
    draw = random.Random(0)
    for number in range(320):
        team = draw.choice(list(PHRASES))
        words = f"{draw.choice(PHRASES[team])} {draw.choice(THINGS)}. {draw.choice(ENDS)}"
        yield [f"T{number:04d}", words.strip(" ."), mislabel(draw, PHRASES, team)]


def table(top: Path) -> dict[str, object]:
    """Wines, by what a laboratory measured."""
    wine, draw = load_wine(), random.Random(0)
    names = ["Barolo", "Grignolino", "Barbera"]
    rows = [
        [f"wine {number}", *map(str, values), mislabel(draw, names, names[kind])]
        for number, (values, kind) in enumerate(zip(wine.data, wine.target, strict=True))
    ]
    return {
        "source": write(top / "wines.csv", ["id", *wine.feature_names, "cultivar"], rows),
        "label": "cultivar",
    }


def leak(top: Path) -> dict[str, object]:
    """Digits of which the test set has copies, two per cent darker."""
    train, test = load("digits", "train"), load("digits", "test")
    draw = np.random.default_rng(0)
    copied = dict(zip(draw.choice(150, 12, False), draw.choice(400, 12, False), strict=True))
    files = [("train", number, train, number, 1.0) for number in range(400)]
    for number in range(150):
        leaked = number in copied
        source, place = (train, int(copied[number])) if leaked else (test, number)
        files.append(("test", number, source, place, 0.98 if leaked else 1.0))
    for split, number, source, place, brightness in files:
        folder = top / split / source.class_names[source.labels[place]]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (source.inputs[place, 0] * brightness)[None, None]
        large = interpolate(pixels, size=64, mode="bicubic").clamp(0, 1)
        Image.fromarray((255 * large[0, 0]).byte().numpy()).save(folder / f"{number:04d}.png")
    return {"source": top / "train", "against": top / "test"}


def write(path: Path, header: list[str], rows: Iterable[list[str]]) -> Path:
    """A CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


REPORTS = {
    "photos": (photographs, "Pieces of two photographs"),
    "texts": (texts, "Tickets of a help desk"),
    "table": (table, "Wines by their chemistry"),
    "leak": (leak, "Digits that are also in the test set"),
}


def main() -> None:
    """Make the data, audit them, keep the report of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", help="of texts and photographs (default: the best)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (make, title) in REPORTS.items():
        with TemporaryDirectory() as top:
            result = bayesmooth.audit(**make(Path(top)), encoder=arguments.encoder, quiet=True)
            result.save(Path(top) / "audit", title=title)
            page = (Path(top) / "audit" / "audit.html").read_bytes()
        (arguments.out / f"{name}.html").write_bytes(page)
        print(f"{arguments.out / name}.html: {len(page) / 1e6:.1f} MB, {result}")


if __name__ == "__main__":
    main()
