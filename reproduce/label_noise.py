"""The label noise at the end of training: of every digit, of two sixes, and by class beside online label smoothing.

fig: mnist_noise_distribution, fig:illustration, fig: ols_comparison.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bayesmooth.data import Source
from bayesmooth.files import save_checkpoint
from bayesmooth.labelnoise import LabelNoise, label_noise, smoothed_labels_by_class
from bayesmooth.losses import OnlineLabelSmoothing
from bayesmooth.train.evaluate import statistics_batches
from reproduce.study import Cell, Finished, Scale, Study
from reproduce.style import COLOURS, DATA_NAMES, LOOKS, PAGE, figure, legend_below, name_data, picture
from reproduce.table import Claim, Row, Table, format_mean, holds, make_table

ALPHA = 0.1  # of the label smoothing that variational noise is shown beside
NAMES = {"LS": f"LS, α = {ALPHA}", "IVON": "variational (IVON)"}


def list_ivon(scale: Scale, task: str = "mnist") -> list[Cell]:
    """IVON on clean labels."""
    return [Cell(recipe=scale.recipe(task, "ivon", seed=seed), method="IVON", seed=seed) for seed in scale.seeds]


def measure_noises(finished: Finished) -> Iterator[tuple[Row, Source, LabelNoise]]:
    """Data set and seed, training examples, and the expected noise at the end, of each run of IVON that there is.

    The noise of a run is measured once, and kept beside its weights.
    """
    for cell, run in finished.runs:
        if run.status == "diverged" or cell.method != "IVON":
            continue
        splits, kept = run.splits(), run.path / f"label-noise-{finished.samples}.pt"
        if kept.exists():
            noise = LabelNoise(**torch.load(kept, weights_only=True))
        else:
            model = run.model(device=finished.device)
            norms = statistics_batches(run.recipe, splits, model)
            noise = label_noise(model, run.posterior(), splits.train, samples=finished.samples, batchnorm=norms)
            save_checkpoint(kept, vars(noise))
        yield {"data": cell.recipe.data.name, "seed": cell.seed}, splits.train, noise


# ---- every digit ----

NEAREST = 10
SHOWN = 8  # pictures of each extreme
DIGITS_DIFFER = (
    "IVON's noise differs by example; it is high for atypical or unclear examples and low for regular ones "
    "(we ask: tenfold noise, and a rank correlation with the distance to the own kind > .2)"
)


def own_kind_distance(points: Tensor, labels: Tensor, neighbours: int = NEAREST) -> Tensor:
    """The mean distance to the nearest points of the same class: how atypical each is, whatever a network thinks.

    >>> own_kind_distance(torch.tensor([[0.0], [1.0], [5.0], [0.5]]), torch.tensor([0, 0, 0, 1]), neighbours=1)
    tensor([1., 1., 4., inf])
    """
    found = torch.full((len(points),), torch.inf, dtype=points.dtype, device=points.device)
    for label in labels.unique():  # type: ignore[no-untyped-call]
        own = (labels == label).nonzero().flatten()
        distances = torch.cdist(points[own], points[own]).fill_diagonal_(torch.inf)
        found[own] = distances.sort(1).values[:, :neighbours].mean(1)
    return found


def write_picture(inputs: Any, i: int) -> str:
    """One grey picture of (N, 1, H, W) as text: its side, then its bytes."""
    values = inputs[i : i + 1][0, 0].float()
    values = values / max(float(values.max()), 1e-9) * 255
    data = base64.b64encode(values.to(torch.uint8).numpy().tobytes()).decode()
    return f"{values.shape[-1]}:{data}"


def read_picture(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture that `write_picture` wrote.

    >>> read_picture(write_picture(torch.tensor([[[[0, 1], [1, 0]]]]), 0))
    array([[  0, 255], [255,   0]], dtype=uint8)
    """
    side, _, data = text.partition(":")
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, int(side))


