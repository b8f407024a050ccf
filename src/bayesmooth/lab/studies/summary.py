"""The tables of the README and the docs, and their sum, from the files of a directory of results."""

import json
import sys
from pathlib import Path
from statistics import mean

from bayesmooth.lab.studies import STUDIES, table
from bayesmooth.lab.studies.figures.comparing import BASELINES, chosen, levels
from bayesmooth.lab.studies.style import data_name
from bayesmooth.lab.studies.table import Table, column, spread, where
from bayesmooth.lab.studies.verdict import Values

COMPARED = ("data-dependent", "cifar10-noisy", "cifar100-noisy", "natural-noise")


def accuracies(out: Path) -> str:
    """IVON beside SGD, LS and SAM, these two at their best on test (as in the paper) and as validation chose."""
    head = ["data", "noise", "SGD", "IVON, averaged", "IVON, mean"]
    for method, (strength, _) in BASELINES.items():
        head += [f"{method}, best {strength}", f"{method}, {strength} by validation"]
    rows = []
    for name in COMPARED:
        if (out / f"{name}.csv").exists():
            rows += _accuracy_rows(table.read(out / f"{name}.csv"))
    return markdown(head, rows)


def _accuracy_rows(rows: Table) -> list[list[str]]:
    made = []
    for noise in levels(rows):
        ours = where(rows, noise=noise, method="IVON")
        values: list[Values] = [
            column(where(rows, noise=noise, method="LS", strength=0.0)),
            column(ours),
            column(ours, "at_mean"),
        ]
        for method in BASELINES:
            values += [chosen(rows, noise, method, by) for by in ("accuracy", "validation")]
        made.append([data_name(rows), noise, *_cells(values)])
    return made


def _cells(row: list[Values]) -> list[str]:
    """In words, the highest mean in bold."""
    top = max((mean(values) for values in row if values), default=0.0)
    return [_cell(values, bold=bool(values) and mean(values) == top) for values in row]


def _cell(values: Values, bold: bool) -> str:
    text = f"{100 * mean(values):.1f} ± {100 * spread(values):.1f}" if values else "–"
    return f"**{text}**" if bold else text


def ranges(out: Path) -> str:
    """How IVON stands, from the least to the most over all kinds of noise."""
    gains, leads, ours, plain = [], [], [], []
    for name in COMPARED:
        rows = table.read(out / f"{name}.csv") if (out / f"{name}.csv").exists() else []
        for noise in levels(rows):
            ivon = where(rows, noise=noise, method="IVON")
            sgd = where(rows, noise=noise, method="LS", strength=0.0)
            own = mean(column(ivon))
            gains.append(own - mean(column(sgd)))
            leads += [mean(chosen(rows, noise, method)) - own for method in BASELINES]
            ours += [mean(column(ivon, "memorised"))]
            plain += [mean(column(sgd, "memorised"))]
    return (
        f"Over all rows, IVON is {_span(gains, '.1f')} points above an SGD that learns {_span(plain, '.0f')} % of the "
        f"wrong labels by heart; IVON learns {_span(ours, '.0f')} %. LS and SAM, tuned on the test set for each noise, "
        f"are {_span(leads, '+.1f')} points ahead of it."
    )


def _span(shares: list[float], form: str) -> str:
    low, high = (f"{100 * share:{form}}".replace("-", "−") for share in (min(shares), max(shares)))
    return f"{low} to {high}"


def verdicts(out: Path) -> str:
    """A line a claim, in the order of the studies."""
    rows = []
    for name in STUDIES:
        if (out / f"{name}.json").exists():
            content = json.loads((out / f"{name}.json").read_text())
            rows += [
                [name, claim["paper"], f"**{claim['verdict']}**"] for claim in content["claims"]
            ]
    return markdown(["study", "the paper says", "verdict"], rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def fill(page: Path, out: Path) -> None:
    """Put each part between its mark, as `<!-- accuracies -->`, and `<!-- end -->`."""
    text = page.read_text()
    for name, make in (("accuracies", accuracies), ("ranges", ranges), ("verdicts", verdicts)):
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        if mark:
            _, end, after = rest.partition("<!-- end -->")
            text = f"{before}{mark}{make(out)}\n{end}{after}"
    page.write_text(text)


if __name__ == "__main__":  # summary results/laptop README.md docs/reproduce.md
    for page in sys.argv[2:]:
        fill(Path(page), Path(sys.argv[1]))
