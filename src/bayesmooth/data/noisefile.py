"""The noise file: which labels were changed, so that two people train on the same noise."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesmooth.data.examples import Examples
from bayesmooth.data.files import read_bytes
from bayesmooth.errors import InputError

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False, repr=False)
class Corruption:
    """Labels `new` for `old` at the positions `index` of `count`; `hash` is that of all old labels."""

    kind: str
    matrix: Matrix
    seed: int
    index: Labels
    old: Labels
    new: Labels
    count: int
    hash: str

    @property
    def rate(self) -> float:
        """The share of labels that changed."""
        return len(self.index) / max(self.count, 1)

    def apply(self, examples: Examples) -> Examples:
        """The examples under the noisy labels; they must carry those the noise was drawn for."""
        found = label_hash(examples)
        if found != self.hash:
            raise InputError(
                f"{examples.name}: its labels (hash {found[:12]}) are not those the noise was drawn "
                f"for (hash {self.hash[:12]}, {self.count} labels); use the same set, split and order"
            )
        labels = examples.labels.clone()
        labels[torch.from_numpy(self.index)] = torch.from_numpy(self.new)
        clean = examples.labels if examples.clean_labels is None else examples.clean_labels
        return replace(examples, labels=labels, clean_labels=clean)

    def save(self, path: str | Path) -> None:
        """Write the noise file, as JSON."""
        content = {
            "format": "bayesmooth noise 1",
            "kind": self.kind,
            "seed": self.seed,
            "rate": self.rate,
            "count": self.count,
            "hash": self.hash,
            "matrix": self.matrix.tolist(),
            "index": self.index.tolist(),
            "old": self.old.tolist(),
            "new": self.new.tolist(),
        }
        lines = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in content.items())
        Path(path).write_text("{\n" + lines + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Corruption":
        """Read a noise file."""
        try:
            content = json.loads(read_bytes(Path(path)))
            matrix = np.array(content["matrix"], dtype=np.float64)
            index, old, new = (_integers(content[key]) for key in ("index", "old", "new"))
            kind, seed, count, digest = (content[key] for key in ("kind", "seed", "count", "hash"))
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"{path}: not a noise file ({type(error).__name__}: {error})"
            ) from None
        if not (type(seed) is type(count) is int and type(kind) is type(digest) is str):
            raise InputError(f"{path}: seed and count must be whole numbers, kind and hash strings")
        _check(str(path), matrix, index, old, new, count)
        return cls(kind, matrix, seed, index, old, new, count, digest)

    def __repr__(self) -> str:
        share = f"{len(self.index)} of {self.count} labels, {self.rate:.2%}"
        return f"Corruption({self.kind}, seed {self.seed}: {share})"


def label_hash(examples: Examples) -> str:
    """SHA-256 of the labels and the number of classes."""
    labels = examples.labels.numpy().astype("<i8").tobytes()
    return hashlib.sha256(labels + str(examples.num_classes).encode()).hexdigest()


def _integers(values: Any) -> Labels:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise TypeError("index, old and new are lists of whole numbers")
    return np.array(values, dtype=np.int64)


def _check(path: str, matrix: Matrix, index: Labels, old: Labels, new: Labels, count: int) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{path}: matrix of shape {matrix.shape}: must be K × K")
    if not len(index) == len(old) == len(new):
        raise InputError(
            f"{path}: {len(index)} index, {len(old)} old, {len(new)} new: must be as many"
        )
    for name, values, end in (
        ("index", index, count),
        ("old", old, len(matrix)),
        ("new", new, len(matrix)),
    ):
        broken = np.flatnonzero((values < 0) | (values >= end))
        if len(broken):
            at = broken[0]
            raise InputError(f"{path}: {name}[{at}]={values[at]}: must be from 0 to {end - 1}")
