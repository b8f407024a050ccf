"""cleanlab's functions on our audit: the same arguments, shapes and types, other scores.

Change `from cleanlab.filter import find_label_issues` to `from bayesmooth.compat.cleanlab import find_label_issues`;
docs/from-cleanlab.md shows both, and what differs.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit import Audit, audit, audit_probabilities
from bayesmooth.errors import InputError, require

Array = NDArray[Any]


def find_label_issues(labels: Any, pred_probs: Any, *, return_indices_ranked_by: str | None = None) -> Array:
    """Which labels look wrong (N,); with `return_indices_ranked_by` their positions, the worst first.

    Whatever is named there, positions are ranked by the audit's disagreement.

    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    >>> find_label_issues([0, 1, 1, 1], p)
    array([False,  True, False, False])
    """
    made = _audit(labels, pred_probs)
    if return_indices_ranked_by is None:
        return made.contradicted
    return made.order[made.contradicted[made.order]]


def get_label_quality_scores(labels: Any, pred_probs: Any) -> Array:
    """How good each label looks (N,), 0 … 1, lower is worse: ½ − ½ disagreement."""
    return np.asarray((1 - _audit(labels, pred_probs).disagreement.astype(np.float64)) / 2)


def _audit(labels: Any, pred_probs: Any) -> Audit:
    """The audit of class numbers by the probabilities of all classes."""
    made = audit_probabilities(np.asarray(pred_probs), np.asarray(labels), quiet=True)
    if len(made) < len(labels):
        raise InputError(f"{len(labels) - len(made)} labels are missing; leave these rows out")
    return made


class Datalab:
    """The audit in the shape of cleanlab's Datalab: `find_issues`, `get_issues`, `get_issue_summary`.

    `data` is a mapping of columns, a data frame or a data set of Hugging Face, `label_name` its column of labels.
    `audit` is the whole audit once issues are found.
    """

    def __init__(self, data: Any, *, label_name: str, verbosity: int = 1) -> None:
        self.label_name, self.verbosity, self.labels = label_name, verbosity, np.asarray(data[label_name])
        self.class_names: list[Any] = sorted(set(self.labels.tolist()))
        self.audit: Audit | None = None
        self._tables: dict[str, Any] = {}

    def find_issues(self, *, pred_probs: Any = None, features: Any = None) -> None:
        """Judge the labels by features, or else by predictions."""
        names, quiet = [str(name) for name in self.class_names], self.verbosity == 0
        numbers = np.array([self.class_names.index(label) for label in self.labels.tolist()])
        if features is not None:
            self.audit = audit(np.asarray(features), numbers, class_names=names, quiet=quiet)
        elif pred_probs is not None:
            self.audit = audit_probabilities(np.asarray(pred_probs), numbers, class_names=names, quiet=quiet)
        else:
            raise InputError("find_issues: give features or pred_probs; files and folders go to bayesmooth.audit")
        self._tables = self._make_tables(self.audit)
        if self.verbosity:
            print(f"Audit complete. {self.get_issue_summary()['num_issues'].sum()} issues found in the dataset.")

    def _make_tables(self, made: Audit) -> dict[str, Any]:
        """One frame per kind of issue and one row per example; what the audit left out has no score."""
        frame, found = require("pandas", "data").DataFrame, made.findings
        at = np.array([int(name.partition("-")[0]) for name in made.ids])
        columns: dict[str, tuple[Array, Array]]
        columns = {"label": (made.contradicted, (1 - made.disagreement.astype(float)) / 2)}
        if found.outlier_score is not None and found.duplicate_of is not None:
            columns["outlier"] = (found.outlier_score > 1, 1 / (1 + found.outlier_score))
            columns["near_duplicate"] = (found.duplicate_of >= 0, 1.0 * (found.duplicate_of < 0))
        tables = {}
        for name, values in columns.items():
            table = frame({f"is_{name}_issue": np.zeros(len(self.labels), bool), f"{name}_score": np.nan})
            for column, some in zip(table, values, strict=True):
                table.loc[at, column] = some
            tables[name] = table
        classes, predicted = {str(name): name for name in self.class_names}, self.labels.copy()
        predicted[at] = [classes[made.class_names[k]] for k in made.suggested]
        tables["label"] = tables["label"].assign(given_label=self.labels, predicted_label=predicted)
        return tables

    def get_issues(self, issue_name: str | None = None) -> Any:
        """One row per example: of one kind of issue all that is known, else whether there is one and its score."""
        if not self._tables:
            raise InputError("no issues yet: call find_issues first")
        if issue_name is None:
            return require("pandas", "data").concat([table.iloc[:, :2] for table in self._tables.values()], axis=1)
        if issue_name not in self._tables:
            raise InputError(f"{issue_name!r}: must be one of {', '.join(self._tables)}")
        return self._tables[issue_name].copy()

    def get_issue_summary(self) -> Any:
        """One row per kind of issue: its mean score, and how many examples have it."""
        rows = [(name, table.iloc[:, 1].mean(), int(table.iloc[:, 0].sum())) for name, table in self._tables.items()]
        return require("pandas", "data").DataFrame(rows, columns=["issue_type", "score", "num_issues"])
