"""Training loops that other people wrote take IVON unchanged."""

import warnings

import pytest
import torch
from torch import nn

from bayesmooth.optim import IVON


def assert_as_by_hand(task, trained, steps, **settings):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.3, 40, beta2=0.9, seed=3, **settings)
    closure = task.closure(model, optimizer, task.x, task.y)
    for _ in range(steps):
        optimizer.step(closure)
    for p, q in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_lightnings_automatic_optimization(task, tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is installed for tests only")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = task.net(), []

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            return IVON(self.parameters(), 0.3, 40, beta2=0.9, mc_samples=2, seed=3)

    module = Module()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(task.x, task.y), batch_size=40
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lightning's own, about workers and loggers
        trainer = lightning.Trainer(
            max_epochs=10,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loader)
    assert len(module.losses) == 20  # two samples a step
    assert_as_by_hand(task, module.net, 10, mc_samples=2)


def test_skorch(task):
    skorch = pytest.importorskip("skorch", reason="skorch is installed for tests only")
    net = skorch.NeuralNetClassifier(
        task.net(),
        criterion=nn.CrossEntropyLoss,
        optimizer=IVON,
        optimizer__ess=40,
        optimizer__seed=3,
        optimizer__beta2=0.9,
        lr=0.3,
        max_epochs=10,
        batch_size=40,
        train_split=None,
        verbose=0,
    )
    net.fit(task.x.numpy(), task.y.numpy())
    assert_as_by_hand(task, net.module_, 10)
