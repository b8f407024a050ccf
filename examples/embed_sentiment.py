"""Texts with labels → a table for `bayesmooth audit`: tweets and product reviews, each rated by some twenty people.

    pip install 'bayesmooth[audit]'
    python examples/embed_sentiment.py hutto_ICWSM_2014 sentiment.npz
    BAYESMOOTH_AUDIT_DATA=. python -m benchmarks audit

The folder is the data of the VADER paper (Hutto and Gilbert, 2014), which the source package vaderSentiment 0.5 on PyPI
has under additional_resources. The given label is the sign of the first rating, the true one the sign of the mean.
To audit texts of your own you need no such file: `bayesmooth audit reviews.csv --text review` embeds them.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bayesmooth.data.encoders import embed_texts

SOURCES = ("tweets", "amazonReviewSnippets")
NEUTRAL = 0.05  # a mean closer to zero than this says neither yes nor no


def rated(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(text, first rating, mean rating)."""
    for source in SOURCES:
        truth = dict(_rows(folder / f"{source}_GroundTruth.txt"))
        for key, (_, _, ratings, *_) in _rows(folder / f"{source}_anonDataRatings.txt"):
            if key in truth:
                mean, text = truth[key]
                yield text, ast.literal_eval(ratings)[0], float(mean)


def _rows(file: Path) -> Iterator[tuple[str, list[str]]]:
    for line in file.read_text(encoding="latin-1").split("\n"):
        if line:
            key, *rest = line.split("\t")
            yield key, rest


def main() -> None:
    """Read, encode, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", help="plain, or the name or path of a model")
    arguments = parser.parse_args()
    kept = [row for row in rated(arguments.folder) if row[1] != 0 and abs(row[2]) > NEUTRAL]
    texts, first, mean = zip(*kept, strict=True)
    rows, _, note = embed_texts(texts, arguments.encoder)
    np.savez(
        arguments.out,
        embeddings=rows.numpy(),
        labels=(np.array(first) > 0).astype(int),
        clean_labels=(np.array(mean) > 0).astype(int),
        class_names=np.array(["negative", "positive"]),
        texts=np.array(texts),
    )
    print(f"{note}\n{arguments.out}")


if __name__ == "__main__":
    main()
