"""Rows of numbers with partly wrong labels: the linear model of `bayesmooth train` beside a tuned logistic regression.

    BAYESMOOTH_AUDIT_DATA=… python -m benchmarks linear

The cells of the test pool of `training_tasks.py` that are rows of numbers, each data set and kind of labels once. Both
learn all given labels, and choose the strength of their prior by five folds; ours also chooses whether to leave out
the labels that the audit contradicts. One line per cell, seed and method goes to results/linear.jsonl.
"""

import warnings
from collections.abc import Iterator
from functools import partial
from itertools import product

import pandas as pd
import torch
from sklearn.linear_model import LogisticRegressionCV
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesmooth.fitting.linear import fit_linear
from benchmarks.harness import Row, results_path, run_missing
from benchmarks.training_tasks import POOLS, problem
from docs.make_tables import compare_linear, format_table

NETWORKS = ("head", "mlp", "mlp+bn", "mlp+ln")  # that see rows of numbers, if their data are rows
ROWS = [cell for cell in POOLS["test"] if cell.network in NETWORKS and not cell.data.startswith("fashion")]
CELLS = {f"{cell.data} · {cell.labels}": cell for cell in ROWS}
METHODS = ("bayesmooth", "logistic regression")


def measure(cell: str, seed: int, method: str) -> Iterator[Row]:
    """One method on one cell."""
    data = problem(CELLS[cell], seed)
    labels, mean, std = data.labels, data.inputs.mean(0), data.inputs.std(0) + 1e-6
    rows, new = ((inputs - mean) / std for inputs in (data.inputs, data.test_inputs))
    classes, kept = int(max(labels.max(), data.test_labels.max())) + 1, len(labels)
    if method == "bayesmooth":
        fit = fit_linear(rows, labels, torch.arange(len(rows)) >= data.held.start, classes)
        with torch.no_grad():
            logits: Tensor = fit.model(new)
        kept = int(fit.kept.sum())
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 300 iterations are enough; names will change
            peer = LogisticRegressionCV(Cs=11, cv=5, max_iter=300).fit(rows.numpy(), labels.numpy())
        log_probs = torch.from_numpy(peer.predict_log_proba(new.numpy())).float()
        logits = log_probs.new_full((len(new), classes), -30.0)
        logits[:, peer.classes_.tolist()] = log_probs
    yield {
        "cell": cell,
        "seed": seed,
        "method": method,
        "accuracy": 100 * float((logits.argmax(1) == data.test_labels).double().mean()),
        "nll": float(cross_entropy(logits, data.test_labels)),
        "left out": 1 - kept / len(labels),
    }


def main(quick: bool = False) -> None:
    """Run the missing jobs, and print the table."""
    cells, seeds = (list(CELLS)[:1], range(1)) if quick else (list(CELLS), range(2))
    jobs = {key: partial(measure, *key) for key in product(cells, seeds, METHODS)}
    rows = run_missing(results_path("linear"), ("cell", "seed", "method"), jobs, "linear models")
    print(format_table(compare_linear(pd.DataFrame(rows))))
