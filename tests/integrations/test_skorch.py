"""skorch takes IVON unchanged; IVONNet adds `ess` per fold and averaged probabilities."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from torch import nn

from bayesmooth import IVON

skorch = pytest.importorskip("skorch", reason="skorch is an extra")

from bayesmooth.integrations.skorch import IVONNet  # noqa: E402

PLAIN = {"max_epochs": 10, "batch_size": 40, "train_split": None, "verbose": 0}


def test_skorch_takes_ivon_as_it_is(task, by_hand):
    net = skorch.NeuralNetClassifier(
        task.net(),
        criterion=nn.CrossEntropyLoss,
        optimizer=IVON,
        optimizer__ess=40,
        optimizer__seed=3,
        optimizer__beta2=0.9,
        lr=0.3,
        **PLAIN,
    )
    net.fit(task.x.numpy(), task.y.numpy())
    task.assert_same(net.module_, by_hand([[(task.x, task.y)]] * 10))


def test_ess_is_the_number_of_examples_of_the_fold(task):
    x, y, seen = task.x.numpy(), task.y.numpy(), []

    class Watched(IVONNet):
        def train_step(self, batch, **given):
            seen.append(self.optimizer_.param_groups[0]["ess"])
            return super().train_step(batch, **given)

    net = Watched(task.net(), optimizer__seed=0, **PLAIN | {"max_epochs": 1})
    cross_val_score(net, x, y, cv=4)
    assert set(seen) == {30.0}
    seen.clear()
    net.set_params(train_split=skorch.dataset.ValidSplit(2)).fit(x, y)
    assert set(seen) == {20.0}  # the validation split is left out
    seen.clear()
    Watched(task.net(), optimizer__ess=1000, **PLAIN | {"max_epochs": 1}).fit(x, y)
    assert set(seen) == {1000}


@pytest.mark.parametrize(
    "given", [{}, {"noise": 2.0}, {"ess": 77.0, "steps": 50}, {"hess_init": 0.3}, {"beta2": 0.9}], ids=str
)
def test_ess_and_beta2_follow_from_the_data_and_the_length_of_training(task, given):
    settings = {f"optimizer__{name}": value for name, value in given.items()}
    net = IVONNet(task.net(), lr=0.1, **PLAIN | {"batch_size": 16} | settings)
    net.fit(task.x.numpy(), task.y.numpy())
    known = {"ess": 40.0, "steps": 30} | ({} if "hess_init" in given else {"noise": 1.0}) | given
    expected = IVON(task.net().parameters(), lr=0.1, **known).param_groups[0]
    found = net.optimizer_.param_groups[0]
    for name in ("ess", "hess_init", "beta2", "noise"):
        assert found[name] == expected[name], name
    before = found["hess_init"], found["ess"]
    net.partial_fit(task.x[:10].numpy(), task.y[:10].numpy())
    assert before == (found["hess_init"], found["ess"])


def test_probabilities_are_averaged_over_the_posterior(task):
    x, y = task.x.numpy(), task.y.numpy()
    net = IVONNet(task.net(), optimizer__seed=0, samples=8, **PLAIN).fit(x, y)
    averaged = net.optimizer_.posterior(net.module_).predict(net.module_, task.x, 8)
    np.testing.assert_allclose(net.predict_proba(x), averaged.numpy(), atol=1e-6)
    mean = net.set_params(samples=0).predict_proba(x)
    np.testing.assert_allclose(mean, net.module_(task.x).detach().softmax(-1).numpy(), atol=1e-6)


def test_clones_and_grids(task):
    net = clone(IVONNet(task.net(), optimizer__seed=0, **PLAIN))
    grid = GridSearchCV(net, {"lr": [0.1, 0.3], "samples": [4]}, cv=2)
    grid.fit(task.x.numpy(), task.y.numpy())
    assert grid.best_score_ > 0.5


def test_a_saved_state_goes_on_where_it_was(task, tmp_path):
    """Parameters, optimizer and history, as skorch saves them."""
    x, y = task.x.numpy(), task.y.numpy()
    straight = IVONNet(task.net(), optimizer__seed=0, **PLAIN).fit(x, y)
    whole = {"optimizer__steps": 10}
    first = IVONNet(task.net(), optimizer__seed=0, **PLAIN | {"max_epochs": 4} | whole).fit(x, y)
    files = {f"f_{part}": str(tmp_path / part) for part in ("params", "optimizer", "history")}
    first.save_params(**files)
    second = IVONNet(task.net(seed=1), optimizer__seed=9, **PLAIN).initialize()
    second.load_params(**files)
    second.fit_loop(x, y, epochs=6)
    task.assert_same(second.module_, straight.module_)


def test_a_scheduler_moves_the_optimizer_that_trains(task):
    policy = skorch.callbacks.LRScheduler("StepLR", step_size=1, gamma=0.5)
    net = IVONNet(task.net(), lr=0.1, callbacks=[policy], **PLAIN | {"max_epochs": 3})
    net.fit(task.x.numpy(), task.y.numpy())
    assert net.optimizer_.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
