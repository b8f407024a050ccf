"""How long the laptop scale must train until SGD and label smoothing know the wrong labels by heart.

    BAYESMOOTH_DATA=~/data python -m benchmarks regime > results/regime.txt

CIFAR-10 with data-dependent noise κ = .4, seed 0. The scale takes the smallest number of epochs after which both know
at least 95 % of them. Runs are kept in `runs/laptop`, as those of `bayesmooth reproduce`, and not trained twice.
"""

from dataclasses import replace
from pathlib import Path

import torch

from bayesmooth.lab import Run
from bayesmooth.lab.executors import Processes
from bayesmooth.lab.studies.methods import kappa_noise, recipe, sgd, smoothed
from bayesmooth.lab.studies.rows import final
from bayesmooth.lab.studies.scale import LAPTOP
from bayesmooth.lab.sweep import sweep

EPOCHS = (20, 30, 40)
ALPHAS = (0.0, 0.5)


def main(quick: bool = False) -> None:
    """Train what is missing, and print one row per length."""
    torch.set_num_threads(1)
    _, noise = kappa_noise(0.4)
    recipes = {}
    for epochs in EPOCHS[:1] if quick else EPOCHS:
        task = replace(LAPTOP.task("cifar10"), epochs=epochs)
        for alpha in ALPHAS:
            recipes[epochs, alpha] = recipe(
                LAPTOP, task, noise, smoothed(alpha), sgd(task.ls_lr), 0
            )
    runs = Path("runs/laptop")
    with Processes(2) as executor:
        sweep(list(recipes.values()), runs, executor)
    print("\nWrong labels memorised, %\nepochs   SGD   LS, α = .5")
    for epochs in dict.fromkeys(epochs for epochs, _ in recipes):
        known = [
            final(Run.open(runs / recipes[epochs, alpha].title))["memorised"] for alpha in ALPHAS
        ]
        print(f"{epochs:6}  {100 * known[0]:5.1f}  {100 * known[1]:10.1f}")


if __name__ == "__main__":
    main()
