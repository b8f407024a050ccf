"""LoRA with IVON: which settings reach AdamW, on a perceptron that has learned digits lying on their side."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesmooth import IVON, metrics
from bayesmooth.models import mlp, weights_from
from bayesmooth.optional import require
from bayesmooth.progress import track

BATCH, RANK, SEEDS = 50, 4, 3
Sets = tuple[Tensor, Tensor, Tensor, Tensor]
Make = Callable[[list[nn.Parameter], int], torch.optim.Optimizer]


def digits(upright: bool) -> Sets:
    """Training and test digits, transposed where they lie."""
    found = require("sklearn.datasets", "data").load_digits()
    pictures, labels = torch.from_numpy(found.images).float(), torch.from_numpy(found.target)
    rows = (pictures if upright else pictures.mT).flatten(1) / 8 - 1
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    train, test = order[:1000], order[1000:]
    return rows[train], labels[train], rows[test], labels[test]


def network() -> nn.Module:
    return mlp(10, input_shape=(64,), hidden=(256, 256))


def adapted(weights: dict[str, Tensor], seed: int) -> nn.Module:
    """The network with LoRA on its hidden layers, and a new head."""
    peft = require("peft", "huggingface")
    model = network()
    model.load_state_dict(weights)
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=["1", "3"],
        modules_to_save=["5"],
    )
    with weights_from(seed):
        model[5].reset_parameters()  # type: ignore[index]
        made: nn.Module = peft.get_peft_model(model, config)
    return made


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Sets, epochs: int) -> None:
    """Batches in a random order, lr up over a tenth of the steps and down on a cosine."""
    rows, labels = data[:2]
    steps = epochs * len(rows) // BATCH
    up = max(1, steps // 10)
    shapes = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1 / up, total_iters=up),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - up),
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, shapes, [up])
    order = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(rows), generator=order).split(BATCH):  # type: ignore[no-untyped-call]

            def closure(index: Tensor = index) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = nn.functional.cross_entropy(model(rows[index]), labels[index])
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
            schedule.step()


def ivon(examples: int, epochs: int, factor: float = 1.0, lr: float = 0.1) -> Make:
    """`factor` is what multiplies ess · hess_init: more of it is less noise."""
    beta2 = 1 - 2 / (epochs * examples // BATCH)
    return lambda params, seed: IVON(params, lr, examples, hess_init=factor, beta2=beta2, seed=seed)


def adamw(lr: float) -> Make:
    return lambda params, _: torch.optim.AdamW(params, lr)


def score(
    weights: dict[str, Tensor], make: Make, data: Sets, epochs: int, seed: int
) -> list[float]:
    """Accuracy and NLL at the mean, averaged over the posterior, and σ over the weights at the start."""
    model = adapted(weights, seed)
    optimizer = make([p for p in model.parameters() if p.requires_grad], seed)
    noise = optimizer.diagnostics()["noise_to_weight"] if isinstance(optimizer, IVON) else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some drown: that is what they are here to show
        train(model, optimizer, data, epochs)
    with torch.no_grad():
        mean = averaged = model.eval()(data[2]).softmax(-1)
    if isinstance(optimizer, IVON):
        averaged = optimizer.posterior(model).predict(model, data[2], 32)
    figures = [f(p, data[3]) for p in (mean, averaged) for f in (metrics.accuracy, metrics.nll)]
    return [*figures, noise]


def main(quick: bool = False) -> None:
    """One row per setting, means over seeds."""
    torch.set_num_threads(1)
    epochs, seeds = (1, 1) if quick else (20, SEEDS)
    lying, upright = digits(False), digits(True)
    base = network()
    train(base, torch.optim.AdamW(base.parameters(), 3e-3), lying, 2 * epochs)
    count = len(upright[0])
    cases = {f"AdamW, lr {lr:g}": adamw(lr) for lr in (0.003, 0.01)}
    for factor, lr in [(1, 0.1), (0.1, 0.1), (10, 0.1), (100, 0.1), (10, 0.03), (10, 0.2)]:
        cases[f"IVON, lr {lr:g}, hess_init {factor:g}"] = ivon(count, epochs, factor, lr)
    print(f"{'LoRA on digits':30} accuracy   NLL | averaged:   NLL | σ/weights at the start")
    for name, make in track(cases.items(), description="LoRA", total=len(cases), quiet=quick):
        runs = [score(base.state_dict(), make, upright, epochs, seed) for seed in range(seeds)]
        row = torch.tensor(runs).mean(0).tolist()
        print("{:30} {:8.3f} {:5.2f} | {:8.3f} {:5.2f} | {:.2f}".format(name, *row), flush=True)
