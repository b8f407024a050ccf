"""The worth of a review of a few labels: the error rate that it tells, and the ranking that it teaches.

    BAYESMOOTH_AUDIT_DATA=… python -m benchmarks review

For each data set with known errors, somebody who knows the truth reviews a queue of 50, 100 and 200 labels. The numbers
that the package learned from data sets are learned here from all other files. Rows of `results/review.jsonl`: the
coverage of the true share by the interval in 1,000 reviews, and its width beside that of as many labels drawn plainly;
average precision on the labels that were not reviewed, as ranked before and after `REVIEWS` reviews; errors found from
the top by each ranking (cleanlab's is of our probabilities), one of them learned anew after every tenth decision; and
the share of wrong labels by their told chance.
"""

import warnings
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.stats import binomtest, hypergeom
from sklearn.metrics import average_precision_score

from bayesmooth.audit import audit
from bayesmooth.audit.review import Review, Traits, design, predict_chance
from benchmarks.audit import errors, read_cases
from benchmarks.competitors import confident_learning
from benchmarks.harness import Row, real_data, results_path, run_missing

BUDGETS = (50, 100, 200)
COVERED, ELSEWHERE, REVIEWS = 1000, 200, 10  # simulated reviews: of the interval, in other cases, of learning
FEW = (0.01, 0.02, 0.05)  # shares of wrong labels, where the others are made right
TEN = 10  # decisions between two looks
BINS = 5  # of the chance, each as wide


class Case(NamedTuple):
    """An audited data set: its file, the traits that a review sees, the wrong labels, and rankings of them."""

    name: str
    file: str
    traits: Traits
    wrong: Any
    scores: dict[str, Any]


@cache
def read_sets() -> list[Case]:
    """All data sets at hand, each audited."""
    sets = []
    for path in real_data():
        for _, examples in read_cases(path):
            ours = audit(examples, quiet=True)
            assert ours.review is not None
            lent = audit(examples, leave_out=True, quiet=True).probabilities
            scores = {"today": ours.disagreement, "cleanlab": confident_learning(examples, lent).scores.numpy()}
            sets.append(Case(examples.name, path.stem, ours.review.traits, errors(examples).numpy(), scores))
    return sets


def learn_prior(sets: list[Case]) -> dict[str, Any]:
    """INTERCEPT, SLOPE and LEARNED of review.py from these sets, of which each counts alike."""
    score, wrong = (np.concatenate(part) for part in zip(*((one.traits.score, one.wrong) for one in sets), strict=True))
    numbers = np.concatenate([one.traits.numbers for one in sets])
    weight = np.concatenate([np.full(len(one.wrong), 1 / len(one.wrong)) for one in sets])
    columns = np.stack([np.ones(len(score)), score], 1)
    intercept, slope = _regress(columns, wrong, weight, np.zeros(len(score)))
    learned = _regress(numbers, wrong, weight, intercept + slope * score)
    return {"INTERCEPT": intercept, "SLOPE": slope, "LEARNED": tuple(learned)}


def _regress(columns: Any, wrong: Any, weight: Any, offset: Any) -> Any:
    """Effects of the columns on the log-odds, by Newton's method."""
    effects = np.zeros(columns.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-offset - columns @ effects))
        curvature = (columns * (weight * p * (1 - p))[:, None]).T @ columns
        effects += np.linalg.solve(curvature, columns.T @ (weight * (wrong - p)))
    return effects


def judge(review: Review, wrong: Any, looked: int | None = None) -> Review:
    """The review after somebody who knows decided on its queue, or on the first of it."""
    return review.decide({int(i): bool(wrong[i]) for i in review.queue[:looked]})


def measure_rate(traits: Traits, wrong: Any, budget: int, times: int) -> Row:
    """The interval's coverage of the true share, and its width beside that of a plain sample."""
    reviews = [judge(design(traits, budget, seed), wrong) for seed in range(times)]
    rates, true = [each.rate() for each in reviews], float(wrong.mean())
    return {
        "covered": _cover(rates, true),
        "width": float(np.mean([rate.high - rate.low for rate in rates if rate])),
        "plain_width": plain_width(len(wrong), int(wrong.sum()), budget),
    }


