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
import torch
from PIL import Image
from sklearn.datasets import load_sample_image, load_wine

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
            given = draw.choice([n for n in PLACES if n != name]) if draw.random() < WRONG else name
            place = top / "photos" / given
            place.mkdir(parents=True, exist_ok=True)
            piece = picture[row : row + SIDE, column : column + SIDE]
            Image.fromarray(piece).save(place / f"{row:03d}-{column:03d}-{number}.jpg", quality=80)
    return {"source": top / "photos"}


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
        words = (draw.choice(PHRASES[team]), draw.choice(THINGS), draw.choice(ENDS))
        given = draw.choice([t for t in PHRASES if t != team]) if draw.random() < WRONG else team
        yield [f"T{number:04d}", f"{words[0]} {words[1]}. {words[2]}".strip(" ."), given]


def table(top: Path) -> dict[str, object]:
    """Wines, by what a laboratory measured."""
    wine, draw = load_wine(), random.Random(0)
    names = ["Barolo", "Grignolino", "Barbera"]
    rows = []
    for number, (values, kind) in enumerate(zip(wine.data, wine.target, strict=True)):
        given = draw.choice([k for k in range(3) if k != kind]) if draw.random() < WRONG else kind
        rows.append([f"wine {number}", *map(str, values), names[given]])
    return {
        "source": write(top / "wines.csv", ["id", *wine.feature_names, "cultivar"], rows),
        "label": "cultivar",
    }


def leak(top: Path) -> dict[str, object]:
    """Digits of which the test set has copies, two per cent darker."""
    train, test = (
        load("digits", "train").subset(range(400)),
        load("digits", "test").subset(range(150)),
    )
    draw = np.random.default_rng(0)
    copies = {
        int(i): int(j)
        for i, j in zip(draw.choice(150, 12, False), draw.choice(400, 12, False), strict=True)
    }
    for split, digits in (("train", train), ("test", test)):
        for number in range(len(digits)):
            source, place = (
                (train, copies[number])
                if split == "test" and number in copies
                else (digits, number)
            )
            pixels = source.inputs[place, 0] * (0.98 if source is not digits else 1.0)
            name = source.class_names[source.labels[place]]
            folder = top / split / name
            folder.mkdir(parents=True, exist_ok=True)
            large = torch.nn.functional.interpolate(
                pixels[None, None], size=64, mode="bicubic"
            ).clamp(0, 1)
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
