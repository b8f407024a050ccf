"""Rows of numbers with partly wrong labels: the linear model of `bayesmooth train` beside a tuned logistic regression.

    BAYESMOOTH_AUDIT_DATA=… python -m benchmarks linear

The cells of the test pool of `training_tasks.py` that are rows of numbers, each data set and kind of labels once. Both
learn all given labels, and choose the strength of their prior by five folds; ours also chooses whether to leave out
what the audit contradicts. One line per cell, seed and method goes to results/linear.jsonl.
"""

import warnings
from collections.abc import Iterator
from functools import partial
from statistics import fmean

import torch
from sklearn.linear_model import LogisticRegressionCV
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesmooth.fitting.linear import fit_linear
from benchmarks.harness import Row, markdown, results_path, run_missing
from benchmarks.training_tasks import TEST, Cell, problem

NETWORKS = ("head", "mlp", "mlp+bn", "mlp+ln")  # that see rows of numbers, if their data are rows
CELLS = {(c.data, c.labels): c for c in TEST if c.network in NETWORKS and not c.data.startswith("fashion")}
METHODS = ("bayesmooth", "logistic regression")


def measure(cell: Cell, seed: int, method: str) -> Iterator[Row]:
    """One method on one cell."""
    data = problem(cell, seed)
    inputs, labels = torch.cat([data.inputs, data.held_inputs]), torch.cat([data.labels, data.held_labels])
    mean, std = inputs.mean(0), inputs.std(0) + 1e-6
    rows, new = (inputs - mean) / std, (data.test_inputs - mean) / std
    classes, kept = int(max(labels.max(), data.test_labels.max())) + 1, len(labels)
    if method == "bayesmooth":
        found = fit_linear(rows, labels, torch.arange(len(rows)) >= len(data.labels), classes)
        with torch.no_grad():
            logits: Tensor = found.model(new)
        kept = int(found.kept.sum())
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 300 iterations are enough; names will change
            peer = LogisticRegressionCV(Cs=11, cv=5, max_iter=300).fit(rows.numpy(), labels.numpy())
        known = torch.from_numpy(peer.predict_log_proba(new.numpy())).float()
        logits = known.new_full((len(new), classes), -30.0)
        logits[:, peer.classes_.tolist()] = known
    yield {
        "cell": f"{cell.data} · {cell.labels}",
        "seed": seed,
        "method": method,
        "accuracy": round(100 * float((logits.argmax(1) == data.test_labels).double().mean()), 2),
        "nll": round(float(cross_entropy(logits, data.test_labels)), 3),
        "left out": round(1 - kept / len(labels), 3),
    }


def main(quick: bool = False) -> None:
    """Run what is missing, and print the table."""
    torch.set_num_threads(1)
    cells = list(CELLS.values())[:1] if quick else list(CELLS.values())
    jobs = {
        (f"{cell.data} · {cell.labels}", seed, method): partial(measure, cell, seed, method)
        for cell in cells
        for seed in range(1 if quick else 2)
        for method in METHODS
    }
    path = results_path("linear")
    records = run_missing(path, ("cell", "seed", "method"), jobs, "linear models")
    lines = [["", *METHODS]]
    for cell in dict.fromkeys(r["cell"] for r in records):
        own = [[r for r in records if (r["cell"], r["method"]) == (cell, method)] for method in METHODS]
        lines.append(
            [cell, *(f"{fmean(r['accuracy'] for r in each):.1f} / {fmean(r['nll'] for r in each):.2f}" for each in own)]
        )
    print(f"\n{markdown(lines)}\n\nruns: {path}")