def measure_elsewhere(traits: Traits, wrong: Any, budget: int, times: int) -> Row:
    """Its coverage where few labels are wrong, in the largest class, and at all of many looks."""
    queues, true, rare = [design(traits, budget, seed) for seed in range(times)], float(wrong.mean()), []
    for share in FEW:
        few = wrong & (np.random.default_rng(0).random(len(wrong)) < share / max(true, share))
        rare.append(_cover([judge(each, few).rate() for each in queues], float(few.mean())))
    largest = traits.given == np.bincount(traits.given).argmax()
    classes = [judge(each, wrong).rate(largest) for each in queues]
    looks = [[judge(each, wrong, k).rate() for k in range(2 * TEN, budget + 1, TEN)] for each in queues[: times // 2]]
    return {
        "covered_rare": min(rare),
        "covered_class": _cover(classes, float(wrong[largest].mean())),
        "covered_always": float(np.mean([_cover(each, true) == 1 for each in looks])),
    }


def _cover(rates: list[Any], true: float) -> float:
    return float(np.mean([rate.low <= true <= rate.high for rate in rates if rate] or [1.0]))


def plain_width(count: int, wrong: int, budget: int) -> float:
    """The mean width of Wilson's interval of a plain random sample."""
    hits = range(budget + 1)
    widths = [np.ptp(binomtest(k, budget).proportion_ci(method="wilson")) for k in hits]
    return float(hypergeom(count, wrong, budget).pmf(hits) @ widths)


def measure_learning(case: Case, budget: int, times: int) -> Row:
    """The errors that rankings find, before the review and taught by it, among the labels that were not reviewed."""
    wrong, told, true, figures = case.wrong, [], [], []
    for seed in range(times):
        review = judge(design(case.traits, budget, seed), wrong)
        rest = np.setdiff1d(np.arange(len(wrong)), review.queue)
        ap = [average_precision_score(wrong[rest], score[rest]) for score in (case.scores["today"], review.chance)]
        figures.append([*ap, float(wrong[review.queue].sum())])
        told.append(review.chance[rest])
        true.append(wrong[rest])
    row: Row = dict(zip(("ap_before", "ap_taught", "in_queue"), np.mean(figures, 0).tolist(), strict=True))
    for name, score in case.scores.items():
        row[f"found_{name}"] = float(wrong[np.argsort(-score, kind="stable")[:budget]].sum())
    row["found_taught"] = float(wrong[look_from_top(case, budget)].sum())
    row["reliability"] = _reliability(np.concatenate(told), np.concatenate(true))
    return {**row, "reliability_before": _reliability(predict_chance(case.traits), wrong)}


def look_from_top(case: Case, budget: int) -> list[int]:
    """The labels that are looked at from the top, where the rest is ranked anew after every tenth decision."""
    review, seen = design(case.traits), dict[int, bool]()
    while len(seen) < budget:
        chance = review.decide(seen).chance.copy()
        chance[list(seen)] = -1
        seen |= {int(i): bool(case.wrong[i]) for i in np.argsort(-chance, kind="stable")[:TEN]}
    return list(seen)


def _reliability(chance: Any, wrong: Any) -> list[list[float]]:
    """Per bin of the chance: the number of labels, their mean chance, and the share that is wrong."""
    table = pd.DataFrame({"bin": np.minimum(chance * BINS, BINS - 1).astype(int), "chance": chance, "wrong": wrong})
    means = table.groupby("bin").agg(count=("wrong", "size"), chance=("chance", "mean"), wrong=("wrong", "mean"))
    return [*means.reindex(range(BINS), fill_value=0).to_numpy().tolist()]


def measure(case: Case, quick: bool) -> Iterator[Row]:
    """One row per budget."""
    first = np.argsort(-case.scores["today"], kind="stable")[: int(case.wrong.sum())]
    about = {"data": case.name, "examples": len(case.wrong), "wrong": float(case.wrong.mean())}
    about["missed_at_errors"] = 1 - float(case.wrong[first].mean())
    others = [one for one in read_sets() if one.file != case.file]
    with patch.multiple("bayesmooth.audit.review", **learn_prior(others)):
        for budget in BUDGETS:
            row: Row = {**about, "budget": budget}
            row |= measure_rate(case.traits, case.wrong, budget, 20 if quick else COVERED)
            row |= measure_learning(case, budget, 2 if quick else REVIEWS)
            if budget == 100:
                row |= measure_elsewhere(case.traits, case.wrong, budget, 4 if quick else ELSEWHERE)
            yield row


def main(quick: bool = False) -> None:
    """Measure the missing rows and print the means."""
    warnings.simplefilter("ignore")  # of the peers, about iterations and small classes
    jobs = {(case.name,): partial(measure, case, quick) for case in read_sets()}
    rows = run_missing(results_path("review"), ("data",), jobs, "data sets")
    if not rows:
        print("no data: BAYESMOOTH_AUDIT_DATA names a folder of data sets with known errors")
        return
    means = pd.DataFrame(rows).groupby("budget").mean(numeric_only=True)
    print(means.drop(columns=["examples", "wrong"]).T.round(3).to_string())
