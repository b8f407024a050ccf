"""The noun: the ranked table of an audit, and the files it becomes."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.annotators import Consensus
from bayesmooth.audit.findings import FINDINGS, Findings
from bayesmooth.audit.kinds import CLASSES, Classes
from bayesmooth.audit.multilabel import Tags
from bayesmooth.audit.predictions import HARD, MISLABELLED, QUADRANTS
from bayesmooth.audit.similar import Similar
from bayesmooth.data import Source
from bayesmooth.data.csvtext import guard
from bayesmooth.data.prepare import SHEET_ROW
from bayesmooth.errors import InputError
from bayesmooth.files import check_output, write_atomically
from bayesmooth.optional import require

Array = NDArray[Any]
KINDS = ("contradicted", *QUADRANTS, *FINDINGS)
"""What `Audit.select` selects, named as the report's chips are: conflicts are copies with different labels, rare those
of rare classes, leaks those that the other split holds too."""


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """Which labels of a data set are probably wrong, which examples are ambiguous, and what else is odd about them.

    `save` writes the report to review them in, `top` gives the worst, `to_frame` one row per example, `select` those
    that one thing is wrong with, `weights` and `soft_labels` what to train on. In a notebook the ten worst show by
    themselves, `show` the whole report and `plot` the map.

    Every column has one entry per example, in the order of the data; labels are positions in `class_names`.
    """

    class_names: tuple[str, ...]
    ids: tuple[str, ...]
    given: Array
    suggested: Array
    """The likeliest other class where the label is contradicted, else the label."""
    given_probability: Array
    suggested_probability: Array
    disagreement: Array
    """Higher: the label is more likely wrong."""
    ambiguity: Array
    """How near the second best class comes to the best, 0 … 1; blind to the label."""
    quadrant: Array
    """Positions in `QUADRANTS`."""
    disagreement_threshold: float
    ambiguity_threshold: float
    noise: Array | None = None
    """½‖ε‖₁, the probability that averaging over the posterior moves, where there is one."""
    clean: Array | None = None
    """The true labels, where they are known."""
    probabilities: Array | None = None
    """N×K: what is predicted of every example; the columns of the table are its largest and the label's."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    examples: Source | None = None
    """What the report shows beside the numbers."""
    findings: Findings | None = None
    """What else was found: near duplicates, outliers, rare classes, leaks."""
    similar: Similar | None = None
    """The nearest examples with the given and with the suggested label, of the labels most likely wrong."""
    consensus: Consensus | None = None
    """What several annotators agree on and how good each is, where there are several."""
    tags: Tags | None = None
    """What is predicted of every tag, where an example has several labels: a class is then a set of tags."""

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return f"Audit({len(self):,} examples, {self.kind.count_kinds(self)}: {counts})"

    @property
    def kind(self) -> Classes:
        """What labels are: classes, or sets of tags."""
        return self.tags or CLASSES

    @cached_property
    def order(self) -> Array:
        """Positions from the label most likely wrong to the least."""
        return np.argsort(-self.disagreement, kind="stable")

    @cached_property
    def rank(self) -> Array:
        """1 for the label that is most likely wrong."""
        rank = np.empty(len(self), np.int64)
        rank[self.order] = np.arange(1, len(self) + 1)
        return rank

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each quadrant holds."""
        numbers = np.bincount(self.quadrant, minlength=len(QUADRANTS)).tolist()
        return dict(zip(QUADRANTS, numbers, strict=True))

    @property
    def contradicted(self) -> Array:
        """Which labels the prediction contradicts: hard ones too, as they are wrong as often (docs/audit-method.md)."""
        return np.isin(self.quadrant, (MISLABELLED, HARD))

    @property
    def headline(self) -> str:
        """The claim in one sentence."""
        if not self.summary.get("informative", True):
            return "Nothing can be told of these labels."
        return self.kind.say(self, int(self.contradicted.sum()))

    @property
    def matrix(self) -> Array:
        """K×K counts: rows are given labels, columns suggested ones."""
        return self.kind.count_pairs(self, self.suggested)

    @property
    def true_matrix(self) -> Array | None:
        """K×K counts of given × true labels, where these are known."""
        return None if self.clean is None else self.kind.count_pairs(self, self.clean)

    def top(self, n: int = 20) -> list[dict[str, Any]]:
        """The n labels most likely wrong, worst first, with names for labels."""
        columns = self.columns()
        return [{name: column[i] for name, column in columns.items()} for i in self.order[:n]]

    def columns(self) -> dict[str, list[Any]]:
        """The table as plain lists, with names for labels, in the order of the data."""
        return dict(self._columns)

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        labels, quadrants = np.array(self.class_names, object), np.array(QUADRANTS, object)
        columns = {
            "rank": self.rank,
            "given": labels[self.given],
            "suggested": labels[self.suggested],
            **self.kind.columns(self),
            "given_probability": self.given_probability,
            "suggested_probability": self.suggested_probability,
            "disagreement": self.disagreement,
            "ambiguity": self.ambiguity,
            "quadrant": quadrants[self.quadrant],
            "noise": self.noise,
            "clean": None if self.clean is None else labels[self.clean],
        }
        table: dict[str, Any] = {"id": list(self.ids)}
        table |= {name: column.tolist() for name, column in columns.items() if column is not None}
        shown = {name: self.meta[name] for name in (SHEET_ROW, "text") if name in self.meta}
        return table | self.found.columns(self.ids) | shown

    @property
    def found(self) -> Findings:
        """The findings; empty ones where nobody looked for any."""
        return self.findings or Findings()

    @property
    def meta(self) -> Mapping[str, Sequence[Any]]:
        """What the data say of their examples beside the labels, such as texts; empty where there are no data."""
        return {} if self.examples is None else self.examples.meta

    def weights(self) -> Array:
        """The probability that each given label is right: what its loss counts for in training."""
        return np.asarray(self.given_probability, np.float64)

    def soft_labels(self) -> Array:
        """N×K: the probability of every class to be the true one, as targets for training."""
        return self.kind.soft_labels(self)

    def to_frame(self) -> Any:
        """The table as a pandas frame: one row per example, with names for labels and the columns of the data."""
        columns = self.columns()
        return require("pandas", extra="data").DataFrame({**columns, **self.meta, **columns})

    @property
    def mislabelled(self) -> Any:
        """The rows of `to_frame` whose label the prediction surely speaks against, worst first."""
        return self.select("mislabelled")

    def select(self, kind: str) -> Any:
        """The rows of `to_frame` of one of `KINDS`, worst first; none where nobody looked for that kind."""
        if kind not in KINDS:
            raise InputError(f"kind={kind!r}: must be one of {', '.join(KINDS)}")
        masks = {"contradicted": self.contradicted}
        masks |= {name: self.quadrant == k for k, name in enumerate(QUADRANTS)}
        masks |= self.found.masks()
        chosen = masks.get(kind, np.zeros(len(self), bool))
        return self.to_frame().iloc[self.order[chosen[self.order]]]

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV, in the order of the data; also written to `path` if one is given.

        A text that a spreadsheet would run as a formula gets an apostrophe in front, which `clean` takes off again.
        """
        text = write_csv(self.columns())
        if path is not None:
            check_output(Path(path))
            write_atomically(Path(path), text)
        return text

    def save(self, directory: str | Path, *, thumbnails: int = 500, title: str = "") -> Path:
        """Write audit.html, audit.csv, audit.parquet and audit.json; the path of the HTML."""
        from bayesmooth.audit.outputs import save

        return save(self, Path(directory), thumbnails=thumbnails, title=title)

    def show(self) -> None:
        """The report below the cell of a notebook; elsewhere in the browser."""
        from bayesmooth.audit.outputs import show_inline

        show_inline(self)

    def plot(self) -> Any:
        """A matplotlib figure: every label on the map, and which labels get confused."""
        from bayesmooth.audit.outputs import plot_audit

        return plot_audit(self)

    def _repr_html_(self) -> str:
        from bayesmooth.audit.outputs import to_short_html

        return to_short_html(self)


def write_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV, with texts that no spreadsheet runs as formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    cells = [
        [f"{v:.6g}" if isinstance(v, float) else guard(str(v)) for v in column]
        for column in columns.values()
    ]
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()
