"""What people see: figures with one colour per method, safe for the colour-blind, and pages of their claims.

The pages are all studies of a directory in HTML, and the paper figure by figure in Markdown.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bayesmooth.errors import require
from bayesmooth.files import write_atomically
from bayesmooth.progress import format_duration
from bayesmooth.train.compare import OKABE_ITO
from reproduce.study import TEXTS
from reproduce.table import EARLY, Table

COLUMN, PAGE = 3.35, 6.9  # inches

# A method has the same colour and mark in every figure.
COLOURS = {
    "IVON": OKABE_ITO["vermilion"],
    "LS": "#7F7F7F",
    "SAM": OKABE_ITO["blue"],
    "SGD": OKABE_ITO["black"],
    EARLY: OKABE_ITO["sky blue"],
    "OLS": OKABE_ITO["green"],
    "fixed Σ": OKABE_ITO["purple"],
    "learned Σ": OKABE_ITO["vermilion"],
}
LOOKS = {
    method: {"color": colour, "marker": mark, "label": method}
    for (method, colour), mark in zip(COLOURS.items(), "os^xPDvo", strict=True)
}

DATA_NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar10n": "CIFAR-10N",
    "clothing1m": "Clothing1M",
    "cifar10-10000": "CIFAR-10 features",
    "cifar100-10000": "CIFAR-100 features",
    "cifar10n-random1-10000": "CIFAR-10N features",
}


@contextmanager
def figure(
    out: Path, rows: int = 1, columns: int = 1, *, width: float = COLUMN, height: float = 2.3, **share: Any
) -> Iterator[Any]:
    """Axes (rows × columns) to draw on; written to `out`.png at the end."""
    matplotlib = require("matplotlib.figure", extra="train")
    with require("matplotlib", extra="train").rc_context(fname=Path(__file__).with_name("figures.mplstyle")):
        sheet = matplotlib.Figure(figsize=(width, height), layout="constrained")
        yield sheet.subplots(rows, columns, squeeze=False, **share)
        # Without the version of matplotlib in it, the same figure is the same file.
        save = partial(sheet.savefig, format="png", dpi=220, metadata={"Software": None})
        write_atomically(out.with_suffix(".png"), save)


def line(axis: Any, method: str, points: Sequence[tuple[float, Sequence[float]]], label: str = "") -> None:
    """Means over seeds, in per cent, their standard deviation as bars; two points are not joined to a line."""
    known = [(x, [100 * value for value in values]) for x, values in points if len(values)]
    places, means = [x for x, _ in known], [mean(values) for _, values in known]
    bars = [stdev(values) if len(values) > 1 else 0.0 for _, values in known]
    joined = "-" if len(known) > 2 else "none"
    style = LOOKS[method] | {"linestyle": joined, "label": label or method}
    axis.errorbar(places, means, bars if any(bars) else None, **style)


def level(axis: Any, method: str, values: Sequence[float]) -> None:
    """A method without a strength on the axis: a line across, its standard deviation as a band."""
    if values:
        centre, colour = 100 * mean(values), COLOURS[method]
        dashes = ":" if method == EARLY else "-"
        axis.axhline(centre, color=colour, linestyle=dashes, label=method)
        if len(values) > 1:
            half = 100 * stdev(values)
            axis.axhspan(centre - half, centre + half, color=colour, alpha=0.18, linewidth=0)


def legend_below(axes: Sequence[Any], groups: Iterable[Sequence[float]], bars: bool = True) -> None:
    """One legend for all panels, under them; its title says how many seeds a point has, and what its bars are."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    counts, title = sorted({len(group) for group in groups if len(group)}), "one seed"
    if counts and counts[-1] > 1:
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        title = f"mean of {many} seeds{' ± one standard deviation' * bars}"
    sheet = axes[0].figure
    columns = min(len(found), 2 if sheet.get_figwidth() < PAGE / 2 else 5)
    style = {"loc": "outside lower center", "title_fontsize": 6.5}
    sheet.legend(found.values(), found.keys(), ncols=columns, title=title, **style)


def name_data(table: Table) -> str:
    """The data set of a table, as people write it."""
    return ", ".join(DATA_NAMES.get(name, name) for name in table["data"].dropna().unique())


def picture(axis: Any, pixels: Any) -> None:
    """A grey image, dark on light, without a frame."""
    axis.imshow(pixels, cmap="gray_r")
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


# ---- pages ----

