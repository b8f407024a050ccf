"""Whether what the audit says of a whole data set is true: of coin flips, and of how many labels are wrong.

python -m benchmarks audit_rates
"""

import torch
from torch import Tensor

from bayesmooth.audit import Audit, audit
from bayesmooth.audit.scores import HARD
from bayesmooth.data import Examples, corrupt

RATES = (0.005, 0.05, 0.2, 0.5)
SEEDS = 5


def coin_flips(count: int = 600, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two classes, and a third of the examples between them: their labels are the toss of a coin, as the last tells."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(count) % 3
    x = torch.randn(count, 2, generator=generator) + 6 * torch.eye(2)[kind.clamp_max(1)]
    x[kind == 2] = torch.randn(int((kind == 2).sum()), 2, generator=generator) + 3
    tossed = torch.randint(2, (count,), generator=generator)
    return x, torch.where(kind == 2, tossed, kind), kind == 2


def noisy_clouds(
    rate: float, count: int = 2000, classes: int = 5, apart: float = 3.5, seed: int = 1
) -> Examples:
    """Clouds that overlap somewhat (the best classifier errs on about 5 %), and labels moved anywhere."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.arange(count) % classes
    x = apart * torch.eye(8)[clean] + torch.randn(count, 8, generator=generator)
    names = tuple(map(str, range(classes)))
    examples = Examples(x, clean, names, clean, name="clouds")
    return corrupt(examples, "symmetric", rate=rate, seed=seed)[0]


def called_hard(made: Audit, flips: Tensor) -> tuple[int, int]:
    """Of the coin flips whose labels are contradicted, how many are called hard; and how many these are."""
    against = made.contradicted & flips.numpy()
    return int((made.quadrant[against] == HARD).sum()), int(against.sum())


def main(quick: bool = False) -> None:
    """Print a line for each size and each rate."""
    torch.set_num_threads(1)
    seeds = range(1 if quick else SEEDS)
    print("\ncoin flips   contradicted   of these called hard")
    for count in (600,) if quick else (600, 3000):
        hard, against = 0, 0
        for seed in seeds:
            x, y, flips = coin_flips(count, seed)
            found = called_hard(audit(embeddings=x, labels=y, quiet=True), flips)
            hard, against = hard + found[0], against + found[1]
        total = len(seeds) * (count // 3)
        print(f"{total:10,} {against:14,} {hard / against:22.1%}", flush=True)
    print(f"\n{'true':>6} {'about':>7} {'at least':>9}   true rate is at least that")
    for rate in RATES[:1] if quick else RATES:
        rows, held = [], 0
        for seed in seeds:
            examples = noisy_clouds(rate, seed=seed)
            assert examples.clean_labels is not None
            true = float((examples.labels != examples.clean_labels).double().mean())
            summary = audit(examples, quiet=True).summary
            held += summary["noise_rate_at_least"] <= true
            rows.append((true, summary["noise_rate"], summary["noise_rate_at_least"]))
        true, estimate, least = torch.tensor(rows).mean(0).tolist()
        line = f"{true:6.1%} {estimate:7.1%} {least:9.1%}   {held} of {len(seeds)} times"
        print(line, flush=True)
