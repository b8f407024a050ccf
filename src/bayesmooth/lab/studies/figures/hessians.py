"""IVON over several h₀, with Σ learned or fixed (β₂ = 1): what two of the figures are made of."""

from pathlib import Path

from bayesmooth.lab.studies.figures.cifar10_noisy import KINDS
from bayesmooth.lab.studies.methods import NOISES, Cell, ivon, recipe
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.style import PAGE, data_name, figure, line
from bayesmooth.lab.studies.table import Table, curve, distinct, where

LEARNED, FIXED = "learned Σ", "fixed Σ"


def cells(scale: Scale, *methods: str) -> list[Cell]:
    """CIFAR-100 under three kinds of noise."""
    found = []
    for kind in KINDS:
        task = scale.task("cifar100", kind)
        for seed in scale.seeds:
            for method in methods:
                for h0 in scale.hessians:
                    fixed = {"beta2": 1.0} if method == FIXED else {}
                    optimizer = ivon(task, hess_init=h0, **fixed)
                    labels = {"noise": kind, "method": method, "strength": h0, "seed": seed}
                    made = recipe(scale, task, NOISES[kind], {"name": "ce"}, optimizer, seed)
                    found.append(Cell(labels, made))
    return found


def draw(table: Table, out: Path) -> None:
    """Accuracy over h₀, a panel a noise."""
    noises = distinct(table, "noise")
    with figure(out, 1, len(noises), width=PAGE, height=2.2) as (axes,):
        for axis, noise in zip(axes, noises, strict=True):
            for method in distinct(table, "method"):
                line(axis, method, curve(where(table, noise=noise, method=method)))
            axis.set(
                xscale="log", xlabel="first Hessian $h_0$", title=f"{data_name(table)}, {noise}"
            )
            axis.set_xticks(distinct(table, "strength"), minor=False)
            axis.set_xticks([], minor=True)
            axis.xaxis.set_major_formatter("{x:g}")
        axes[0].set_ylabel("test accuracy (%)")
        axes[0].legend()
