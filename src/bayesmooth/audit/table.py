"""The noun: the ranked table of an audit, and the files it becomes."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.scores import AXES, QUADRANTS
from bayesmooth.data import Examples

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """N examples in the order of the data; every column has length N, labels are positions in class_names."""

    class_names: tuple[str, ...]
    ids: tuple[str, ...]
    given: Array
    suggested: Array
    """The most probable class by the averaged prediction."""
    given_probability: Array
    suggested_probability: Array
    disagreement: Array
    """Higher: the label is more likely wrong."""
    ambiguity: Array
    """The size of ε; blind to the label."""
    quadrant: Array
    """Positions in `QUADRANTS`."""
    disagreement_threshold: float
    ambiguity_threshold: float
    clean: Array | None = None
    """The true labels, where they are known."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    axis_names: tuple[str, str] = AXES
    examples: Examples | None = None
    """What the report shows beside the numbers."""

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return f"Audit({len(self):,} examples, {len(self.class_names)} classes: {counts})"

    @property
    def rank(self) -> Array:
        """1 for the label that is most likely wrong."""
        rank = np.empty(len(self), np.int64)
        rank[self.order] = np.arange(1, len(self) + 1)
        return rank

    @property
    def order(self) -> Array:
        """Positions from the label most likely wrong to the least."""
        return np.argsort(-self.disagreement, kind="stable")

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each quadrant holds."""
        numbers = np.bincount(self.quadrant, minlength=len(QUADRANTS)).tolist()
        return dict(zip(QUADRANTS, numbers, strict=True))

    @property
    def matrix(self) -> Array:
        """K×K counts: rows are given labels, columns suggested ones."""
        return self._pairs(self.suggested)

    @property
    def true_matrix(self) -> Array | None:
        """K×K counts of given × true labels, where these are known."""
        return None if self.clean is None else self._pairs(self.clean)

    def top(self, n: int = 20) -> list[dict[str, Any]]:
        """The n labels most likely wrong, worst first, with names for labels."""
        columns = self.columns()
        return [{name: column[i] for name, column in columns.items()} for i in self.order[:n]]

    def columns(self) -> dict[str, list[Any]]:
        """The table as plain lists, with names for labels, in the order of the data."""
        names = np.array(self.class_names, object)
        table = {
            "id": list(self.ids),
            "rank": self.rank.tolist(),
            "given": names[self.given].tolist(),
            "suggested": names[self.suggested].tolist(),
            "given_probability": self.given_probability.tolist(),
            "suggested_probability": self.suggested_probability.tolist(),
            "disagreement": self.disagreement.tolist(),
            "ambiguity": self.ambiguity.tolist(),
            "quadrant": np.array(QUADRANTS, object)[self.quadrant].tolist(),
        }
        return table if self.clean is None else table | {"clean": names[self.clean].tolist()}

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV, in the order of the data; also written to `path` if one is given."""
        columns = self.columns()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        rounded = [
            [f"{v:.6g}" if isinstance(v, float) else v for v in column]
            for column in columns.values()
        ]
        writer.writerows(zip(*rounded, strict=True))
        if path is not None:
            from bayesmooth.audit.files import write_atomically

            write_atomically(path, text.getvalue())
        return text.getvalue()

    def save(self, directory: str | Path, *, thumbnails: int = 500, title: str = "") -> Path:
        """Write audit.html, audit.csv, audit.parquet and audit.json; the path of the HTML."""
        from bayesmooth.audit.outputs import save

        return save(self, Path(directory), thumbnails=thumbnails, title=title)

    def _pairs(self, other: Array) -> Array:
        classes = len(self.class_names)
        pairs = self.given.astype(np.int64) * classes + other
        return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
