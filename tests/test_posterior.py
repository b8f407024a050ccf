from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesmooth import metrics
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import label_noise
from bayesmooth.optim import IVON
from bayesmooth.posterior import Posterior, batchnorm, calling, recompute_batchnorm
from bayesmooth.posterior.gaussian import FORMAT
from bayesmooth.theory import Bernoulli, Gaussian, Poisson


def gaussian(model, std=0.1):
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)


def batchnorm_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def logit_network(outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def weights_of(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def test_draws_have_the_mean_and_the_spread_they_should(model):
    posterior, draws = gaussian(model, 0.3), []
    for index in range(2000):
        with posterior.sample(model, index):
            draws.append(weights_of(model))
    stacked = torch.stack(draws)
    mean = torch.cat([m.flatten() for m in posterior.mean.values()])
    assert ((stacked.mean(0) - mean).abs() < 4.5 * 0.3 / 2000**0.5).all()
    assert ((stacked.std(0) - 0.3).abs() < 4.5 * 0.3 / 4000**0.5).all()


def test_weights_and_storage_come_back_also_after_an_exception(model):
    before, places = weights_of(model), [p.data_ptr() for p in model.parameters()]

    def fails():
        with gaussian(model).sample(model):
            assert not torch.equal(weights_of(model), before)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(weights_of(model), before)
    assert [p.data_ptr() for p in model.parameters()] == places


def test_antithetic_draws_are_mirrored(model):
    posterior, pair = gaussian(model), []
    for index in (4, 5):
        with posterior.sample(model, index, antithetic=True):
            pair.append(weights_of(model))
    mean = torch.cat([m.flatten() for m in posterior.mean.values()])
    assert torch.allclose((pair[0] + pair[1]) / 2, mean, atol=1e-6)


def test_the_average_is_the_average_of_the_draws_softmax(model):
    posterior, x = gaussian(model), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    by_hand = []
    for index in range(6):
        with posterior.sample(model, index, seed=2), torch.no_grad():
            by_hand.append(model(x).softmax(-1))
    averaged = posterior.predict(model, x, 6, antithetic=False, seed=2)
    assert torch.allclose(averaged, torch.stack(by_hand).mean(0), atol=1e-6)


def test_batches_give_what_the_whole_gives(model):
    posterior, x = gaussian(model), torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(
        posterior.predict(model, x, 4), posterior.predict(model, x.split(4), 4), atol=1e-6
    )


def test_a_linear_model_averages_to_the_exact_expectation(model):
    """On a linear softmax model the averaged prediction is the Gaussian integral over its logits."""
    posterior, x = gaussian(model, 0.5), torch.ones(1, 4)
    exact = torch.zeros(3)
    n = 200_000
    f = model(x).detach() + 0.5 * 5**0.5 * torch.randn(
        n, 3, generator=torch.Generator().manual_seed(0)
    )
    exact = f.softmax(-1).mean(0)
    averaged = posterior.predict(model, x, 4000)[0]
    assert torch.allclose(averaged, exact, atol=4 * 0.3 / 4000**0.5)


def test_prediction_keeps_mode_statistics_and_gradients_as_they_were():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    net[2].eval()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    averaged = gaussian(net).predict(net, x, 4, batchnorm=[x])
    assert not averaged.requires_grad
    assert net.training
    assert not net[2].training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(averaged, gaussian(net).predict(net, x, 4, batchnorm=[x]))  # dropout is off


def test_statistics_recomputed_at_the_mean_are_those_of_the_mean():
    """Under samples the running variance holds the noise too; recomputed it is the data's own."""
    net = batchnorm_network()
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    optimizer = IVON(net.parameters(), 0.0, 10, hess_init=0.5, seed=0)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(50):
        optimizer.step(closure)
    truth = net[0](x).var(0).detach()
    assert (net[1].running_var / truth).mean() > 1.5
    recompute_batchnorm(net, [x])
    assert torch.allclose(net[1].running_var, truth, rtol=1e-4)


def test_each_draw_can_have_its_own_statistics():
    net = batchnorm_network()
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    posterior, by_hand = gaussian(net, 0.3), []
    for index in range(4):
        with posterior.sample(net, index), torch.no_grad():
            recompute_batchnorm(net, [x])
            by_hand.append(net.eval()(x).softmax(-1))
    own = posterior.predict(net, x, 4, antithetic=False, batchnorm=[x])
    assert torch.allclose(own, torch.stack(by_hand).mean(0), atol=1e-6)
    assert not torch.allclose(own, posterior.predict(net, x, 4, antithetic=False), atol=1e-2)


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


def test_a_file_brings_back_every_bit(model, tmp_path):
    posterior = gaussian(model)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = Posterior.load(tmp_path / "posterior.safetensors")
    for part in ("mean", "std"):
        one, two = getattr(posterior, part), getattr(loaded, part)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_loaded_posterior_draws_what_the_saved_one_drew(tmp_path):
    # Whose names a file puts in another order.
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    posterior, x = gaussian(net), torch.ones(2, 4)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = Posterior.load(tmp_path / "posterior.safetensors")
    assert list(loaded.mean) != list(posterior.mean)
    assert torch.equal(loaded.predict(net, x, 4), posterior.predict(net, x, 4))


@pytest.mark.parametrize("content", [b"", b"not a posterior", b"\x00" * 100])
def test_a_file_that_is_no_posterior_is_named(tmp_path, content):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"odd\.safetensors: cannot be read"):
        Posterior.load(path)


def test_another_files_tensors_are_not_taken_for_a_posterior(tmp_path):
    from safetensors.torch import save_file

    save_file({"a.b": torch.zeros(1)}, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match="format None"):
        Posterior.load(tmp_path / "odd.safetensors")


def test_a_posterior_of_another_model_is_refused_before_anything_changes(model):
    posterior = gaussian(nn.Linear(4, 5))
    before = weights_of(model)
    with pytest.raises(InputError, match="belongs to another model"), posterior.sample(model):
        pass
    with pytest.raises(InputError, match="belongs to another model"):
        gaussian(nn.Sequential(nn.Linear(4, 3))).predict(model, torch.zeros(1, 4))
    assert torch.equal(weights_of(model), before)


def test_nonsense_is_refused(model):
    good = gaussian(model)
    with pytest.raises(InputError, match="samples=0"):
        good.predict(model, torch.zeros(1, 4), 0)
    with pytest.raises(InputError, match="only a mean or only a std"):
        Posterior(good.mean, {})
    with pytest.raises(InputError, match="negative entries"):
        Posterior(good.mean, {name: -s for name, s in good.std.items()})
    with pytest.raises(InputError, match="must be equal"):
        Posterior(good.mean, {name: torch.zeros(1, 9) for name in good.std})


@pytest.mark.parametrize(
    ("dtype", "found"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_averaged_probabilities_sum_to_one_whatever_the_models_dtype(model, dtype, found):
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    averaged = gaussian(model.to(dtype), 0.01).predict(model, x, 64)
    assert averaged.dtype == found
    torch.testing.assert_close(averaged.sum(1), torch.ones(200, dtype=found))
    assert 0 <= metrics.accuracy(averaged, torch.zeros(200, dtype=torch.int64)) <= 1


@pytest.mark.parametrize("kind", [list, iter])
def test_each_draw_is_made_once_for_all_batches(model, kind, monkeypatch):
    q, x = gaussian(model), torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    by_batch = torch.cat([q.predict(model, part, 4) for part in x.split(2)])
    drawn, real = [], Posterior.deviations

    def counted(self, model, index, **how):
        drawn.append(index)
        return real(self, model, index, **how)

    monkeypatch.setattr(Posterior, "deviations", counted)
    assert torch.equal(q.predict(model, kind(x.split(2)), 4), by_batch)
    assert drawn == [0, 0, 1, 1]  # mirrored pairs


def test_batches_are_read_once_and_no_more_than_a_chunk_ahead(model, monkeypatch):
    x, read, held = torch.zeros(2, 4), [], []
    monkeypatch.setattr(calling, "CHUNK_BYTES", 3 * x.nbytes)

    def batches():
        for number in range(8):
            read.append(number)
            yield x

    averaged = gaussian(model).predict(model, batches(), 2, tick=lambda: held.append(len(read)))
    assert averaged.shape == (16, 3)
    assert held == [3, 3, 6, 6, 8, 8]
    assert read == list(range(8))


def test_a_missing_folder_is_made_and_a_file_in_its_way_is_named(model, tmp_path):
    path = tmp_path / "results" / "today" / "posterior.safetensors"
    gaussian(model).save(path)
    assert [p.name for p in path.parent.iterdir()] == ["posterior.safetensors"]
    with pytest.raises(InputError, match=r"posterior\.safetensors: cannot be made.*another place"):
        gaussian(model).save(path / "below.safetensors")
    assert Posterior.load(path).mean.keys() == gaussian(model).mean.keys()


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5])
def test_a_seed_that_no_generator_takes_is_refused(model, seed):
    with pytest.raises(InputError, match=r"seed=.*: must be a whole number from 0 to 2⁶³ − 1"):
        gaussian(model).predict(model, torch.zeros(1, 4), 2, seed=seed)


def test_between_two_draws_the_weights_are_back(model):
    before, seen = weights_of(model), []
    gaussian(model).predict(
        model, torch.zeros(1, 4), 3, tick=lambda: seen.append(weights_of(model))
    )
    assert len(seen) == 3
    assert all(torch.equal(weights, before) for weights in seen)


def test_batches_for_batchnorm_that_would_run_out_are_refused():
    net, x = batchnorm_network(), torch.zeros(5, 4)
    with pytest.raises(InputError, match="a generator is empty after the first draw; give a list"):
        gaussian(net).predict(net, x, 4, batchnorm=(part for part in [x]))
    with pytest.raises(InputError, match="no batches"):
        gaussian(net).predict(net, [], 4)


@pytest.mark.parametrize(
    "link", [Bernoulli(), Gaussian(), Poisson()], ids=lambda k: type(k).__name__
)
def test_the_average_is_that_of_the_links_mean(link):
    net, x = logit_network(1), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    q, by_hand = gaussian(net), []
    for index in range(4):
        with q.sample(net, index), torch.no_grad():
            by_hand.append(link.mean(net(x)))
    averaged = q.predict(net, x, 4, antithetic=False, link=link)
    torch.testing.assert_close(averaged, torch.stack(by_hand).mean(0))


@pytest.mark.parametrize("squeeze", [False, True])
def test_a_softmax_over_one_output_is_refused_as_it_would_always_be_one(squeeze):
    net = logit_network(1)
    if squeeze:
        net.append(nn.Flatten(0))
    with pytest.raises(InputError, match=r"classes ≥ 2\); use link=Bernoulli"):
        gaussian(net).predict(net, torch.zeros(5, 4))


class Wordy(nn.Module):
    """Calls like Hugging Face's: keywords in, an object out."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, features, scale=1.0):
        return SimpleNamespace(logits=self.inner(features * scale))


def test_dicts_go_in_and_objects_with_logits_come_out(model):
    net, x = Wordy(model), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    plain = gaussian(model).predict(model, 2 * x, 4)
    batch = {"features": x, "scale": 2.0, "labels": torch.zeros(6)}
    assert torch.equal(gaussian(net).predict(net, batch, 4), plain)
    halves = [{"features": half, "scale": 2.0} for half in x.split(3)]
    torch.testing.assert_close(gaussian(net).predict(net, halves, 4), plain)


def test_a_loaders_batches_will_do_and_what_is_no_batch_is_named(model):
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    q = gaussian(model)
    torch.testing.assert_close(q.predict(model, loader, 4), q.predict(model, x, 4))
    with pytest.raises(InputError, match="a batch is a str"):
        q.predict(model, ["x"], 4)
    tuples = nn.Sequential(nn.Linear(4, 3), nn.AdaptiveMaxPool1d(2, return_indices=True))
    with pytest.raises(
        InputError, match=r"returned a tuple: must be logits, or an object .* \.logits"
    ):
        gaussian(tuples).predict(tuples, x, 4)


def compiled(model):
    return torch.compile(model, backend="eager")


def parallel(model):
    return nn.Sequential(OrderedDict(module=model))  # the names that DDP gives


@pytest.mark.parametrize("wrap", [compiled, parallel])
def test_a_posterior_follows_its_model_into_a_wrapper_and_out(wrap):
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


def test_weights_that_share_memory_are_refused():
    memory = torch.arange(12.0)
    net = nn.ParameterDict({"a": nn.Parameter(memory[:8]), "b": nn.Parameter(memory[4:])})
    with pytest.raises(InputError, match="a and b: share memory"), gaussian(net).sample(net):
        pass
    wide = nn.ParameterDict({"a": nn.Parameter(torch.zeros(1).expand(3))})
    with pytest.raises(InputError, match="a: share memory"), gaussian(wide).at_mean(wide):
        pass
    apart = nn.ParameterDict({"a": nn.Parameter(memory[0::2]), "b": nn.Parameter(memory[1::2])})
    with gaussian(apart).sample(apart):
        assert not torch.equal(memory, torch.arange(12.0))
    assert torch.equal(memory, torch.arange(12.0))


def test_weights_moved_inside_a_context_are_the_mean_afterwards(model):
    before, q = model.weight.detach().clone(), gaussian(model)
    with q.sample(model):
        model.weight.data = model.weight.data.clone()
    assert torch.equal(model.weight, before)
    with q.sample(model):
        model.double()
    assert torch.equal(model.weight, before.double())


def test_weights_replaced_inside_a_context_are_an_error(model):
    q = gaussian(model)
    with pytest.raises(InputError, match="weight: was replaced"), q.sample(model):
        model.weight = nn.Parameter(model.weight.detach().clone())


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("mean", float("nan"), "the mean has NaN or infinite entries"),
        ("std", float("inf"), "the std has NaN or infinite entries"),
        ("std", float("nan"), "the std has NaN or infinite entries"),
    ],
)
def test_numbers_that_are_none_are_refused_also_in_a_file(model, tmp_path, part, value, message):
    from safetensors.torch import save_file

    good = gaussian(model)
    parts = {"mean": dict(good.mean), "std": dict(good.std)}
    parts[part]["weight"] = torch.full((3, 4), value)
    with pytest.raises(InputError, match=f"weight: {message}"):
        Posterior(**parts)
    path = tmp_path / "q.safetensors"
    tensors = {f"{p}.{n}": t for p, values in parts.items() for n, t in values.items()}
    save_file(tensors, path, {"format": FORMAT})
    with pytest.raises(InputError, match=rf"q\.safetensors: weight: {message}"):
        Posterior.load(path)


@pytest.mark.parametrize("key", ["weight", "mean.", "sigma.weight"])
def test_odd_entries_of_a_file_are_named(tmp_path, key):
    from safetensors.torch import save_file

    save_file({key: torch.zeros(2)}, tmp_path / "q.safetensors", {"format": FORMAT})
    with pytest.raises(InputError, match=f"has an entry '{key}'"):
        Posterior.load(tmp_path / "q.safetensors")


def test_odd_keys_and_values_are_named():
    with pytest.raises(InputError, match="0: must be the name of a parameter"):
        Posterior({0: torch.zeros(1), "a": torch.zeros(1)}, {0: torch.zeros(1)})
    with pytest.raises(InputError, match="a: the mean must be a tensor of floating-point numbers"):
        Posterior({"a": [1.0]}, {"a": torch.zeros(1)})
    with pytest.raises(InputError, match="a: the std must be a tensor of floating-point numbers"):
        Posterior({"a": torch.zeros(1)}, {"a": torch.zeros(1, dtype=torch.int64)})


def test_means_that_are_views_of_one_buffer_are_saved(tmp_path):
    flat = torch.arange(6.0)
    q = Posterior({"a": flat[:4], "b": flat[2:]}, {"a": torch.ones(4), "b": torch.ones(4)})
    q.save(tmp_path / "q.safetensors")
    assert torch.equal(Posterior.load(tmp_path / "q.safetensors").mean["b"], flat[2:])


def test_predictions_draw_noise_that_training_and_evaluation_never_drew(model):
    """Else the draws that predict are those that the weights were fitted under."""
    optimizer = IVON(model.named_parameters(), 0.0, 100, beta2=1.0, seed=3)
    q, mean = optimizer.posterior(), weights_of(model)
    noise = {}
    for step in range(3):
        for train in (True, False):
            with optimizer.sampled_params(train=train):
                noise[step, train] = weights_of(model) - mean
                if train:
                    model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for index in range(4):
        with q.sample(model, index, seed=3):
            drawn = weights_of(model) - mean
        assert not any(torch.allclose(drawn.abs(), e.abs(), atol=1e-4) for e in noise.values())


def test_statistics_are_computed_once_per_draw_however_many_chunks(monkeypatch):
    net, x = batchnorm_network(), torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    q, computed, real = gaussian(net, 0.3), [], recompute_batchnorm
    whole = q.predict(net, x, 4, batchnorm=[x])
    monkeypatch.setattr(calling, "CHUNK_BYTES", 1)
    monkeypatch.setattr(
        batchnorm, "recompute_batchnorm", lambda *given: [computed.append(1), real(*given)]
    )
    torch.testing.assert_close(q.predict(net, x.split(16), 4, batchnorm=[x]), whole)
    assert len(computed) == 4


def test_statistics_that_cannot_be_recomputed_stay_what_they_were():
    net = batchnorm_network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(InputError, match="no batch for BatchNorm"):
        recompute_batchnorm(net, [])
    with pytest.raises(RuntimeError):
        recompute_batchnorm(net, [torch.zeros(5, 4), torch.zeros(5, 3)])
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net[1].momentum == 0.1


def test_held_out_labels_choose_the_scale_of_sigma(model):
    """Noise without use is taken out where labels say so, and kept where they are as random as the noise makes them."""
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    wide = Posterior(mean, {name: torch.full_like(p, 3.0) for name, p in mean.items()})
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        sure = model(inputs).argmax(-1)
    chosen = wide.scaled(model, [(inputs, sure)], samples=8)
    assert all(not std.any() for std in chosen.std.values())
    assert chosen.mean is wide.mean
    known = wide.scaled(model, [(inputs, sure)], samples=2, scales=(1.0,))
    assert all(torch.equal(known.std[name], std) for name, std in wide.std.items())
