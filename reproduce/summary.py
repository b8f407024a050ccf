"""The tables of the docs, from the results of all scales.

python -m reproduce.summary results docs/reproduce.md
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from reproduce import STUDIES
from reproduce.figures.comparing import BASELINES, pair_with_ivon
from reproduce.rows import Table, find_best, list_noises, read_table, select
from reproduce.verdict import Verdict, count_verdicts

COMPARED = ("data-dependent", "cifar10-noisy", "cifar100-noisy", "natural-noise")


def format_accuracies(out: Path) -> str:
    """The tables of all comparisons as one, the highest mean of a row in bold."""
    studies = [study for name in COMPARED if (study := _read(out, name))]
    if not studies:
        return "Nothing is measured yet."
    head, *_ = studies[0]["table"]
    rows = [embolden(row) for study in studies for row in study["table"][1:]]
    return format_markdown([head, *rows]) + "".join(map(format_missing, studies))


def format_strategies(out: Path) -> str:
    """The losses and optimizers, least regret first."""
    study = _read(out, "strategies")
    if len(study.get("table", [])) < 2:
        return "Nothing is measured yet."
    return format_markdown(study["table"]) + format_missing(study)


def format_missing(study: dict[str, Any]) -> str:
    """How many runs are missing, in a line of its own; empty if none is.

    >>> format_missing({"study": "strategies", "runs": 40, "missing": 10})
    '\\n\\n`strategies` is not complete: 10 of 50 runs are missing, so nothing is judged.'
    """
    if not (missing := study["missing"]):
        return ""
    whole = study["runs"] + missing
    return f"\n\n`{study['study']}` is not complete: {missing} of {whole} runs are missing, so nothing is judged."


def format_ranges(out: Path) -> str:
    """How IVON stands, from the least to the most over all kinds of noise."""
    tables = [read_table(out / f"{name}.csv") for name in COMPARED]
    noises = [(table, noise) for table in tables for noise in list_noises(table)]
    if not noises:
        return "Nothing is measured yet."
    gains = {
        method: [
            mean(ours) - mean(others)
            for table in tables
            for ours, others in pair_with_ivon(table, method)
        ]
        for method in BASELINES
    }
    smoothed = [select(table, noise=noise, method="LS") for table, noise in noises]
    none = sum(find_best(rows)[0] == 0 for rows in smoothed)
    plain = _memorised([select(rows, strength=0) for rows in smoothed])
    ours = _memorised([select(table, noise=noise, method="IVON") for table, noise in noises])
    return (
        f"Over {len(noises)} kinds of noise, IVON with one setting is {_span(gains['LS'], '+.1f')} points above label "
        f"smoothing at its best α on the test set (in {none} of them that is 0, no smoothing at all), and "
        f"{_span(gains['SAM'], '+.1f')} above SAM at its best ρ. "
        f"SGD memorises {_span(plain, '.0f')} % of the wrong labels, IVON {_span(ours, '.0f')} %."
    )


def _memorised(parts: list[Table]) -> list[float]:
    return [rows["memorised"].mean() for rows in parts if rows["memorised"].count()]


def _span(shares: list[float], form: str) -> str:
    low, high = (f"{100 * share:{form}}".replace("-", "−") for share in (min(shares), max(shares)))
    return low if low == high else f"{low} to {high}"


MARKS = {"reproduced": "**reproduced**"}


def format_verdicts(*outs: Path) -> str:
    """How many claims have which verdict at the scale where they do best; one line per claim, one column per scale."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name in STUDIES:
        for out in outs:
            for claim in _read(out, name).get("claims", []):
                found.setdefault((name, claim["paper"]), {})[out.name] = claim["verdict"]
    best = [min(verdicts.values(), key=get_args(Verdict).index) for verdicts in found.values()]
    head = ["study", "the paper says", *(out.name for out in outs)]
    rows = [
        [*claim, *(MARKS.get(v := verdicts.get(out.name, "–"), v) for out in outs)]
        for claim, verdicts in found.items()
    ]
    counts = count_verdicts([{"verdict": verdict} for verdict in best])
    return f"{counts}.\n\n{format_markdown([head, *rows])}"


def _read(out: Path, name: str) -> dict[str, Any]:
    path = out / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def embolden(row: list[str]) -> list[str]:
    """The row with its highest mean in bold.

    >>> embolden(["CIFAR-10", "κ = 0.1", "35.2 ± 0.9", "42.1 ± 1.0"])
    ['CIFAR-10', 'κ = 0.1', '35.2 ± 0.9', '**42.1 ± 1.0**']
    """
    means = [
        float(found[1]) if (found := re.match(r"([\d.]+)( ±|$)", cell)) else -1.0 for cell in row
    ]
    return [f"**{cell}**" if m == max(means) else cell for cell, m in zip(row, means, strict=True)]


def format_markdown(rows: list[list[str]]) -> str:
    """A table in Markdown; the first row is its head.

    >>> print(format_markdown([["a", "b"], ["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    )


PARTS: dict[str, Callable[..., str]] = {
    "accuracies": format_accuracies,
    "ranges": format_ranges,
    "verdicts": format_verdicts,
    "strategies": format_strategies,
}


def fill_page(page: Path, results: Path) -> None:
    """Put each part between `<!-- accuracies: laptop -->`, its name and scales, and `<!-- end -->`."""

    def make(found: re.Match[str]) -> str:
        mark, part, scales, end = found.groups()
        return f"{mark}{PARTS[part](*(results / scale for scale in scales.split()))}\n{end}"

    marks = rf"(<!-- ({'|'.join(PARTS)}): ([\w ]+) -->\n).*?(<!-- end -->)"
    page.write_text(re.sub(marks, make, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    for page in sys.argv[2:]:
        fill_page(Path(page), Path(sys.argv[1]))
