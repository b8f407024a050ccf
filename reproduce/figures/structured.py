"""Not in the paper: a covariance that is not diagonal (EVON) beside IVON's diagonal, in regressions and in networks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.metrics import rank_correlation
from bayesmooth.optim import EVON, IVON
from bayesmooth.optional import require
from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import Bernoulli
from bayesmooth.theory.noise import expected_noise
from reproduce.methods import Cell, Condition
from reproduce.rows import (
    BETTER,
    Row,
    Table,
    format_mean,
    list_noises,
    list_values,
    make_table,
    read_final,
    select,
)
from reproduce.scale import Scale
from reproduce.study import Finished, Study
from reproduce.style import COLOURS, PAGE, figure, legend_below
from reproduce.verdict import Claim, ahead, holds

METHODS = {"IVON": IVON, "EVON": EVON}
AUTO = {"beta2": "auto"}
COMPARED = ("symmetric 40 %", "pairflip 20 %", "κ = 0.3")
SETS = ("breast_cancer", "diabetes", "digits", "iris", "wine")  # of scikit-learn, as two classes
STEPS = 3_000  # of a regression
PRIOR = 1.0


def cells(scale: Scale) -> list[Cell]:
    """Both methods by IVON's recipe, with β₂ = 1 − 2/steps; at the scale `demo` on digits, else on CIFAR-10."""
    task = "cifar10" if "cifar10" in scale.tasks else "mnist"
    return [
        Cell(
            Condition(scale, task, noise, seed).ivon(name=method.lower(), **AUTO),
            method,
            seed,
            noise,
        )
        for seed in (*scale.seeds, *scale.more_seeds)
        for noise in COMPARED
        for method in METHODS
    ]


def measure_both(finished: Finished) -> Table:
    """One row per run, then one per regression and method."""
    runs = [
        {"data": cell.recipe.data.name, **cell.labels, **read_final(run), "hash": cell.recipe.hash}
        for cell, run in finished.pairs()
    ]
    return make_table([*runs, *(row for name in SETS for row in compare_regressions(name))])


# ---- logistic regression, where the exact answer is known ----


def compare_regressions(name: str) -> Iterator[Row]:
    """How far each method's Σ is from VON's full one, and how it ranks the examples by variance and by label noise."""
    features, labels = load_two_classes(name)
    how: dict[str, Any] = {"family": "bernoulli", "covariance": "full", "bias": False}
    exact = fit_glm(features, labels, prior_precision=PRIOR, **how)
    variance, noise = exact.logits(features)[1], exact.label_noise(features)
    for method, kind in METHODS.items():
        mean, covariance = fit_by(kind, features, labels)
        spread = (features @ covariance * features).sum(1)
        found = expected_noise(features @ mean, spread, Bernoulli())
        yield {
            "data": name,
            "method": method,
            "distance": float((covariance - exact.covariance).norm() / exact.covariance.norm()),
            "variance_rank": rank_correlation(spread, variance),
            "noise_rank": rank_correlation(found.abs(), noise.abs()),
        }


def load_two_classes(name: str) -> tuple[Tensor, Tensor]:
    """Standardised features with a column of ones, and two classes: labels up to their mean, and above."""
    data = getattr(require("sklearn.datasets", extra="data"), f"load_{name}")()
    x = torch.tensor(data.data, dtype=torch.float64, device="cpu")
    y = torch.tensor(data.target, dtype=torch.float64, device="cpu")
    x = x[:, x.std(0) > 0]
    x = (x - x.mean(0)) / x.std(0)
    return torch.cat([x, torch.ones_like(x[:, :1])], 1), (y > y.mean()).long()


