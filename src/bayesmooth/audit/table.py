"""The noun: the ranked table of an audit, and the files it becomes."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.annotators import Consensus
from bayesmooth.audit.findings import FINDINGS, Findings
from bayesmooth.audit.multilabel import Tags
from bayesmooth.audit.scores import HARD, MISLABELLED, QUADRANTS
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

LEAST_TOLD = 0.0005  # of the labels: less would be told as 0.0 %
BOUNDS = {
    "given_probability": (0, 1 + 1e-6),
    "suggested_probability": (0, 1 + 1e-6),
    "disagreement": (-np.inf, np.inf),
    "ambiguity": (0, np.inf),
}
"""Of the columns of numbers, which are finite too."""


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

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        _check_names("class_names", self.class_names)
        if "" in self.class_names:
            raise InputError("class_names: one is empty; name it, for no one could relabel to it")
        _check_names("ids", self.ids)
        last = dict.fromkeys(("given", "suggested", "clean"), len(self.class_names) - 1)
        positions = {name: (0, k) for name, k in {**last, "quadrant": len(QUADRANTS) - 1}.items()}
        bounds: dict[str, tuple[float, float]] = {**positions, **BOUNDS}
        for name in ("ids", *bounds):
            column = getattr(self, name)
            if column is None:
                continue
            if len(column) != len(self):
                raise InputError(
                    f"{name}: has {len(column)} entries, must have one for each of {len(self)} examples"
                )
            if name in positions and column.dtype.kind not in "iu":
                raise InputError(f"{name}: dtype {column.dtype}; must hold integers")
            if name in bounds:
                _check_range(name, column, *bounds[name])

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        kinds = f"{len(self.class_names)} classes"
        if self.tags is not None:
            kinds = f"{len(self.tags.vocabulary.names)} tags"
        return f"Audit({len(self):,} examples, {kinds}: {counts})"

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
    def contradicted(self) -> Array:
        """Which labels the prediction contradicts: hard ones too, as they are wrong as often (docs/audit-method.md)."""
        return np.isin(self.quadrant, (MISLABELLED, HARD))

    @property
    def headline(self) -> str:
        """The claim in one sentence."""
        wrong, total = int(self.contradicted.sum()), len(self)
        least = self.summary.get("noise_rate_at_least") or 0.0
        if not self.summary.get("informative", True):
            return "Nothing can be told of these labels."
        if self.tags is not None:
            changes = int(self.tag_changes().sum())
            return f"{changes:,} tags look wrong, on {wrong:,} of {total:,} examples."
        if wrong == 0:
            return f"None of the {total:,} labels looks wrong."
        look = f"{wrong:,} of {total:,} look wrong" if wrong > 1 else f"1 of {total:,} looks wrong"
        if least < LEAST_TOLD:
            share = f"{100 * wrong / total:.{1 if wrong / total >= 0.001 else 3}f}\u00a0%"
            return f"{look.replace(' look', ' labels look')} ({share})."
        return f"At least {100 * least:.1f}\u00a0% of the labels are wrong, and {look}."

    @property
    def tags_to_add(self) -> Array | None:
        """The tags that each example lacks and probably should have, as text."""
        return self._subtract(self.suggested, self.given)

    @property
    def tags_to_remove(self) -> Array | None:
        """The tags that each example has and probably should not have, as text."""
        return self._subtract(self.given, self.suggested)

    def _subtract(self, sets: Array, others: Array) -> Array | None:
        if self.tags is None:
            return None
        subtract, names = self.tags.vocabulary.subtract, self.class_names
        pairs = zip(sets.tolist(), others.tolist(), strict=True)
        return np.array(["" if a == b else subtract(names[a], names[b]) for a, b in pairs], object)

    def tag_changes(self) -> Array:
        """2 × T: how many examples each tag should be added to, and removed from."""
        if self.tags is None:
            raise InputError(
                "tag_changes: every example has one label; `matrix` counts the changes"
            )
        carried = self.tags.vocabulary.table(self.class_names).numpy()
        before, after = carried[self.given], carried[self.suggested]
        return np.stack([(after > before).sum(0), (after < before).sum(0)])

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
        labels, quadrants = np.array(self.class_names, object), np.array(QUADRANTS, object)
        columns = {
            "rank": self.rank,
            "given": labels[self.given],
            "suggested": labels[self.suggested],
            "tags_to_add": self.tags_to_add,
            "tags_to_remove": self.tags_to_remove,
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
        if self.tags is not None:
            raise InputError(
                "soft_labels: an example has several labels, and no distribution over classes; targets for binary "
                "cross-entropy are audit.tags.probabilities (N × T)"
            )
        if self.probabilities is None:
            raise InputError(
                "soft_labels: this audit was made without probabilities of all classes"
            )
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

    def _pairs(self, other: Array) -> Array:
        if self.tags is not None:
            raise InputError("matrix: an example has several labels; `tag_changes` counts by tag")
        classes = len(self.class_names)
        pairs = self.given.astype(np.int64) * classes + other
        return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


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


def _check_names(name: str, values: Sequence[str]) -> None:
    """Refuse names that are not unique strings."""
    odd = next((value for value in values if not isinstance(value, str)), None)
    if odd is not None:
        raise InputError(f"{name}: {odd!r} is not a string; convert with str")
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise InputError(f"{name}: {twice[0]!r} occurs more than once; decisions need unique names")
    if not values:
        raise InputError(f"{name}: empty; an audit needs at least one")


def _check_range(name: str, values: Array, low: float, high: float) -> None:
    outside = values[~(np.isfinite(values) & (values >= low) & (values <= high))]
    if len(outside):
        raise InputError(f"{name}: {outside[0]} is outside {low:g} … {high:g}; must be finite")
