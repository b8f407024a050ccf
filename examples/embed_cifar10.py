"""Pictures → embeddings: the first training images of CIFAR-10 through the audit's own encoder of pictures.

    pip install 'bayesmooth[audit]'
    python examples/embed_cifar10.py cifar10.npz --images 12550 --data-dir ~/data

To audit pictures of your own you need no such file: `bayesmooth audit photos/` embeds them.
"""

import argparse
from pathlib import Path

import numpy as np

from bayesmooth.data import load
from bayesmooth.data.encoders import embed_pictures


def main() -> None:
    """Read, encode, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--encoder", help="plain, or the name or path of a model")
    arguments = parser.parse_args()
    pictures = load("cifar10", "train", arguments.data_dir).inputs[: arguments.images]
    rows, _, note = embed_pictures(pictures, arguments.encoder)
    np.savez(arguments.out, embeddings=rows.numpy())
    print(f"{note}\n{arguments.out}")


if __name__ == "__main__":
    main()
