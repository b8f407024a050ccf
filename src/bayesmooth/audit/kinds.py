"""What an audit says of labels that are classes; `multilabel.Tags` says the same of sets of tags."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.similar import Similar, find_similar
from bayesmooth.errors import InputError

if TYPE_CHECKING:
    from bayesmooth.audit.table import Audit

Array = NDArray[Any]
LEAST_TOLD = 0.0005  # of the labels: less would be told as 0.0 %
MATRIX_CLASSES = 500  # up to which audit.json holds the matrices of pairs of classes
MOST_TICKS = 20  # classes that are named in a figure


class Classes:
    """One class per example."""

    def count_kinds(self, audit: "Audit") -> str:
        """How many different labels there are."""
        return f"{len(audit.class_names)} classes"

    def say(self, audit: "Audit", wrong: int) -> str:
        """The claim in one sentence."""
        total, least = len(audit), audit.summary.get("noise_rate_at_least") or 0.0
        if wrong == 0:
            return f"None of the {total:,} labels looks wrong."
        verb = "looks" if wrong == 1 else "look"
        if least >= LEAST_TOLD:
            share = f"{100 * least:.1f}\u00a0%"
            return f"At least {share} of the labels are wrong, and {wrong:,} of {total:,} {verb} wrong."
        share = f"{100 * wrong / total:.{1 if wrong / total >= 0.001 else 3}f}\u00a0%"
        return f"{wrong:,} of {total:,} labels {verb} wrong ({share})."

    def columns(self, audit: "Audit") -> dict[str, Array]:
        """What the table holds beside the labels."""
        return {}

    def count_pairs(self, audit: "Audit", other: Array) -> Array:
        """K×K counts: rows are given labels, columns other ones."""
        classes = len(audit.class_names)
        pairs = audit.given.astype(np.int64) * classes + other
        return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    def soft_labels(self, audit: "Audit") -> Array:
        """N×K: the probability of every class to be the true one."""
        if audit.probabilities is None:
            raise InputError(
                "soft_labels: this audit was made without probabilities of all classes"
            )
        return np.asarray(audit.probabilities, np.float64)

    def summarise(self, audit: "Audit") -> dict[str, Any]:
        """What audit.json says of every class and of pairs of them; no matrices that make a file of megabytes."""
        names, matrix = audit.class_names, audit.matrix
        given = np.bincount(audit.given, minlength=len(names))
        small, true = len(names) <= MATRIX_CLASSES, audit.true_matrix
        return {
            "class_names": list(names),
            "classes": [
                {
                    "name": name,
                    "examples": int(given[k]),
                    "contradicted": int(given[k] - matrix[k, k]),
                    "ambiguity": float(audit.ambiguity[audit.given == k].mean())
                    if given[k]
                    else None,
                }
                for k, name in enumerate(names)
            ],
            "given_by_suggested": matrix.tolist() if small else None,
            "given_by_true": true.tolist() if small and true is not None else None,
        }

    def find_similar(self, audit: "Audit", rows: Tensor, worst: Array) -> Similar:
        """The nearest examples that have the given and the suggested label."""
        return find_similar(rows, audit.given, audit.suggested, worst)

    def plot(self, audit: "Audit", axes: Any) -> None:
        """The labels that get confused."""
        names = audit.class_names
        axes.imshow(audit.matrix * (1 - np.eye(len(names), dtype=np.int64)), cmap="Oranges")
        axes.set(xlabel="looks like", ylabel="label")
        if len(names) <= MOST_TICKS:
            axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
            axes.set_yticks(range(len(names)), names, fontsize=8)


CLASSES = Classes()
