"""Pictures through a frozen encoder, computed once: what the scale `features` trains on."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data import Source, data_root, load
from bayesmooth.data.encoders import embed_pictures
from bayesmooth.files import write_atomically

ENCODER = "efficientnet@96"
COMPONENTS = 256
FOLDER = "features"
"""Below the data directory: NAME-OPTIONS-LIMIT-{split}.npz, for the data set `source`."""


def embed_data(
    name: str, data_dir: str | Path | None = None, *, limit: int = 0, encoder: str = ENCODER, **options: Any
) -> list[Path]:
    """Write the features of a picture set beside it, one file per split, with its labels and their names.

    What the encoder gives is reduced to its first principal components on the training pictures, and has mean square 1.
    With a `limit` only that many training pictures are embedded, and half as many test pictures.
    """
    splits, rows, paths = {}, {}, []
    for split, count in (("train", limit), ("test", limit // 2)):
        examples = load(name, split, data_dir, **options)
        splits[split] = examples.subset(torch.arange(count, device="cpu")) if count else examples
        rows[split] = embed_pictures(splits[split].inputs, encoder).rows.double()
    centre = rows["train"].mean(0)
    axes = principal_axes(rows["train"] - centre, COMPONENTS)
    size = ((rows["train"] - centre) @ axes).square().mean().sqrt()
    folder = data_root(data_dir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        stem = "-".join([name, *map(str, options.values()), str(limit or "all"), split])
        paths.append(folder / f"{stem}.npz")
        _save((rows[split] - centre) @ axes / size, examples, paths[-1])
    return paths


def principal_axes(centred: Tensor, count: int) -> Tensor:
    """(D, count) orthonormal columns along which rows vary most, each with its largest entry positive.

    >>> principal_axes(torch.tensor([[2.0, 0.1], [-2.0, -0.1]]), 1).abs().round()
    tensor([[1.],
            [0.]])
    """
    axes: Tensor = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :count]
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return axes * signs


def _save(rows: Tensor, examples: Source, path: Path) -> None:
    arrays: dict[str, Any] = {
        "embeddings": rows.float().numpy(),
        "labels": examples.labels.numbers.numpy(),
        "class_names": np.array(examples.class_names),
    }
    if examples.clean is not None:
        arrays["clean_labels"] = examples.clean.numpy()
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomically(path, content.getvalue())
