import pytest
import torch
from torch import nn

from bayesmooth.data import Examples
from bayesmooth.lab.evaluate import evaluate, probabilities
from bayesmooth.posterior import Posterior


@pytest.fixture
def examples():
    rng = torch.Generator().manual_seed(0)
    return Examples(torch.randn(23, 4, generator=rng), torch.arange(23) % 3, ("a", "b", "c"))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_probabilities_stand_in_the_order_of_the_examples_and_change_nothing(model, examples):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probs = probabilities(model, examples, batch_size=5)
    torch.testing.assert_close(probs, model.eval()(examples.inputs).softmax(1).detach())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_averaged_probabilities_are_those_of_the_posterior(model, examples):
    mean = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    posterior = Posterior(
        mean, {name: torch.full_like(weight, 0.3) for name, weight in mean.items()}
    )
    probs = probabilities(model, examples, batch_size=5, posterior=posterior, samples=4, seed=2)
    torch.testing.assert_close(probs, posterior.predict(model, examples.inputs, 4, seed=2))


def test_figures_of_a_model_that_is_always_right_and_sure(examples):
    inputs = 50.0 * nn.functional.one_hot(examples.labels, 3)
    sure = Examples(inputs, examples.labels, examples.class_names)
    wrong = Examples(
        inputs, (examples.labels + 1) % 3, examples.class_names, clean_labels=examples.labels
    )
    model = nn.Linear(3, 3, bias=False)
    nn.init.eye_(model.weight)
    record = evaluate(
        model,
        sure,
        validation=wrong,
        wrong=wrong,
        ood=Examples(0 * inputs, examples.labels, ("a", "b", "c")),
    )
    assert record == pytest.approx(
        {
            "test.accuracy": 1, "test.nll": 0, "test.brier": 0, "test.ece": 0, "test.adaptive_ece": 0,
            "test.ood_auroc": 1, "validation.accuracy": 0, "validation.nll": 50, "memorised": 0,
        },
        abs=1e-6,
    )  # fmt: skip


def test_each_draw_is_made_once_and_the_tick_comes_with_the_weights_back(
    model, examples, monkeypatch
):
    mean = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    posterior = Posterior(mean, {name: torch.ones_like(weight) for name, weight in mean.items()})
    drawn, ticks, real = [], [], Posterior.deviations

    def counted(self, model, index, **how):
        drawn.append(index)
        return real(self, model, index, **how)

    def tick():
        ticks.append(all(torch.equal(w, mean[name]) for name, w in model.named_parameters()))

    monkeypatch.setattr(Posterior, "deviations", counted)
    probabilities(model, examples, batch_size=5, posterior=posterior, samples=4, tick=tick)
    assert drawn == [0, 0, 1, 1]  # mirrored pairs
    assert ticks == [True] * 4
