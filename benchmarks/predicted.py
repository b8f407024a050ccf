"""What another model, which never saw the labels, adds to the audit: errors found alone, by it alone, and together.

The other model is a logistic regression on 100 or 400 clean labels of other examples. Errors are those of the real
data, or made by a rule that can be learned: in every second class the half on one side of a plane has the next label.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesmooth import audit, audit_probabilities
from bayesmooth.data import Labels, Source
from benchmarks.harness import markdown, real_data

REAL = ["hausa_distant", "yoruba_distant", "labelme_one", "youtube_weak", "news_annotators"]
REAL += ["cifar10n", "med_treat", "hs_brexit"]
RULED = ["cifar10n", "news_annotators", "cifar10h", "labelme_one"]
TAUGHT = (100, 400)  # clean labels that the other model learned from
EXAMPLES, SEEDS = 2_500, 2
Array = np.ndarray[Any, Any]


def read(path: Path, ruled: bool, seed: int, count: int) -> tuple[Array, Array, Array]:
    """Rows, true classes and given labels of some examples."""
    stored, generator = np.load(path), np.random.default_rng(seed)
    key = "labels" if "labels" in stored.files else "worse"
    some = generator.permutation(len(stored["embeddings"]))[: count + max(TAUGHT)]
    rows = stored["embeddings"][some].astype(np.float32)
    clean, given = (stored[name][some].astype(np.int64) for name in ("clean_labels", key))
    if ruled:
        given = clean.copy()
        for k in range(0, clean.max(), 2):
            mine = np.flatnonzero(clean == k)
            side = rows[mine] @ generator.normal(size=rows.shape[1])
            given[mine[side > np.median(side)]] = k + 1
    return rows, clean, given


def compare(rows: Array, clean: Array, given: Array, taught: int) -> list[float]:
    """Accuracy of the other model; average precision of the audit, of the other model, and of both together."""
    classes = int(max(clean.max(), given.max())) + 1
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    model.fit(rows[:taught], clean[:taught])
    rows, clean, given = (part[max(TAUGHT) :] for part in (rows, clean, given))
    shares = np.full((len(rows), classes), 1e-3)
    shares[:, model.classes_] += model.predict_proba(rows)
    shares /= shares.sum(1, keepdims=True)
    names, wrong = tuple(map(str, range(classes))), torch.from_numpy(given != clean)
    source = Source(torch.from_numpy(rows), Labels(torch.from_numpy(given), names))
    how: dict[str, Any] = {"class_names": names, "quiet": True}
    audits = (audit(source, **how), audit_probabilities(shares, given, **how), audit(source, predicted=shares, **how))
    found = [float(average_precision_score(wrong[[int(i) for i in one.ids]], one.disagreement)) for one in audits]
    return [float((shares.argmax(1) == clean).mean()), *found]


def main(quick: bool = False) -> None:
    """One line per data set, kind of errors and other model."""
    if not (folder := real_data()):
        print("no data: BAYESMOOTH_AUDIT_DATA names the folder of the data sets")
        return
    head = ["data", "errors", "clean labels", "its accuracy", "audit", "other model", "together"]
    lines = [head]
    cases = [(name, False) for name in REAL] + [(name, True) for name in RULED]
    for name, ruled in cases[:1] if quick else cases:
        for taught in TAUGHT:
            seeds = range(1 if quick else SEEDS)
            drawn = [read(folder / f"{name}.npz", ruled, seed, EXAMPLES) for seed in seeds]
            figures = zip(*(compare(*one, taught) for one in drawn), strict=True)
            cells = [f"{fmean(values):.3f}".removeprefix("0") for values in figures]
            lines.append([name, "by a rule" if ruled else "real", str(taught), *cells])
            print(" ".join(lines[-1]), flush=True)
    print(markdown(lines))
