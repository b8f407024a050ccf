"""The Gaussian over weights: draws, averages, files."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from bayesmooth import metrics
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import label_noise
from bayesmooth.optim import IVON
from bayesmooth.posterior import FORMAT, Posterior
from bayesmooth.theory import Bernoulli, Categorical, Gaussian
from tests.conftest import weights_of


def logit_network(outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def test_draws_have_the_mean_and_the_spread_they_should(model, gaussian):
    posterior, draws = gaussian(model, 0.3), []
    for index in range(0, 4000, 2):  # one of each mirrored pair
        with posterior.sample(model, index):
            draws.append(weights_of(model))
    stacked = torch.stack(draws)
    mean = torch.cat([m.flatten() for m in posterior.mean.values()])
    assert ((stacked.mean(0) - mean).abs() < 4.5 * 0.3 / 2000**0.5).all()
    assert ((stacked.std(0) - 0.3).abs() < 4.5 * 0.3 / 4000**0.5).all()


def test_weights_and_storage_come_back_also_after_an_exception(model, gaussian):
    before, places = weights_of(model), [p.data_ptr() for p in model.parameters()]

    def fails():
        with gaussian(model).sample(model):
            assert not torch.equal(weights_of(model), before)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(weights_of(model), before)
    assert [p.data_ptr() for p in model.parameters()] == places


def test_draws_come_in_mirrored_pairs(model, gaussian):
    posterior, pair = gaussian(model), []
    for index in (4, 5):
        with posterior.sample(model, index):
            pair.append(weights_of(model))
    mean = torch.cat([m.flatten() for m in posterior.mean.values()])
    assert torch.allclose((pair[0] + pair[1]) / 2, mean, atol=1e-6)


def test_frozen_weights_are_points(model):
    model.bias.requires_grad_(False)
    optimizer = IVON(model.parameters(), 0.1, 10, seed=0)
    posterior = optimizer.posterior(model)
    assert list(posterior.mean) == ["weight"]
    bias = model.bias.clone()
    with posterior.sample(model):
        assert torch.equal(model.bias, bias)


def test_the_optimizers_posterior_is_what_it_samples(model):
    optimizer = IVON(model.named_parameters(), 0.1, 10, hess_init=0.5, weight_decay=0.1, seed=0)
    posterior = optimizer.posterior()
    assert torch.equal(posterior.mean["weight"], model.weight)
    assert torch.allclose(posterior.std["bias"], torch.full((3,), (10 * 0.6) ** -0.5))
    nameless = IVON(model.parameters(), 0.1, 10)
    with pytest.raises(InputError, match=r"posterior\(model\)"):
        nameless.posterior()
    assert nameless.posterior(model).mean.keys() == posterior.mean.keys()


def test_a_file_brings_back_every_bit(model, tmp_path, gaussian):
    posterior = gaussian(model)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = Posterior.load(tmp_path / "posterior.safetensors")
    for part in ("mean", "std"):
        one, two = getattr(posterior, part), getattr(loaded, part)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_disk_that_fills_up_is_an_error(model, tmp_path, gaussian, limit_files):
    limit_files(100)
    with pytest.raises(InputError, match="cannot be written: File too large"):
        gaussian(model).save(tmp_path / "posterior.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a posterior", b"\x00" * 100])
def test_a_file_that_is_no_posterior_is_named(tmp_path, content):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"odd\.safetensors: not a posterior that can be read"):
        Posterior.load(path)


def test_a_posterior_of_another_model_is_refused_before_anything_changes(model, gaussian):
    posterior = gaussian(nn.Linear(4, 5))
    before = weights_of(model)
    with pytest.raises(InputError, match="belongs to another model"), posterior.sample(model):
        pass
    with pytest.raises(InputError, match="belongs to another model"):
        gaussian(nn.Sequential(nn.Linear(4, 3))).predict(model, torch.zeros(1, 4))
    assert torch.equal(weights_of(model), before)


def test_nonsense_is_refused(model, gaussian):
    good = gaussian(model)
    with pytest.raises(InputError, match="samples=0"):
        good.predict(model, torch.zeros(1, 4), 0)
    with pytest.raises(InputError, match="only a mean or only a std"):
        Posterior(good.mean, {})
    with pytest.raises(InputError, match="must be equal"):
        Posterior(good.mean, {name: torch.zeros(1, 9) for name in good.std})


@pytest.mark.parametrize(("dtype", "found"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_averaged_probabilities_sum_to_one_whatever_the_models_dtype(model, dtype, found, gaussian):
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    averaged = gaussian(model.to(dtype), 0.01).predict(model, x, 64)
    assert averaged.dtype == found
    torch.testing.assert_close(averaged.sum(1), torch.ones(200, dtype=found))
    assert 0 <= metrics.accuracy(averaged, torch.zeros(200, dtype=torch.int64)) <= 1


@pytest.mark.parametrize("link", [Categorical(), Bernoulli(), Gaussian()], ids=lambda k: type(k).__name__)
def test_the_average_is_that_of_the_links_mean(link, gaussian):
    net, x = logit_network(3), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    q, by_hand = gaussian(net), []
    for index in range(4):
        with q.sample(net, index), torch.no_grad():
            by_hand.append(link.mean(net(x)))
    averaged = q.predict(net, x, 4, link=link)
    torch.testing.assert_close(averaged, torch.stack(by_hand).mean(0))


@pytest.mark.parametrize("squeeze", [False, True])
def test_a_softmax_over_one_output_is_refused_as_it_would_always_be_one(squeeze, gaussian):
    net = logit_network(1)
    if squeeze:
        net.append(nn.Flatten(0))
    with pytest.raises(InputError, match=r"classes ≥ 2\); use link=Bernoulli"):
        gaussian(net).predict(net, torch.zeros(5, 4))


def compiled(model):
    return torch.compile(model, backend="eager")


def parallel(model):
    return nn.Sequential(OrderedDict(module=model))  # the names that DDP gives


@pytest.mark.parametrize("wrap", [compiled, parallel])
def test_a_posterior_follows_its_model_into_a_wrapper_and_out(wrap, gaussian):
    net, x = logit_network(3), torch.ones(2, 4)
    wrapped, plain = wrap(net), gaussian(net).predict(net, x, 4)
    assert [*gaussian(wrapped).mean] != [*gaussian(net).mean]
    assert torch.equal(gaussian(net).predict(wrapped, x, 4), plain)
    assert torch.equal(gaussian(wrapped).predict(net, x, 4), plain)
    torch.testing.assert_close(
        label_noise(wrapped, gaussian(net), x, linearised=2, quiet=True).linearised,
        label_noise(net, gaussian(net), x, linearised=2, quiet=True).linearised,
    )


def test_a_posterior_may_name_a_tied_weight_by_either_name():
    net = nn.ModuleDict({"read": nn.Linear(4, 4, bias=False), "write": nn.Linear(4, 4, bias=False)})
    net["write"].weight = net["read"].weight
    before = net["read"].weight.detach().clone()
    for name in ("read.weight", "write.weight"):
        q = Posterior({name: before}, {name: torch.ones(4, 4)})
        with q.sample(net):
            assert not torch.equal(net["read"].weight, before)
            assert net["read"].weight is net["write"].weight
        assert torch.equal(net["read"].weight, before)


def test_weights_moved_inside_a_context_are_the_mean_afterwards(model, gaussian):
    before, q = model.weight.detach().clone(), gaussian(model)
    with q.sample(model):
        model.weight.data = model.weight.data.clone()
    assert torch.equal(model.weight, before)
    with q.sample(model):
        model.double()
    assert torch.equal(model.weight, before.double())


@pytest.mark.parametrize(
    ("part", "value"), [("mean", float("nan")), ("std", float("inf")), ("std", float("nan")), ("std", -1.0)]
)
def test_numbers_that_are_none_are_refused_also_in_a_file(model, tmp_path, part, value, gaussian):
    from safetensors.torch import save_file

    good = gaussian(model)
    parts = {"mean": dict(good.mean), "std": dict(good.std)}
    parts[part]["weight"] = torch.full((3, 4), value)
    with pytest.raises(InputError, match="weight: mean and std must be finite"):
        Posterior(**parts)
    path = tmp_path / "q.safetensors"
    tensors = {f"{p}.{n}": t for p, values in parts.items() for n, t in values.items()}
    save_file(tensors, path, {"format": FORMAT})
    with pytest.raises(InputError, match=r"q\.safetensors: weight: mean and std must be finite"):
        Posterior.load(path)


def test_means_that_are_views_of_one_buffer_are_saved(tmp_path):
    flat = torch.arange(6.0)
    q = Posterior({"a": flat[:4], "b": flat[2:]}, {"a": torch.ones(4), "b": torch.ones(4)})
    q.save(tmp_path / "q.safetensors")
    assert torch.equal(Posterior.load(tmp_path / "q.safetensors").mean["b"], flat[2:])


def test_weights_that_share_memory_are_refused(gaussian):
    memory = torch.arange(12.0)
    net = nn.ParameterDict({"a": nn.Parameter(memory[:8]), "b": nn.Parameter(memory[4:])})
    with pytest.raises(InputError, match="a and b: share memory"), gaussian(net).sample(net):
        pass
    wide = nn.ParameterDict({"a": nn.Parameter(torch.zeros(1).expand(3))})
    with pytest.raises(InputError, match="a: share memory"), gaussian(wide).at_mean(wide):
        pass


def test_autocast_sees_every_draw(model, gaussian):
    """It keeps the weights that it has cast, and draws are written in place."""
    q, x = gaussian(model, 0.5), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    mirrored = q.predict(model, x, 8)
    noise = label_noise(model, q, x, linearised=2, quiet=True)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        torch.testing.assert_close(q.predict(model, x, 8), mirrored, atol=0.02, rtol=0)
        cast = label_noise(model, q, x, linearised=2, quiet=True)
        with torch.no_grad():
            at_mean = model(x).float()
    torch.testing.assert_close(at_mean, model(x).detach(), atol=0.03, rtol=0.02)
    for column in ("expected", "logit_variance", "linearised_std"):
        torch.testing.assert_close(getattr(cast, column), getattr(noise, column), atol=0.02, rtol=0.1)
