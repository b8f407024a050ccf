"""Can the noise be controlled within a run, by how much more the network knows of its labels than of those held back?

    python -m benchmarks controller

After each epoch the noise of `hess_init="auto"` grows while the accuracy on given training labels is more than `high`
points above that on noisy validation labels, and shrinks while it is less than `low` above. Test accuracy and the last
factor of the noise, means over two seeds.
"""

from dataclasses import dataclass
from statistics import fmean

import torch

from bayesmooth import progress
from bayesmooth.losses import CrossEntropy
from bayesmooth.posterior import recompute_batchnorm
from benchmarks.regret import BATCH, ivon, logits, share, train
from benchmarks.regret_tasks import EPOCHS, NETWORKS, Cell, problem

BOUNDS = (0.5, 2.5)  # of the factor
SMOOTHING = 0.7  # of the gap, over epochs
SEEDS = (1, 2)


@dataclass(frozen=True)
class Control:
    """How the factor answers to the gap; up = down = 1 leaves it alone."""

    up: float = 1.0
    down: float = 1.0
    high: float = 0.0
    low: float = 0.0


CONTROLS = {
    "auto alone": Control(),
    "5 / 2 points": Control(1.1, 1.05, 5, 2),
    "5 / 2 points, faster": Control(1.2, 1.1, 5, 2),
    "10 / 5 points": Control(1.1, 1.1, 10, 5),
}


def run(cell: Cell, control: Control, seed: int) -> tuple[float, float]:
    """Test accuracy, and the factor at the end."""
    data = problem(cell.task, cell.noise, seed)
    model = NETWORKS[cell.network](seed=seed, **data.facts)
    count = len(data.labels)
    steps = cell.epochs * -(-count // BATCH)
    optimizer = ivon("auto")(list(model.parameters()), count, cell.epochs, steps)
    factor, gap = 1.0, 0.0
    for epoch in train(model, optimizer, CrossEntropy(), data, cell.epochs, seed):
        known = share(logits(model, data.inputs[:500]), data.labels[:500])
        new = known - share(logits(model, data.held_inputs), data.held_labels)
        gap = new if epoch == 1 else SMOOTHING * gap + (1 - SMOOTHING) * new
        factor *= control.up if gap > control.high else 1 / control.down if gap < control.low else 1
        factor = min(max(factor, BOUNDS[0]), BOUNDS[1])
        optimizer.param_groups[0]["ess"] = count / factor**2  # σ ∝ 1/√ess
    recompute_batchnorm(model, torch.split(data.inputs[:2000], 250))
    return share(logits(model, data.test_inputs), data.test_labels), factor


def main(quick: bool = False) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    cells = [
        Cell(task, network, noise, EPOCHS[task][1])
        for task in (("digits",) if quick else ("digits", "text"))
        for network in ("mlp+bn", "mlp")
        for noise in ("clean", "symmetric", "pairflip")
    ]
    jobs = [
        (cell, name, seed)
        for cell in cells
        for name in CONTROLS
        for seed in (SEEDS[:1] if quick else SEEDS)
    ]
    found: dict[tuple[Cell, str], list[tuple[float, float]]] = {}
    for cell, name, seed in progress.track(jobs, description="controller"):
        found.setdefault((cell, name), []).append(run(cell, CONTROLS[name], seed))
    print(f"{'':40}" + "".join(f"{name:>22}" for name in CONTROLS))
    means: dict[str, list[float]] = {name: [] for name in CONTROLS}
    for cell in cells:
        shown = []
        for name in CONTROLS:
            accuracy, factor = map(fmean, zip(*found[cell, name], strict=True))
            means[name].append(accuracy)
            shown.append(f"{accuracy:.1f} (× {factor:.2f})")
        print(f"{cell!s:40}" + "".join(f"{text:>22}" for text in shown))
    print(f"{'mean':40}" + "".join(f"{fmean(each):>22.1f}" for each in means.values()))


if __name__ == "__main__":
    main()
