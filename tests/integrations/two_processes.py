"""Trains with DDP on two processes, which the test starts: `python two_processes.py FRAMEWORK OUT`."""

import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from conftest import SETTINGS, make_data, make_net, make_task  # of this folder, where the script lies
from torch.utils.data import DataLoader, TensorDataset

from bayesmooth import IVON

RANK = int(os.environ.get("LOCAL_RANK", "0"))


def make_ivon(model, **settings):
    """Ranks that disagree on the seed must come to agree."""
    return IVON(model.parameters(), **SETTINGS | {"seed": SETTINGS["seed"] + 100 * RANK} | settings)


def make_loader():
    return DataLoader(TensorDataset(*make_data()), batch_size=10)


def in_lightning(out):
    import lightning
    from test_lightning import Module

    from bayesmooth.integrations.lightning import PosteriorCallback

    class Ours(Module):
        def configure_optimizers(self):
            return make_ivon(self)

    module = Ours(make_task())
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
    trainer.fit(module, make_loader(), make_loader())
    predicted = trainer.optimizers[0].posterior(module).predict(module, make_data()[0], 4)
    return module.net, dict(trainer.callback_metrics) | {"predicted": predicted}


def in_trainer(out):
    from test_huggingface import Classifier, make_trainer

    from bayesmooth.integrations.huggingface import IVONCallback

    model = Classifier(make_net())
    optimizer = make_ivon(model)
    trainer = make_trainer(
        make_task(),
        f"{out}.trainer",
        IVONCallback(samples=4),
        model,
        optimizer,
        ddp_backend="gloo",
        num_train_epochs=3,
        per_device_eval_batch_size=12,  # 24 rows at a time, of 40: the last batch is padded
        gradient_accumulation_steps=2,
        max_grad_norm=0.05,
    )
    trainer.train()
    figures = {key: value for key, value in trainer.evaluate().items() if "averaged" in key}
    predicted = optimizer.posterior(model).predict(model, {"x": make_data()[0]}, 4)
    return model.net, figures | {"predicted": predicted}


FRAMEWORKS = {"lightning": in_lightning, "huggingface": in_trainer}  # Lightning starts its second process by itself


def main(framework, out):
    warnings.simplefilter("ignore")
    if framework == "huggingface":
        dist.init_process_group("gloo", f"file://{out}.rendezvous", timedelta(seconds=60), world_size=2, rank=RANK)
    net, figures = FRAMEWORKS[framework](out)
    weights = [p.detach().clone() for p in net.parameters()]
    torch.save((weights, figures), f"{out}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
