"""Trains in Lightning with DDP on two processes: `python two_processes.py OUT`."""

import sys
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesmooth import IVON
from bayesmooth.integrations.lightning import PosteriorCallback

SETTINGS = {"lr": 0.3, "ess": 40, "beta2": 0.9}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def data():
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        # ranks that disagree must come to agree
        return IVON(self.parameters(), **SETTINGS, seed=3 + 100 * self.global_rank)


def main(out):
    warnings.simplefilter("ignore")
    loader = DataLoader(TensorDataset(*data()), batch_size=10, shuffle=False)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        accumulate_grad_batches=2,
        callbacks=[PosteriorCallback(samples=4)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, loader)
    weights = [p.detach().clone() for p in module.parameters()]
    torch.save((weights, dict(trainer.callback_metrics)), f"{out}.{trainer.global_rank}")


if __name__ == "__main__":
    main(sys.argv[1])
