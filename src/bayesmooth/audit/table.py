"""The noun: the ranked table of an audit, and the files it becomes."""

import csv
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.findings import FINDINGS, Findings
from bayesmooth.audit.neighbours import Similar, find_similar
from bayesmooth.data import Source
from bayesmooth.data.features import SHEET_ROW
from bayesmooth.data.tables import guard
from bayesmooth.errors import InputError, one_of, require
from bayesmooth.files import write_together
from bayesmooth.progress import format_percent

if TYPE_CHECKING:
    from bayesmooth.audit.annotators import Consensus
    from bayesmooth.audit.multilabel import Tags
    from bayesmooth.audit.review import Review

Array = NDArray[Any]
QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
SURE = ((0.0, "hardly"), (0.1, "perhaps"), (0.5, "likely"), (0.9, "very likely"))
"""The probabilities from which on a class is called so: percentages would promise more than they hold."""
LEAST_TOLD = 0.0005  # of the labels: less would be told as 0.0 %
WORST = 10  # labels that a job's page and a notebook show by themselves
FILES = {"audit.csv", "audit.parquet", "audit.json", "audit.html", "annotators.csv", "label_again.csv"}
KINDS = ("contradicted", *QUADRANTS, *FINDINGS)
"""The choices of `Audit.select`, named as the report's chips are: conflicts are copies with different labels, rare
those of rare classes, leaks those that the other split holds too."""


