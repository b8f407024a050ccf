import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesmooth.calling import recompute_batchnorm
from bayesmooth.cli import main
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.train import Recipe, Splits, prepare, train
from bayesmooth.train.evaluate import evaluate, probabilities, statistics_batches


@pytest.fixture
def examples():
    rng = torch.Generator().manual_seed(0)
    return Source(torch.randn(23, 4, generator=rng), Labels(torch.arange(23) % 3, ("a", "b", "c")))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_probabilities_stand_in_the_order_of_the_examples_change_nothing_and_are_made_where_the_model_is(
    model, examples
):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probs = probabilities(model, examples, batch_size=5)
    torch.testing.assert_close(probs, model.eval()(examples.inputs).softmax(1).detach())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # A tensor on `meta` has no values, so what is left on the CPU, or read, raises an error there.
    with pytest.raises(NotImplementedError, match="no data"):  # the result is copied at the end
        probabilities(model.to("meta"), examples, batch_size=5)


def test_figures_of_a_model_that_is_always_right_and_sure(examples):
    inputs = 50.0 * nn.functional.one_hot(examples.labels.numbers, 3)
    sure = Source(inputs, examples.labels)
    wrong = Source(
        inputs, Labels((examples.labels.numbers + 1) % 3, examples.class_names), clean=examples.labels.numbers
    )
    model = nn.Linear(3, 3, bias=False)
    nn.init.eye_(model.weight)
    splits = Splits(wrong, validation=wrong, test=sure, corruption=None)
    record = evaluate(Recipe.from_dict({}), splits, model)
    assert record == pytest.approx(
        {
            "test.accuracy": 1, "test.nll": 0, "test.brier": 0, "test.ece": 0, "test.adaptive_ece": 0,
            "validation.accuracy": 0, "validation.nll": 50, "memorised": 0,
        },
        abs=1e-6,
    )  # fmt: skip


def test_averaged_probabilities_are_the_posteriors_with_each_draw_once_and_ticks_at_the_mean(
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
    probs = probabilities(model, examples, batch_size=5, posterior=posterior, samples=4, seed=2, tick=tick)
    assert drawn == [0, 0, 1, 1]  # mirrored pairs
    assert ticks == [True] * 4
    torch.testing.assert_close(probs, posterior.predict(model, examples.inputs, 4, seed=2))


NORMED = {
    "model": {"name": "mlp", "hidden": [16], "batchnorm": True},
    "optimizer": {"name": "ivon", "lr": 0.1, "hess_init": 5.0},
}


@pytest.fixture(scope="module")
def normed(tmp_path_factory):
    """A finished IVON run of a network with BatchNorm, whose statistics are those of 50 training examples."""
    tree = {"data": {"limit": 120, "validation": 0.2}, "train": {"epochs": 2, "batch_size": 20}}
    settings = {"samples": 2, "batchnorm": 50, "test_limit": 100, "batch_size": 40}
    recipe = Recipe.from_dict({**NORMED, **tree, "evaluate": settings})
    return train(recipe, tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_a_finished_model_has_the_batchnorm_statistics_of_its_mean(normed):
    model, splits = normed.model(), normed.splits()
    before = {name: value.clone() for name, value in model.named_buffers()}
    inputs = splits.train.batch(torch.arange(50))
    recompute_batchnorm(model, [inputs[:40], inputs[40:]])
    for name, value in model.named_buffers():
        torch.testing.assert_close(value, before[name])
    assert not torch.equal(before["2.running_mean"], torch.zeros(16))
    rest = replace(normed.recipe, evaluate=replace(normed.recipe.evaluate, batchnorm=41))  # 40 and 1: too few for it
    assert [len(rows) for rows in statistics_batches(rest, splits, model)] == [40]


def test_each_draw_predicts_with_statistics_of_its_own(normed):
    model, splits, posterior = normed.model(), normed.splits(), normed.posterior()
    inputs = splits.train.batch(torch.arange(50))
    expected = torch.zeros(100, 10)
    for draw in range(2):
        with posterior.sample(model, draw), torch.no_grad():
            recompute_batchnorm(model, [inputs[:40], inputs[40:]])
            expected += model.eval()(splits.test.batch(torch.arange(100))).softmax(1) / 2
    how = {"batchnorm": statistics_batches(normed.recipe, splits, model), "batch_size": 40}
    model = normed.model()
    probs = probabilities(model, splits.test, posterior=posterior, samples=2, **how)
    torch.testing.assert_close(probs, expected)


def test_evaluate_gives_the_figures_of_the_run_again(normed, capsys):
    assert main(["evaluate", str(normed.path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {"test.nll", "averaged.nll", "validation.nll"} <= again.keys()
    assert again == pytest.approx({key: normed.report()[key] for key in again}, abs=1e-6)
    more = normed.evaluate(samples=64)
    assert more["test.nll"] == pytest.approx(again["test.nll"], abs=1e-6)
    assert more["averaged.nll"] != again["averaged.nll"]


def test_the_test_limit_takes_the_first_examples_and_no_more_than_there_are(tiny):
    whole, part = (prepare(tiny(evaluate={"test_limit": n})).test for n in (0, 100))
    assert (len(whole), len(part)) == (359, 100)
    assert torch.equal(part.labels.numbers, whole.labels[:100])
    with pytest.raises(InputError, match=r"test_limit = 999: digits/test has 359"):
        prepare(tiny(evaluate={"test_limit": 999}))
    with pytest.raises(InputError, match=r"\[data\] limit = 9999: digits/train has 1438; 0 takes all"):
        prepare(tiny(data={"limit": 9999}))


def test_the_seeds_of_the_data_and_of_the_noise_are_their_own(tiny):
    one, other = (prepare(tiny(train={"seed": seed})) for seed in (0, 1))
    assert torch.equal(one.train.labels.numbers, other.train.labels.numbers)
    assert one.train.ids == other.train.ids
    noise = {"name": "symmetric", "rate": 0.3, "seed": "run"}
    one, other = (prepare(tiny(train={"seed": seed}, corruption=noise)) for seed in (0, 1))
    assert one.train.ids == other.train.ids
    assert not torch.equal(one.train.labels.numbers, other.train.labels.numbers)
    moved = prepare(tiny(data={"seed": 1}))
    assert moved.train.ids != one.train.ids


def test_the_validation_split_is_as_noisy_as_the_training_set_and_the_test_set_is_clean(tiny):
    splits = prepare(tiny(data={"limit": 1000, "validation": 0.3}))
    assert not set(splits.train.ids) & set(splits.validation.ids)
    for part in (splits.train, splits.validation):
        wrong = (part.labels.numbers != part.clean).double().mean().item()
        assert wrong == pytest.approx(0.3, abs=0.05)
    assert splits.test.clean is None