def measure_digits(finished: Finished) -> Table:
    """½‖ε‖₁ of every example in rising order, beside LS's, and how far it is from its own kind in pixels.

    The distance knows neither network nor noise, so it is an independent measure of what is atypical.
    """
    rows = []
    for facts, examples, noise in measure_noises(finished):
        pixels, labels = examples.batch(torch.arange(len(examples), device="cpu")).flatten(1), examples.labels.numbers
        order, sizes = noise.magnitude.argsort().tolist(), noise.magnitude.tolist()
        given, distance = labels.tolist(), own_kind_distance(pixels, labels).tolist()
        extremes, same = {*order[:SHOWN], *order[-SHOWN:]}, ALPHA * (1 - 1 / examples.num_classes)
        for i in order:
            own = {"id": i, "label": given[i], "ivon_noise": sizes[i], "ls_noise": same, "distance": distance[i]}
            rows.append({**facts, **own, "pixels": write_picture(examples.inputs, i) if i in extremes else ""})
    return make_table(rows)


def draw_digits(table: Table, out: Path) -> None:
    """The sorted noise on the left, pictures on the right: highest above, lowest below."""
    table = table[table["seed"] == table["seed"].iloc[0]]
    grid = {"width_ratios": [4] + [1] * (SHOWN // 2)}
    with figure(out, 4, 1 + SHOWN // 2, width=PAGE, height=2.6, gridspec_kw=grid) as axes:
        for axis in axes[:, 0]:
            axis.remove()
        curve = axes[0][1].figure.add_subplot(axes[0][0].get_gridspec()[:, 0])
        curve.semilogy(table["ivon_noise"].tolist(), color=COLOURS["IVON"], label="IVON")
        curve.semilogy(table["ls_noise"].tolist(), color=COLOURS["LS"], label=NAMES["LS"])
        curve.set(xlabel="example, by IVON's noise", ylabel="label noise ½‖ε‖₁")
        curve.set_title(f"{name_data(table)}, training set, one seed")
        curve.margins(x=0)
        curve.legend()
        pictures = table["pixels"].tolist()
        extremes = [*reversed(pictures[-SHOWN:]), *pictures[:SHOWN]]
        for axis, text in zip(axes[:, 1:].flatten(), extremes, strict=False):
            picture(axis, read_picture(text))
        axes[0][1].set_ylabel("highest", loc="bottom")
        axes[2][1].set_ylabel("lowest", loc="bottom")


def judge_digits(table: Table) -> list[Claim]:
    """IVON's noise differs between examples, and is high for those far from their own kind, whatever the seed."""
    figures, parts = list[dict[str, float]](), list[bool]()
    for _, rows in table.groupby("seed"):
        tenth, noise, distance = max(len(rows) // 10, 1), rows["ivon_noise"], rows["distance"]
        least, most = noise.iloc[0], noise.iloc[-1]
        low, high = distance[:tenth].mean(), distance[-tenth:].mean()
        rank = noise.rank().corr(distance.rank())
        figures.append({"least": least, "most": most, "low": low, "high": high, "rank": rank})
        parts += [most > 10 * least, high > low, rank > 0.2]
    if not figures:
        return [Claim(DIGITS_DIFFER, "nothing", "not run")]
    words = {key: format_mean([each[key] for each in figures], seeds=True) for key in figures[0]}
    measured = (
        f"½‖ε‖₁ from {words['least']} to {words['most']}; distance to the own kind {words['high']} in the tenth with "
        f"most noise, {words['low']} in that with least; rank correlation of both {words['rank']}"
    )
    return [Claim(DIGITS_DIFFER, measured, holds(parts))]


MNIST_NOISE = Study("mnist-noise", list_ivon, draw_digits, judge_digits, measure_digits)

# ---- two sixes ----

DIGIT = 6  # shown as a regular and as an atypical picture
KINDS = ("regular", "atypical")
SIXES_DIFFER = "LS gives a regular and an atypical 6 the same noise, variational learning gives the atypical one more"


def measure_sixes(finished: Finished) -> Table:
    """The 6 that is nearest to its own kind and the one that is farthest: |ε| by class, for both methods."""
    rows = []
    for facts, examples, noise in measure_noises(finished):
        sixes = (examples.labels.numbers == DIGIT).nonzero().flatten()
        pixels = examples.inputs[sixes].float().flatten(1)
        distance = own_kind_distance(pixels, examples.labels[sixes])
        label = one_hot(torch.tensor(DIGIT, device="cpu"), examples.num_classes)
        same = ALPHA * (1 / examples.num_classes - label)  # α(u − y)
        for kind, place in zip(KINDS, (distance.argmin(), distance.argmax()), strict=True):
            at = int(sixes[place])
            text = write_picture(examples.inputs, at)
            for method, noises in (("LS", same), ("IVON", noise.expected[at])):
                own = {**facts, "kind": kind, "id": at, "method": method}
                rows += [
                    {**own, "label": i, "noise_size": abs(value), "pixels": "" if i else text}
                    for i, value in enumerate(noises.tolist())
                ]
    return make_table(rows)


def draw_sixes(table: Table, out: Path) -> None:
    """The picture, then its noise by class as bars."""
    table = table[table["seed"] == table["seed"].iloc[0]]
    with figure(out, 2, 2, height=2.6, gridspec_kw={"width_ratios": [1, 3]}) as axes:
        for (image, bars), kind in zip(axes, KINDS, strict=True):
            rows = table[table["kind"] == kind]
            picture(image, read_picture(rows["pixels"].iloc[0]))
            image.set_ylabel(f"{kind} 6")
            for method, shift in (("LS", -0.2), ("IVON", 0.2)):
                own = rows[rows["method"] == method]
                style = {"color": COLOURS[method], "label": NAMES[method]}
                bars.bar(own["label"] + shift, own["noise_size"], 0.4, **style)
                bars.set_xticks(own["label"])
            bars.set(ylabel="label noise |ε|", ylim=(0, 1.1 * table["noise_size"].max()))
        axes[1][1].set_xlabel("class")
        axes[0][1].legend(loc="upper left")


def judge_sixes(table: Table) -> list[Claim]:
    """LS the same, variational more for the atypical one, whatever the seed."""
    if table.empty:
        return [Claim(SIXES_DIFFER, "nothing", "not run")]
    halves = table.groupby(["method", "kind", "seed"])["noise_size"].sum() / 2
    sums = {(m, kind): halves[m, kind].tolist() for m in table["method"].unique() for kind in KINDS}
    words = [f"{method}, {kind}: {format_mean(values, seeds=True)}" for (method, kind), values in sums.items()]
    same = sums["LS", "regular"] == sums["LS", "atypical"]
    pairs = zip(sums["IVON", "atypical"], sums["IVON", "regular"], strict=True)
    parts = [same, *(atypical > regular for atypical, regular in pairs)]
    return [Claim(SIXES_DIFFER, f"½‖ε‖₁ {'; '.join(words)}", holds(parts))]


ILLUSTRATION = Study("illustration", list_ivon, draw_sixes, judge_sixes, measure_sixes)

# ---- beside online label smoothing ----

CLASSES = 10  # so many are drawn, as in the paper; all of them are judged
PANELS = 3
ALIKE = 0.5  # rank correlation


def list_with_ols(scale: Scale) -> list[Cell]:
    """IVON and OLS on clean labels; LS needs no run, its smoothed labels are known."""
    cells = []
    for task in ("cifar10", "cifar100"):
        for ivon in list_ivon(scale, task):
            recipe = scale.recipe(task, "ls", seed=ivon.seed, loss={"name": "ols", "alpha": 0.5})
            cells += [ivon, Cell(recipe=recipe, method="OLS", seed=ivon.seed)]
    return list({cell.recipe.hash: cell for cell in cells}.values())  # at smoke scale both tasks are the same


def measure_classes(finished: Finished) -> Table:
    """The mean smoothed label of each class: its mass on each other class, by all methods in the same way."""
    rows = []
    online = {(cell.recipe.data.name, cell.seed): run for cell, run in finished.runs if cell.method == "OLS"}
    for facts, examples, noise in measure_noises(finished):
        if (run := online.get((facts["data"], facts["seed"]))) is None:
            continue
        names = examples.class_names
        ivon = smoothed_labels_by_class({"IVON": noise}, noise.logits, examples.labels.numbers)["IVON"]
        loss = OnlineLabelSmoothing(len(names), **run.recipe.loss.options)
        loss.load_state_dict(run.checkpoint()["loss"])
        soft = loss.alpha * loss.soft  # α S_c, from the last epoch  (equ: ols noise)
        rows += [
            {**facts, "class": own, "other": other} | {"IVON": float(ivon[c, j]), "OLS": float(soft[c, j])}
            for c, own in enumerate(names)
            for j, other in enumerate(names)
            if c != j
        ]
    return make_table(rows)


def draw_classes(table: Table, out: Path) -> None:
    """One row per data set, one panel for each of three given classes, on a log scale."""
    sets = list(table.groupby("data", sort=False))
    with figure(out, len(sets), PANELS, sharey="row", width=PAGE, height=1.9 * len(sets) + 0.3) as axes:
        for row, (data, rows) in zip(axes, sets, strict=True):
            names = rows["class"].unique()
            order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0), device="cpu")
            drawn = [names[i] for i in sorted(order[:CLASSES].tolist())]
            for axis, name in zip(row, drawn[3 : 3 + PANELS], strict=True):
                others = [other for other in drawn if other != name]
                _panel(axis, rows[rows["class"] == name], others, ALPHA / len(names))
                axis.set_title(f"{DATA_NAMES.get(data, data)}, given label: {name}")
            row[0].set_ylabel("smoothed label")
        legend_below(axes.flatten(), [table["seed"].unique()])


def _panel(axis: Any, rows: Table, others: list[str], same: float) -> None:
    axis.set_yscale("log")
    axis.errorbar(range(len(others)), [same] * len(others), **LOOKS["LS"] | {"label": NAMES["LS"]})
    for method in ("OLS", "IVON"):
        masses = rows.groupby("other")[method]
        means, bars = masses.mean().reindex(others), masses.std().fillna(0).reindex(others)
        there = (means > 0).to_numpy()
        spread = [bars[there].clip(upper=0.9 * means[there]), bars[there]]
        axis.errorbar(there.nonzero()[0], means[there], spread, **LOOKS[method])
        if not there.all():  # a log scale has no place for them: open marks at the foot
            style = {**LOOKS[method], "label": f"{method} ≤ 0", "fillstyle": "none", "linestyle": "none"}
            foot = axis.get_xaxis_transform()
            axis.plot((~there).nonzero()[0], [0.03] * int((~there).sum()), transform=foot, **style)
    axis.set_xticks(range(len(others)), others, rotation=60, ha="right")


def judge_classes(table: Table) -> list[Claim]:
    """The pattern is that of OLS, the noise stronger."""
    alike, stronger, ranks, masses = [], [], [], []
    for data, rows in table.groupby("data", sort=False):
        seeds = rows.groupby("seed", sort=False)[["IVON", "OLS"]]
        rank = seeds.apply(lambda one: one["IVON"].rank().corr(one["OLS"].rank())).tolist()
        mean = seeds.mean()
        alike += [value > ALIKE for value in rank]
        stronger += (mean["IVON"] > mean["OLS"]).tolist()
        many = f"{data}: rank correlation over {rows['class'].nunique()} classes"
        ranks.append(f"{many} {format_mean(rank, seeds=True)}")
        each = [f"{m} {format_mean(mean[m].tolist(), seeds=True)}" for m in ("IVON", "OLS")]
        masses.append(f"{data}: mean mass {', '.join(each)}")
    same = f"IVON's smoothed labels are distributed as those of OLS (we ask: rank correlation > {ALIKE})"
    return [
        Claim(same, "; ".join(ranks) or "nothing", holds(alike)),
        Claim("IVON tends to induce stronger noise than OLS", "; ".join(masses) or "nothing", holds(stronger)),
    ]


OLS_COMPARISON = Study("ols-comparison", list_with_ols, draw_classes, judge_classes, measure_classes)