VERDICTS = {"reproduced": "#00734f", "direction only": "#8a5a00", "not reproduced": "#b3261e", "not run": "#5f5f5f"}
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>bayesmooth: results</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
img { max-width: 100%; height: auto; } section { margin: 3rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
td, th { text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid #ddd; }
.numbers { font-size: .875rem; } .numbers td { white-space: nowrap; } .numbers th { vertical-align: bottom; }
.verdict { font-weight: 600; white-space: nowrap; } .small { color: #555; font-size: .875rem; }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: 3px; }
</style>
"""
SIZES = ("full", "day", "overnight", "features", "laptop")  # the most images first
Claims = Sequence[dict[str, Any]]


def read_studies(out: Path) -> dict[str, Any]:
    """The studies of a directory by name; the demo first, then those of the paper in its order."""
    places = {name: out / f"{name}.json" for name in TEXTS}
    return {name: json.loads(path.read_text("utf-8")) for name, path in places.items() if path.exists()}


def count_claims(claims: Claims) -> str:
    """How many claims have which verdict: those of the paper, and apart from them ours.

    >>> count_claims([{"own": False, "verdict": "reproduced"}, {"own": True, "verdict": "direction only"}])
    'of the paper: 1 reproduced; of ours: 1 direction only'
    """
    parts = []
    for own, whose in ((False, "of the paper"), (True, "of ours")):
        counts = Counter(claim["verdict"] for claim in claims if claim["own"] == own)
        if counts:
            words = ", ".join(f"{counts[each]} {each}" for each in VERDICTS if counts[each])
            parts.append(f"{whose}: {words}")
    return "; ".join(parts)


def write_page(out: Path) -> None:
    """`index.html` in a directory of results: figure, claims and verdicts of each study that is there."""
    studies = read_studies(out)
    links = [
        f"<li><a href='#{escape(name)}'>{escape(study['title'])}</a>: {count_claims(study['claims'])}</li>"
        for name, study in studies.items()
    ]
    counts = count_claims([claim for study in studies.values() for claim in study["claims"]])
    title = "Trained on labels that are partly wrong" if "demo" in studies else "The paper's figures, claim by claim"
    parts = [HEAD, f"<main><h1>{title}</h1><p>{counts}</p><ul>{''.join(links)}</ul>"]
    for study in studies.values():
        name, shows = escape(study["study"]), escape(study["shows"])
        head, *rows = study.get("table") or [[]]
        numbers = "".join(
            f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>"
            for tag, row in [("th", head), *(("td", row) for row in rows)]
        )
        facts = [
            f"{study['scale']} scale",
            f"{study['runs']} runs",
            f"{format_duration(study['seconds'])} of training",
            *(f"{study[what]} runs {what}" for what in ("missing", "diverged") if study.get(what)),
        ]
        claims = "\n".join(
            f"<tr><td>{'(ours) ' * claim['own']}{escape(claim['says'])}</td>"
            f"<td>{escape(claim['measured']).replace('; ', '<br>')}</td>"
            f"<td class='verdict' style='color:{VERDICTS[claim['verdict']]}'>{claim['verdict']}</td></tr>"
            for claim in study["claims"]
        )
        parts += [
            f"<section id='{name}'><h2>{escape(study['title'])}</h2>"
            f"<p>{shows}</p><img alt='{shows}' src='{name}.png'>"
            + (f"<div class='scroll'><table class='numbers'>{numbers}</table></div>" if rows else "")
            + f"<table><tr><th>claim</th><th>measured</th><th>verdict</th></tr>{claims}</table>"
            f"<p class='small'>{escape(' · '.join(facts))} · <a href='{name}.csv'>data</a> · "
            f"<code>{escape(study['command'])}</code></p></section>"
        ]
    write_atomically(out / "index.html", "\n".join([*parts, "</main></html>\n"]))


def write_paper(results: Path) -> None:
    """`paper.md` in the folder of all scales: the paper's caption, our figure, its claims with verdicts, the reason."""
    scales = {scale: read_studies(results / scale) for scale in SIZES if (results / scale).is_dir()}
    parts = [
        "# The paper, figure by figure",
        "*Variational Learning Induces Adaptive Label Smoothing* (arXiv 2502.07273). Under each caption of the paper "
        "stands our figure of the largest scale that has it, and what the paper says with our verdict at every scale. "
        "`python -m reproduce` writes this page from the tables in `results/`.",
    ]
    for name, texts in TEXTS.items():
        if "caption" in texts and (
            there := {scale: studies[name] for scale, studies in scales.items() if name in studies}
        ):
            parts += _describe(name, texts, there)
    write_atomically(results / "paper.md", "\n\n".join(parts) + "\n")


def _describe(name: str, texts: dict[str, str], there: dict[str, Any]) -> list[str]:
    """One figure of the paper; `there` are its studies by scale, the largest first."""
    first, study = next(iter(there.items()))
    rows = [["the paper says", *there, f"measured at the scale {first}"], ["---"] * (len(there) + 2)]
    for number, claim in enumerate(study["claims"]):
        if not claim["own"]:
            verdicts = [each["claims"][number]["verdict"] for each in there.values()]
            rows.append([claim["says"], *verdicts, claim["measured"].replace("; ", "<br>").replace("|", r"\|")])
    others = ", ".join(f"[{scale}]({scale}/{name}.png)" for scale in there if scale != first)
    return [
        f"## {study['title']} ({study['figure']})",
        f"> {texts['caption']}",
        f"![{study['shows']}]({first}/{name}.png)",
        "\n".join(f"| {' | '.join(row)} |" for row in rows),
        texts["reason"] + (f" Figures of the other scales: {others}." if others else ""),
    ]
