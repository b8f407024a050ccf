"""What a review of a few labels is worth: the error rate that it tells, and the ranking that it teaches.

    BAYESMOOTH_AUDIT_DATA=… python -m benchmarks review

For each data set with known errors, somebody who knows the truth reviews 50, 100 and 200 labels of a drawn queue. Rows
of `results/review.jsonl`: how often the interval covers the true share in 1,000 reviews and how wide it is, beside that
of as many labels drawn plainly; average precision on the labels that were not reviewed, as ranked before and after
`REVIEWS` reviews; errors found from the top by each ranking (cleanlab's is of our probabilities), one of them learned
anew after every tenth decision; and how often labels of a told chance are wrong.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import hypergeom

from bayesmooth.audit import audit
from bayesmooth.audit.review import Review, design
from bayesmooth.data import Source
from bayesmooth.metrics import average_precision
from benchmarks.audit import errors, read_cases
from benchmarks.competitors import confident_learning
from benchmarks.harness import Row, markdown, real_data, results_path, run_missing

BUDGETS = (50, 100, 200)
COVERED, REVIEWS = 1000, 10  # simulated reviews: of the interval, and of what they teach
FEW = (0.01, 0.02, 0.05)  # shares of wrong labels, where the others are made right
BINS = np.linspace(0, 1, 6)
NORMAL_95 = 1.96


def judge(review: Review, wrong: Any) -> Review:
    """The review after somebody who knows decided on all of its queue."""
    return review.decide({int(i): bool(wrong[i]) for i in review.queue})


def measure_rate(review: Review, wrong: Any, budget: int, times: int) -> Row:
    """How often the interval covers the true share, and its width beside that of a plain sample."""
    made = [judge(design(review.traits, budget, seed), wrong) for seed in range(times)]
    rates = [each.rate() for each in made]
    true = float(wrong.mean())
    rare = []
    for share in FEW:
        kept = np.random.default_rng(0).random(len(wrong)) < share / max(true, share)
        found = [judge(each, wrong & kept).rate() for each in made[: times // 4]]
        rare.append(_cover(found, float((wrong & kept).mean())) or 1.0)
    given = review.traits.given
    largest = int(np.bincount(given).argmax())
    classes = [each.rate(given == largest) for each in made[: times // 4]]
    share = float(wrong[given == largest].mean())
    return {
        "covered": _cover(rates, true),
        "covered_rare": min(rare),
        "covered_class": _cover(classes, share),
        "width": float(np.mean([rate.high - rate.low for rate in rates if rate])),
        "plain_width": plain_width(len(wrong), int(wrong.sum()), budget),
        "bias": float(np.mean([rate.estimate for rate in rates if rate])) - true,
    }


def _cover(rates: list[Any], true: float) -> float | None:
    hits = [rate.low <= true <= rate.high for rate in rates if rate]
    return float(np.mean(hits)) if hits else None


def plain_width(count: int, wrong: int, budget: int) -> float:
    """The mean width of Wilson's interval of a plain random sample."""
    found = np.arange(budget + 1)
    share, z = found / budget, NORMAL_95**2 / budget
    widths = 2 * (share * (1 - share) * z + z**2 / 4) ** 0.5 / (1 + z)
    return float((hypergeom(count, wrong, budget).pmf(found) * widths).sum())


def measure_learning(review: Review, scores: dict[str, Any], wrong: Any, budget: int, times: int) -> Row:
    """What rankings find, before the review and taught by it, among the labels that were not reviewed."""
    before, rows = scores["today"], list[dict[str, float]]()
    told, true = list[Any](), list[Any]()
    for seed in range(times):
        made = judge(design(review.traits, budget, seed), wrong)
        rest = np.setdiff1d(np.arange(len(wrong)), made.queue)
        both = [torch.from_numpy(score[rest].copy()) for score in (before, made.chance)]
        ap = [average_precision(each, torch.from_numpy(wrong[rest])) for each in both]
        further = [wrong[rest[np.argsort(-each.numpy(), kind="stable")[:budget]]] for each in both]
        rows.append(
            {
                "ap_before": ap[0],
                "ap_taught": ap[1],
                "in_queue": float(wrong[made.queue].sum()),
                "next_before": float(further[0].sum()),
                "next_taught": float(further[1].sum()),
            }
        )
        told.append(made.chance[rest])
        true.append(wrong[rest])
    found = {
        f"found_{name}": float(wrong[np.argsort(-score, kind="stable")[:budget]].sum())
        for name, score in scores.items()
    }
    found["found_taught"] = float(wrong[look_from_top(review, budget, wrong)].sum())
    bins = _reliability(np.concatenate(told), np.concatenate(true))
    before_bins = _reliability(review.prior, wrong)
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {**means, **found, "reliability": bins, "reliability_before": before_bins}


