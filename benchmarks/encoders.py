"""Which encoder? The one under which the left-out likelihood of the given labels is largest, against the best one.

    BAYESMOOTH_DATA=… python -m benchmarks encoders

The first 2,000 pictures of CIFAR-10N (aggre, random1, and flipped: 40 % of the true labels at random) are encoded by
their plain features and by EfficientNet-Lite0 at several sides. The likelihood is measured on half of the rows, as
`audit` measures it on a sample with a list of encoders; average precision, on all rows, says how well the audit finds
the wrong labels. Rows go to results/encoders.jsonl.
"""

import os
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from sklearn.metrics import average_precision_score

from bayesmooth.audit import audit
from bayesmooth.audit.predictors import measure_likelihood
from bayesmooth.data import corrupt, load
from bayesmooth.data.encoders import embed_pictures
from benchmarks.harness import markdown, results_path, run_missing

ROWS, SAMPLE = 2_000, 1_000
ENCODERS = ("plain", "efficientnet@64", "efficientnet@96", "efficientnet@128", "efficientnet@160")
CASES = ("aggre", "random1", "flipped")


def main(quick: bool = False) -> None:
    """Measure every case, and print which encoder the likelihood chose and which was best."""
    if "BAYESMOOTH_DATA" not in os.environ:
        print("BAYESMOOTH_DATA: not set; it has the pictures")
        return
    cases, encoders = CASES[: 1 if quick else None], ENCODERS[: 2 if quick else None]
    jobs = {(c, e): partial(measure, c, e) for c in cases for e in encoders}
    print(table(run_missing(results_path("encoders"), ("case", "encoder"), jobs, "encoders")))


def measure(name: str, encoder: str) -> list[dict[str, Any]]:
    """The likelihood under an encoder on a sample, and what the audit finds with it."""
    if name == "flipped":
        clean = load("cifar10", "train").subset(torch.arange(ROWS))
        pictures, _ = corrupt(clean, "symmetric", rate=0.4)
    else:
        pictures = load("cifar10n", "train", labels=name).subset(torch.arange(ROWS))
    rows = embed_pictures(pictures.inputs, encoder).rows
    source = replace(pictures, inputs=rows, mean=None, std=None)
    likelihood = measure_likelihood(source.subset(torch.arange(SAMPLE)))
    made = audit(source, quiet=True)
    assert source.clean is not None
    wrong = source.labels.numbers.ne(source.clean).numpy()
    score = torch.empty(len(source), dtype=torch.float64)
    score[torch.from_numpy(made.order.copy())] = -torch.arange(len(source), dtype=torch.float64)
    precision = average_precision_score(wrong, score.numpy())
    row = {"case": name, "encoder": encoder, "likelihood": round(likelihood, 4)}
    return [row | {"average_precision": round(float(precision), 4)}]


def table(found: list[dict[str, Any]]) -> str:
    """One line per case: what was chosen, what is best, and the precision of both."""
    lines = [["case", "chosen", "its precision", "best", "its precision"]]
    for name in dict.fromkeys(row["case"] for row in found):
        rows = [row for row in found if row["case"] == name]
        chosen = max(rows, key=lambda row: row["likelihood"])
        best = max(rows, key=lambda row: row["average_precision"])
        cells = [cell for row in (chosen, best) for cell in (row["encoder"], row["average_precision"])]
        lines.append([str(name), *map(str, cells)])
    return markdown(lines)
