"""Texts with labels → a table for `bayesmooth audit`: tweets and product reviews, each rated by some twenty people.

    pip install sentence-transformers
    python examples/embed_sentiment.py hutto_ICWSM_2014 sentiment.npz
    bayesmooth audit sentiment.npz --benchmark

The folder is the data of the VADER paper (Hutto and Gilbert, 2014), which the source package vaderSentiment 0.5 on PyPI
has under additional_resources. The given label is the sign of the first rating, the true one the sign of the mean.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

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
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    kept = [row for row in rated(arguments.folder) if row[1] != 0 and abs(row[2]) > NEUTRAL]
    texts, first, mean = zip(*kept, strict=True)

    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(arguments.encoder, device="cpu")
    np.savez(
        arguments.out,
        embeddings=encoder.encode(list(texts), batch_size=32, show_progress_bar=True),
        labels=(np.array(first) > 0).astype(int),
        clean_labels=(np.array(mean) > 0).astype(int),
        class_names=np.array(["negative", "positive"]),
        texts=np.array(texts),
    )
    print(arguments.out)


if __name__ == "__main__":
    main()