def look_from_top(review: Review, budget: int, wrong: Any) -> list[int]:
    """The labels that are looked at from the top, where the rest is ranked anew after every tenth decision."""
    seen: dict[int, bool] = {}
    while len(seen) < budget:
        chance = review.decide(seen).chance.copy()
        chance[list(seen)] = -1
        seen |= {int(i): bool(wrong[i]) for i in np.argsort(-chance, kind="stable")[:10]}
    return list(seen)


def _reliability(chance: Any, wrong: Any) -> list[list[float]]:
    """Per bin of the chance: how many labels, their mean chance, and the share that is wrong."""
    at = np.clip(np.digitize(chance, BINS) - 1, 0, len(BINS) - 2)
    made = []
    for k in range(len(BINS) - 1):
        some = at == k
        parts = (chance[some].mean(), wrong[some].mean()) if some.any() else (0.0, 0.0)
        made.append([int(some.sum()), *(round(float(part), 4) for part in parts)])
    return made


def measure(examples: Source, quick: bool) -> Iterator[Row]:
    """One row per budget."""
    made = audit(examples, quiet=True)
    assert made.review is not None
    wrong = errors(examples).numpy()
    lent = audit(examples, leave_out=True, quiet=True).probabilities
    peer = confident_learning(examples, lent)
    scores = {"today": made.disagreement, "cleanlab": peer.scores.numpy()}
    count, few = int(wrong.sum()), 20 if quick else COVERED
    first = np.argsort(-made.disagreement, kind="stable")[:count]
    about = {"data": examples.name, "examples": len(examples), "wrong": float(wrong.mean())}
    about["missed_at_errors"] = 1 - float(wrong[first].mean())
    for budget in BUDGETS:
        rate = measure_rate(made.review, wrong, budget, few)
        learned = measure_learning(made.review, scores, wrong, budget, 2 if quick else REVIEWS)
        row = {**about, "budget": budget, **rate, **learned}
        yield {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}


def run(quick: bool) -> list[Row]:
    """All rows of the file, after measuring what it did not have."""
    folder = real_data()
    cases = [case for path in sorted(folder.glob("*.npz")) for case in read_cases(path)] if folder else []
    jobs: dict[tuple[Any, ...], Callable[[], Iterator[Row]]] = {
        (case.examples.name,): partial(measure, case.examples, quick) for case in cases
    }
    return run_missing(results_path("review"), ("data",), jobs, "data sets")


def table(rows: list[Row], budget: int) -> list[list[str]]:
    """One line per data set, and their mean."""
    keys = ("covered", "width", "plain_width", "ap_before", "ap_taught")
    found = ("found_cleanlab", "found_today", "found_taught", "in_queue")
    some = [row for row in rows if row["budget"] == budget]
    lines = [["data", *keys, *found]]
    means = {key: float(np.mean([row[key] for row in some])) for key in (*keys, *found)}
    for row in [*some, {"data": f"mean of {len(some)}", **means}]:
        shares = [f"{row[key]:.3f}".removeprefix("0") for key in keys]
        lines.append([row["data"], *shares, *(f"{row[key]:.0f}" for key in found)])
    return lines


def main(quick: bool = False) -> None:
    """Measure what is missing and print the tables."""
    warnings.simplefilter("ignore")  # of the peers, about iterations and small classes
    rows = run(quick)
    if not rows:
        print("no data: BAYESMOOTH_AUDIT_DATA names a folder of data sets with known errors")
    for budget in BUDGETS if rows else ():
        print(f"\n{budget} labels reviewed\n{markdown(table(rows, budget))}")
