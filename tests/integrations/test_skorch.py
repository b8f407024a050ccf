"""skorch takes IVON unchanged."""

import pytest
from torch import nn

from bayesmooth import IVON

skorch = pytest.importorskip("skorch", reason="skorch is no extra")


def test_skorch_takes_ivon_as_it_is(task, by_hand):
    settings = {f"optimizer__{name}": value for name, value in task.settings.items() if name != "lr"}
    settings |= {"max_epochs": 10, "batch_size": 40, "train_split": None, "verbose": 0, "lr": task.settings["lr"]}
    net = skorch.NeuralNetClassifier(task.net(), criterion=nn.CrossEntropyLoss, optimizer=IVON, **settings)
    net.fit(task.x.numpy(), task.y.numpy())
    task.assert_same(net.module_, by_hand([[(task.x, task.y)]] * 10))