@dataclass(eq=False, repr=False)
class Audit:
    """The audit of a data set: labels that are probably wrong, examples that are ambiguous, and other findings.

    `save` writes the report to review them in, `top` gives the worst, `to_frame` one row per example, `select` the rows
    of one kind, `weights` and `soft_labels` the weights and targets of a training. In a notebook the ten worst show by
    themselves, `show` the whole report.

    Every column has one entry per example, in the order of the data; labels are positions in `class_names`.
    """

    unit: ClassVar[str] = "classes"
    """The word for `label_names`."""

    examples: Source
    """The audited data."""
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
    """N×K: the prediction of every example; the columns of the table are its largest and the label's."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    """Findings beside wrong labels: near duplicates, outliers, rare classes, leaks."""
    similar: Similar | None = None
    """The nearest examples with the given and with the suggested label, of the labels most likely wrong."""
    consensus: "Consensus | None" = None
    """The consensus of several annotators and the quality of each, where there are several."""
    review: "Review | None" = None
    """The queue of labels to review, the probabilities of its draw, and the decisions."""
    tags: "Tags | None" = None
    """Predictions of every tag, where an example has several labels: a class is then a set of tags."""

    contradicted: Array = field(init=False)
    """The mask of contradicted labels: hard ones too, as they are wrong as often (docs/audit-method.md)."""
    quadrant: Array = field(init=False)
    """Positions in `QUADRANTS`: contradicted and clear-cut is mislabelled, contradicted and close hard."""
    order: Array = field(init=False)
    """Positions from the label most likely wrong to the least."""
    counts: dict[str, int] = field(init=False)
    """The number of examples in each quadrant."""
    ids: tuple[str, ...] = field(init=False)
    clean: Array | None = field(init=False)
    """The true labels, where they are known."""
    label_names: tuple[str, ...] = field(init=False)
    """The names that a label is chosen from."""

    def __post_init__(self) -> None:
        self.contradicted = np.not_equal(self.suggested, self.given)
        self.quadrant = np.asarray(MISLABELLED * self.contradicted + AMBIGUOUS * self.close)  # both: HARD
        self.order = np.argsort(-self.disagreement, kind="stable")
        numbers = np.bincount(self.quadrant, minlength=len(QUADRANTS)).tolist()
        self.counts = dict(zip(QUADRANTS, numbers, strict=True))
        self.ids, self.label_names = self.examples.ids, self.class_names
        self.clean = None if self.examples.clean is None else self.examples.clean.numpy()

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return f"Audit({len(self):,} examples, {len(self.label_names)} {self.unit}: {counts})"

    @property
    def headline(self) -> str:
        """The claim in one sentence."""
        if not self.summary.get("informative", True):
            return "Nothing can be told of these labels."
        if rate := self.summary.get("error_rate"):
            share, low, high = (format_percent(rate[key]) for key in ("estimate", "low", "high"))
            return f"{share} of the labels are wrong ({low} to {high}, by a review of {rate['draws']} drawn ones)."
        total, wrong = len(self), int(self.contradicted.sum())
        least = self.summary.get("noise_rate_at_least") or 0.0
        if wrong == 0:
            return f"None of the {total:,} labels looks wrong."
        look = "looks wrong" if wrong == 1 else "look wrong"
        if least >= LEAST_TOLD:
            return f"At least {100 * least:.1f}\u00a0% of the labels are wrong, and {wrong:,} of {total:,} {look}."
        share = f"{100 * wrong / total:.{1 if wrong / total >= 0.001 else 3}f}\u00a0%"
        return f"{wrong:,} of {total:,} labels {look} ({share})."

    def describe_labels(self) -> dict[str, Any]:
        """The entries of audit.json on every class."""
        names, weights = self.class_names, (None, self.contradicted, self.ambiguity)
        counts = (np.bincount(self.given, weight, len(names)).tolist() for weight in weights)
        classes = [
            {
                "name": name,
                "examples": count,
                "contradicted": int(wrong),
                "ambiguity": unclear / count if count else None,
            }
            for name, count, wrong, unclear in zip(names, *counts, strict=True)
        ]
        return {"class_names": list(names), "classes": classes}

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
        return [{name: column[i] for name, column in self._columns.items()} for i in self.order[:n]]

    def columns(self) -> dict[str, list[Any]]:
        """The table as plain lists, with names for labels, in the order of the data."""
        return dict(self._columns)

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        labels, ids = np.array(self.class_names, object), np.array(self.ids, object)
        columns: dict[str, Array | None] = {
            "id": ids,
            "rank": np.argsort(self.order) + 1,
            "given": labels[self.given],
            "suggested": labels[self.suggested],
            "given_probability": self.given_probability,
            "suggested_probability": self.suggested_probability,
            "disagreement": self.disagreement,
            "ambiguity": self.ambiguity,
            "quadrant": np.array(QUADRANTS, object)[self.quadrant],
        }
        if self.review is not None:
            place = np.full(len(self), "", object)
            place[self.review.queue] = np.arange(1, len(self.review.queue) + 1).astype(str)
            columns |= {"chance": self.review.chance, "drawn": self.review.drawn, "queue": place}
        findings, first = self.findings, self.findings.duplicate_of
        kinds = {id: problem.kind for problem in findings.problems for id in problem.ids}
        problems = [kinds.get(id, "") for id in self.ids]
        columns |= {
            "noise": self.noise,
            "clean": None if self.clean is None else labels[self.clean],
            "duplicate_of": None if first is None else np.where(first < 0, "", ids[first]),
            "outlier_score": findings.outlier_score,
            "rare_class": findings.rare_class,
            "in_other_split": findings.in_other_split,
            "problem": np.array(problems, object) if any(problems) else None,
        }
        shown = {name: column for name, column in self.examples.meta.items() if name in (SHEET_ROW, "text")}
        return {name: column.tolist() for name, column in columns.items() if column is not None} | shown

    def weights(self) -> Array:
        """The probability that each given label is right: the weight of its loss in training."""
        return np.asarray(self.given_probability, np.float64)

    def soft_labels(self) -> Array:
        """N×K: the probability of every class to be the true one, as targets for training."""
        if self.probabilities is None:
            raise InputError("soft_labels: no probabilities of classes; those of tags are audit.tags.probabilities")
        return np.asarray(self.probabilities, np.float64)

    def to_frame(self) -> Any:
        """The table as a pandas frame: one row per example, with names for labels and the columns of the data."""
        return require("pandas", extra="data").DataFrame({**self._columns, **self.examples.meta, **self._columns})

    @property
    def mislabelled(self) -> Any:
        """The rows of `to_frame` whose label the prediction surely speaks against, worst first."""
        return self.select("mislabelled")

    def select(self, kind: str) -> Any:
        """The rows of `to_frame` of one of `KINDS`, worst first; none where nobody looked for that kind."""
        one_of("kind", kind, KINDS)
        masks = {"contradicted": self.contradicted, **self.findings.masks()}
        masks |= {name: self.quadrant == k for k, name in enumerate(QUADRANTS)}
        chosen = masks.get(kind, np.zeros(len(self), bool))
        return self.to_frame().iloc[self.order[chosen[self.order]]]

    def find_failures(self, above: float | None, kinds: Sequence[str] = ()) -> list[str]:
        """The reasons why these data should not pass, in words; empty where they should.

        `above` is the share of wrong labels that is allowed, held against the lower bound of the audit, or that of a
        whole review. `kinds` are findings that must not occur.
        """
        failures, reviewed = list[str](), self.summary.get("error_rate")
        least = reviewed["low"] if reviewed else self.summary.get("noise_rate_at_least")
        if above is not None and (least is None or least > above):
            shown = f"at least {format_percent(least or 0)} of the labels are wrong, more than {format_percent(above)}"
            failures.append("it cannot be told how many labels are wrong" if least is None else shown)
        masks = self.findings.masks()
        for kind in kinds:
            if kind not in masks:
                raise InputError(f"--fail-on {kind}: this audit could not look for any; leave it out")
            if count := int(masks[kind].sum()):
                failures.append(f"{count:,} {FINDINGS[kind].replace('_', ' ')} ({kind})")
        return failures

    def to_markdown(self, failures: Sequence[str] | None = None) -> str:
        """The headline, the findings and the ten worst labels, for a notebook or the page of a job."""
        mark = "" if failures is None else "❌ " if failures else "✅ "
        lines = [f"## {mark}{self.summary.get('source', 'labels')}", "", self.headline, ""]
        lines += [f"- **{text}**" for text in (self.summary.get("warning"), *(failures or ())) if text]
        lines += [f"- also found: {self.findings}", *(f"- {problem.text}" for problem in self.findings.problems)]
        lines += ["", "| id | label | looks like | how sure |", "| --- | --- | --- | --- |"]
        for row in self.top(WORST):
            cells = (row["id"], row["given"], row["suggested"], format_sureness(row["suggested_probability"]))
            safe = (html.escape(" ".join(cell.split())).replace("|", "\\|") for cell in cells)
            lines.append(f"| {' | '.join(safe)} |")
        return "\n".join(lines) + "\n"

    def save(self, directory: str | Path, *, thumbnails: int = 500, title: str = "") -> Path:
        """Write audit.html, audit.csv, audit.parquet and audit.json; the path of the HTML.

        With several annotators also annotators.csv and label_again.csv. All are made first, then written together.
        """
        from bayesmooth.audit.report import render

        folder = Path(directory)
        check_source_stays(folder, self.examples.path)
        files: dict[str, str | bytes] = {"audit.csv": write_csv(self._columns)}
        if find_spec("pyarrow"):
            arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
            parquet.write_table(arrow.table(self._columns), file := io.BytesIO())
            files["audit.parquet"] = file.getvalue()
        summary = {
            "examples": len(self),
            "quadrants": self.counts,
            "disagreement_threshold": self.disagreement_threshold,
            **self.summary,
            **self.findings.counts(),
            "problems": [asdict(problem) for problem in self.findings.problems],
            **self.describe_labels(),
            "top": [self.ids[i] for i in self.order[:100]],
        }
        files["audit.json"] = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
        if self.consensus is not None:
            names, people = self.class_names, self.summary["annotators"]
            again = [(self.ids[i], names[k], share, who) for i, k, share, who in self.consensus.list_again()]
            columns = ("id", "consensus", "probability", "annotator")
            files["annotators.csv"] = write_csv({key: [one[key] for one in people] for key in people[0]})
            files["label_again.csv"] = write_csv(dict(zip(columns, zip(*again, strict=True), strict=True)))
        files["audit.html"] = render(self, title=title, thumbnails=thumbnails)
        write_together(folder, files)
        for name in FILES - files.keys():  # of an audit that was here before
            (folder / name).unlink(missing_ok=True)
        return folder / "audit.html"

    def show(self) -> None:
        """The report below the cell of a notebook; elsewhere in the browser."""
        from bayesmooth.audit.report import show

        show(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def check_source_stays(directory: Path, source: Path | None) -> None:
    """Refuse a folder where the files of an audit would overwrite the one that is audited."""
    for place in (directory / name for name in FILES):
        if source is not None and source.exists() and place.exists() and place.samefile(source):
            raise InputError(f"{place}: is what is audited, and would be overwritten; choose another folder (--out)")


def format_sureness(probability: float) -> str:
    """The certainty of a prediction in words.

    >>> format_sureness(0.6)
    'likely'
    """
    return [words for least, words in SURE if probability >= least][-1]


def write_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV; a text that a spreadsheet would run as a formula gets an apostrophe in front, which `clean` takes
    off again."""
    lines = list[str]()
    writer = csv.writer(SimpleNamespace(write=lines.append))  # its own ends of lines: else it does not quote them all
    writer.writerow(columns)
    cells = [
        [f"{v:.6g}" if isinstance(v, float) else guard("" if v is None else str(v)) for v in column]
        for column in columns.values()
    ]
    writer.writerows(zip(*cells, strict=True))
    return "".join(line[:-2] + "\n" for line in lines)
