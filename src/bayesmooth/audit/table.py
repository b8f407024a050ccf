"""The noun: the ranked table of an audit, and the files it becomes."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.findings import FINDINGS, Findings
from bayesmooth.audit.neighbours import Similar, find_similar
from bayesmooth.data import Source
from bayesmooth.data.features import SHEET_ROW
from bayesmooth.data.tables import guard
from bayesmooth.errors import InputError
from bayesmooth.files import check_output, write_atomically
from bayesmooth.optional import require
from bayesmooth.words import format_percent

if TYPE_CHECKING:
    from bayesmooth.audit.annotators import Consensus
    from bayesmooth.audit.multilabel import Tags
    from bayesmooth.audit.review import Review

Array = NDArray[Any]
QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
SURE = ((0.0, "hardly"), (0.1, "perhaps"), (0.5, "likely"), (0.9, "very likely"))
"""From which probability on a class is called so: percentages would promise more than they hold."""
LEAST_TOLD = 0.0005  # of the labels: less would be told as 0.0 %
MATRIX_CLASSES = 500  # up to which audit.json holds the matrices of pairs of classes
KINDS = ("contradicted", *QUADRANTS, *FINDINGS)
"""What `Audit.select` selects, named as the report's chips are: conflicts are copies with different labels, rare those
of rare classes, leaks those that the other split holds too."""


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """Which labels of a data set are probably wrong, which examples are ambiguous, and what else is odd about them.

    `save` writes the report to review them in, `top` gives the worst, `to_frame` one row per example, `select` those
    that one thing is wrong with, `weights` and `soft_labels` what to train on. In a notebook the ten worst show by
    themselves, `show` the whole report.

    Every column has one entry per example, in the order of the data; labels are positions in `class_names`.
    """

    examples: Source
    """What was audited."""
    class_names: tuple[str, ...]
    given: Array
    suggested: Array
    """The likeliest other class where the label is contradicted, else the label."""
    given_probability: Array
    suggested_probability: Array
    disagreement: Array
    """Higher: the label is more likely wrong."""
    ambiguity: Array
    """The entropy of the prediction that has not seen the label, 0 … 1."""
    close: Array
    """Whether no class is four times as likely as the next, by the same prediction."""
    disagreement_threshold: float
    noise: Array | None = None
    """½‖ε‖₁, the probability that averaging over the posterior moves, where there is one."""
    probabilities: Array | None = None
    """N×K: what is predicted of every example; the columns of the table are its largest and the label's."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    """What else was found: near duplicates, outliers, rare classes, leaks."""
    similar: Similar | None = None
    """The nearest examples with the given and with the suggested label, of the labels most likely wrong."""
    consensus: "Consensus | None" = None
    """What several annotators agree on and how good each is, where there are several."""
    review: "Review | None" = None
    """Which labels to look at, how they were drawn, and what was learned from decisions on them."""
    tags: "Tags | None" = None
    """What is predicted of every tag, where an example has several labels: a class is then a set of tags."""

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return f"Audit({len(self):,} examples, {self.count_kinds()}: {counts})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of the examples."""
        return self.examples.ids

    @property
    def meta(self) -> Mapping[str, Sequence[Any]]:
        """What the data say of their examples beside the labels, such as texts."""
        return self.examples.meta

    @property
    def clean(self) -> Array | None:
        """The true labels, where they are known."""
        return None if self.examples.clean is None else self.examples.clean.numpy()

    @cached_property
    def quadrant(self) -> Array:
        """Positions in `QUADRANTS`: contradicted and clear-cut is mislabelled, contradicted and close hard."""
        return np.asarray(MISLABELLED * self.contradicted + AMBIGUOUS * self.close)  # both: HARD

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
        return np.not_equal(self.suggested, self.given)

    @property
    def headline(self) -> str:
        """The claim in one sentence."""
        if not self.summary.get("informative", True):
            return "Nothing can be told of these labels."
        if rate := self.summary.get("error_rate"):
            share, low, high = (format_percent(rate[key]) for key in ("estimate", "low", "high"))
            return f"{share} of the labels are wrong ({low} to {high}, by a review of {rate['draws']} drawn ones)."
        return self.tell(int(self.contradicted.sum()))

    def tell(self, wrong: int) -> str:
        """How many labels look wrong."""
        total, least = len(self), self.summary.get("noise_rate_at_least") or 0.0
        if wrong == 0:
            return f"None of the {total:,} labels looks wrong."
        verb = "looks" if wrong == 1 else "look"
        if least >= LEAST_TOLD:
            share = f"{100 * least:.1f}\u00a0%"
            return f"At least {share} of the labels are wrong, and {wrong:,} of {total:,} {verb} wrong."
        share = f"{100 * wrong / total:.{1 if wrong / total >= 0.001 else 3}f}\u00a0%"
        return f"{wrong:,} of {total:,} labels {verb} wrong ({share})."

    def count_kinds(self) -> str:
        """How many different labels there are."""
        return f"{len(self.class_names)} classes"

    def count_pairs(self, other: Array) -> Array:
        """K×K counts: rows are given labels, columns other ones."""
        classes = len(self.class_names)
        pairs = self.given.astype(np.int64) * classes + other
        return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    @property
    def matrix(self) -> Array:
        """K×K counts: rows are given labels, columns suggested ones."""
        return self.count_pairs(self.suggested)

    def describe_labels(self) -> dict[str, Any]:
        """What audit.json says of every class and of pairs of them; no matrices that make a file of megabytes."""
        names, matrix = self.class_names, self.matrix
        given = np.bincount(self.given, minlength=len(names))
        unclear = np.bincount(self.given, self.ambiguity, len(names)) / np.maximum(given, 1)
        small = len(names) <= MATRIX_CLASSES
        return {
            "class_names": list(names),
            "classes": [
                {
                    "name": name,
                    "examples": int(given[k]),
                    "contradicted": int(given[k] - matrix[k, k]),
                    "ambiguity": float(unclear[k]) if given[k] else None,
                }
                for k, name in enumerate(names)
            ],
            "given_by_suggested": matrix.tolist() if small else None,
            "given_by_true": self.count_pairs(self.clean).tolist() if small and self.clean is not None else None,
        }

    def pair_labels(self) -> tuple[Array, Array]:
        """The label of every example, and the likeliest other one."""
        if self.probabilities is None or self.probabilities.shape[1] < 2:
            return self.given, self.suggested
        others = self.probabilities.copy()
        others[np.arange(len(self)), self.given] = -1
        return self.given, np.where(self.contradicted, self.suggested, others.argmax(1))

    def find_similar(self, rows: Tensor, worst: Array) -> Similar:
        """The nearest examples that have the given and the suggested label."""
        return find_similar(rows, self.given, self.suggested, worst)

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
            **self.list_changes(),
            "given_probability": self.given_probability,
            "suggested_probability": self.suggested_probability,
            "disagreement": self.disagreement,
            "ambiguity": self.ambiguity,
            "quadrant": quadrants[self.quadrant],
            **({} if self.review is None else self.review.columns()),
            "noise": self.noise,
            "clean": None if self.clean is None else labels[self.clean],
        }
        table: dict[str, Any] = {"id": list(self.ids)}
        table |= {name: column.tolist() for name, column in columns.items() if column is not None}
        shown = {name: self.meta[name] for name in (SHEET_ROW, "text") if name in self.meta}
        return table | self.findings.columns(self.ids) | shown

    def list_changes(self) -> dict[str, Array]:
        """What the table holds beside the given and the suggested label."""
        return {}

    def weights(self) -> Array:
        """The probability that each given label is right: what its loss counts for in training."""
        return np.asarray(self.given_probability, np.float64)

    def soft_labels(self) -> Array:
        """N×K: the probability of every class to be the true one, as targets for training."""
        if self.probabilities is None:
            raise InputError("soft_labels: this audit was made without probabilities of all classes")
        return np.asarray(self.probabilities, np.float64)

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
        masks |= self.findings.masks()
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

    def export(self, directory: str | Path, tool: str) -> Path:
        """Write the suggestions for "label-studio", "argilla" or "fiftyone"; `clean` reads the answers."""
        from bayesmooth.audit.exchange import export

        return export(self, Path(directory), tool)

    def show(self) -> None:
        """The report below the cell of a notebook; elsewhere in the browser."""
        from bayesmooth.audit.outputs import show_inline

        show_inline(self)

    def _repr_html_(self) -> str:
        from bayesmooth.audit.outputs import to_short_html

        return to_short_html(self)


def format_sureness(probability: float) -> str:
    """How sure the prediction is, in words.

    >>> format_sureness(0.6)
    'likely'
    """
    return [words for least, words in SURE if probability >= least][-1]


def write_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV, with texts that no spreadsheet runs as formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    cells = [[f"{v:.6g}" if isinstance(v, float) else guard(str(v)) for v in column] for column in columns.values()]
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()
