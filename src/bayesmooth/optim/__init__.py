"""Optimizers, which move the weights: their `step(closure)` does everything."""

from torch.optim import SGD, AdamW, Optimizer

from bayesmooth.optim.bsam import BSAM
from bayesmooth.optim.ivon import IVON
from bayesmooth.optim.sam import SAM

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adamw": AdamW, "sam": SAM, "ivon": IVON, "bsam": BSAM}

__all__ = ["BSAM", "IVON", "OPTIMIZERS", "SAM"]