def fit_by(kind: type[IVON], features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and Σ that an optimizer learns from single samples over the whole data."""
    layer = nn.Linear(features.shape[1], 1, bias=False, dtype=torch.float64, device="cpu")
    nn.init.zeros_(layer.weight)
    size = len(features)
    how: dict[str, Any] = {"hess_init": 0.1, "beta2": 1 - 10 / STEPS, "weight_decay": PRIOR / size}
    how |= {"basis_beta": 0.99} if kind is EVON else {}
    optimizer = kind(layer.parameters(), 0.1, size, seed=0, **how)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    targets = labels.to(features)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(layer(features)[:, 0], targets)
        torch.autograd.backward(loss)
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
        rates.step()
    posterior = optimizer.posterior(layer)
    scaled = posterior.std["weight"].reshape(-1).diag()
    turn = getattr(posterior, "right", {}).get("weight")
    root = scaled if turn is None else turn @ scaled
    return posterior.mean["weight"][0], root @ root.mT


# ---- what it says ----


def draw(table: Table, out: Path) -> None:
    """The distance to the exact Σ, and the accuracy under each noise."""
    fits, runs = part_kinds(table)
    with figure(out, 1, 2, width=PAGE, height=2.6) as ((left, right),):
        for axis, rows, by, key, unit in (
            (left, fits, "data", "distance", 1),
            (right, runs, "noise", "accuracy", 100),
        ):
            places = rows[by].unique().tolist()
            for method, shift in (("IVON", -0.2), ("EVON", 0.2)):
                groups = select(rows, method=method).groupby(by, sort=False)[key]
                spots = [at + shift for at in range(len(places))]
                heights, bars = unit * groups.mean(), unit * groups.std().fillna(0)
                axis.bar(spots, heights, 0.4, yerr=bars, color=COLOURS[method], label=method)
            axis.set_xticks(range(len(places)), [place.replace("_", "\n") for place in places])
        left.set(title="logistic regression", ylabel="distance to the exact Σ")
        right.set(title="networks on noisy labels", ylabel="test accuracy (%)")
        legend_below(left)


def part_kinds(table: Table) -> tuple[Table, Table]:
    """The rows of regressions, and those of runs."""
    fits = table["noise"].isna()
    return table[fits], table[~fits]


def summarise(table: Table) -> list[list[str]]:
    """One row per noise and method, mean ± standard deviation over seeds."""
    _, runs = part_kinds(table)
    rows = [["noise", "method", "accuracy", "at the mean", "memorised", "NLL", "ECE", "seconds"]]
    for (noise, method), own in runs.groupby(["noise", "method"], sort=False):
        shares = [format_mean(own[key], 100, " %") for key in ("accuracy", "at_mean", "memorised")]
        rest = [format_mean(own[key]) for key in ("nll", "ece")]
        rows.append([noise, method, *shares, *rest, f"{own['seconds'].mean():.0f}"])
    return rows


def claims(table: Table) -> list[Claim]:
    """EVON against IVON: Σ and the ranks of regressions, accuracy and likelihood of networks."""
    fits, runs = part_kinds(table)
    found = []
    for key, name, sign in (
        ("distance", "Σ is nearer to the exact one", -1),
        ("variance_rank", "φᵀΣφ ranks examples more like the exact one", 1),
        ("noise_rank", "label noise ranks examples more like the exact one", 1),
    ):
        known = fits.reindex(columns=["data", "method", key])  # an empty table lacks the key
        both = known.pivot(index="data", columns="method", values=key).reindex(columns=METHODS)
        words = [f"{row.Index}: {row.EVON:.2f} against {row.IVON:.2f}" for row in both.itertuples()]
        parts = (sign * both["EVON"] > sign * both["IVON"]).tolist()
        says = f"(not in the paper) EVON's {name} than IVON's"
        found.append(Claim(says, "; ".join(words), holds(parts)))
    for key, (is_better, sign, show) in BETTER.items():
        pairs, words = [], []
        for noise in list_noises(runs):
            evon, ivon = (list_values(runs, key, noise=noise, method=m) for m in ("EVON", "IVON"))
            pairs.append((evon, ivon))
            words.append(f"{noise}: {show(evon)} against {show(ivon)}")
        says = f"(not in the paper) EVON {is_better} than IVON, both by IVON's recipe with nothing tuned"
        found.append(Claim(says, "; ".join(words), ahead(pairs, sign)))
    return found


STUDY = Study(
    "structured",
    "",
    "A covariance that is not diagonal",
    "EVON beside IVON: Σ and label noise of logistic regressions, accuracy under three noises",
    cells,
    draw,
    claims,
    measure_both,
    summarise=summarise,
)
