"""Label noise of networks: every estimate is held to the exact expectation of a linear model, or to a limit."""

from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bayesmooth.calling as chunking
from bayesmooth.calling import recompute_batchnorm
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise, smoothed_labels_by_class
from bayesmooth.losses import LOSSES
from bayesmooth.models import MODELS
from bayesmooth.posterior import Posterior
from bayesmooth.theory.links import Categorical
from bayesmooth.theory.noise import expected_noise, linearised_std

K, D = 3, 4


def spread(model: nn.Module, std: float) -> Posterior:
    """The model's weights as the mean, one standard deviation for all."""
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})


def linear(seed: int = 0) -> tuple[nn.Module, Tensor]:
    model = MODELS["linear"](num_classes=K, input_shape=(D,), seed=seed)
    return model, torch.randn(40, D, generator=torch.Generator().manual_seed(seed))


def logit_variance(inputs: Tensor, std: float) -> Tensor:
    """std² (‖x‖² + 1), the same for every class of a linear model."""
    return (std**2 * (inputs.square().sum(1) + 1))[:, None].expand(-1, K).contiguous()


def integrate(logits: Tensor, cov: Tensor, labels: Tensor | None = None) -> LabelNoise:
    """The noise of logits N(logits, cov), as those of a linear model are: no sampling error."""
    noise, std = expected_noise(logits, cov, Categorical()), linearised_std(logits, cov, Categorical())
    index = torch.arange(len(logits))
    return LabelNoise(index, logits, logits.softmax(-1) - noise, noise, cov, labels, linearised_std=std)


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 8), *layers, nn.ReLU(), nn.Linear(8, K))


def test_on_a_linear_model_every_estimate_agrees_with_the_exact_expectation() -> None:
    model, x = linear()
    noise = label_noise(model, spread(model, 0.5), x, samples=2000, linearised=300, quiet=True)
    exact = integrate(model(x).detach(), logit_variance(x, 0.5))
    bound = 5 / 2000**0.5  # five standard errors of a variable within [−1, 1]
    assert (noise.expected - exact.expected).abs().max() < 0.3 * bound
    assert (noise.averaged - exact.averaged).abs().max() < 0.3 * bound
    assert noise.linearised_std is not None
    assert exact.linearised_std is not None
    assert (noise.linearised_std / exact.linearised_std - 1).abs().max() < 5 / 600**0.5
    assert (noise.logit_variance / exact.logit_variance - 1).abs().max() < 2 * bound


def test_the_sampled_noise_averages_to_the_expected_noise() -> None:
    model, x = linear()
    draws = [label_noise(model, spread(model, 0.5), x, samples=2, seed=s, quiet=True).sampled for s in range(200)]
    mean = torch.stack([d for d in draws if d is not None]).mean(0)
    exact = integrate(model(x).detach(), logit_variance(x, 0.5)).expected
    assert (mean - exact).abs().max() < 5 * 0.35 / 200**0.5


def test_the_linearised_draw_is_the_sampled_draw_to_first_order() -> None:
    model = network()
    x = torch.randn(20, D)
    gaps = []
    for std in (1e-2, 1e-3):
        noise = label_noise(model, spread(model, std), x, samples=2, linearised=1, quiet=True)
        assert noise.sampled is not None
        assert noise.linearised is not None
        gaps.append(float((noise.sampled - noise.linearised).norm() / noise.sampled.norm()))
    assert gaps[1] < 0.3 * gaps[0] < 0.03


def test_the_mean_and_each_draw_have_batchnorm_statistics_of_their_own() -> None:
    model, x = network(nn.BatchNorm1d(8)), torch.randn(64, D)
    q, before = spread(model, 0.3), {n: v.clone() for n, v in model.state_dict().items()}
    noise = label_noise(model, q, x, samples=4, linearised=2, batchnorm=[x], quiet=True)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    model.eval()
    with torch.no_grad():
        recompute_batchnorm(model, [x])
        torch.testing.assert_close(noise.logits, model(x))
        at_mean = label_noise(model, q, x, samples=4, linearised=2, quiet=True)
        draws = []
        for number in range(4):
            with q.sample(model, number):
                recompute_batchnorm(model, [x])
                draws.append(model(x).softmax(-1))
    torch.testing.assert_close(noise.averaged, torch.stack(draws).mean(0), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(noise.averaged, at_mean.averaged, atol=1e-2)
    torch.testing.assert_close(noise.linearised, at_mean.linearised)  # the mean's statistics


class Wordy(nn.Module):
    """Calls like Hugging Face's: keywords in, an object out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: Tensor, scale: float) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inner(features * scale))


def test_dicts_go_in_and_objects_with_logits_come_out() -> None:
    model, x = network(), torch.randn(9, D)
    net, labels = Wordy(model), torch.arange(9) % K
    loader = [{"features": x[i : i + 4], "scale": 1.0, "labels": labels[i : i + 4]} for i in (0, 4, 8)]
    noise = label_noise(net, spread(net, 0.1), loader, linearised=2, quiet=True)
    plain = label_noise(model, spread(model, 0.1), x, linearised=2, quiet=True)
    assert noise.label is not None
    assert noise.label.equal(labels)
    for column in ("index", "logits", "expected", "linearised"):
        torch.testing.assert_close(getattr(noise, column), getattr(plain, column))


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 50), st.integers(0, 5), st.integers(1, 4096))
def test_cutting_the_data_otherwise_changes_nothing(batch: int, seed: int, chunk: int) -> None:
    model, x = linear()
    labels = torch.arange(len(x)) % K
    examples = Source(x, Labels(labels, ("a", "b", "c")))
    whole = label_noise(model, spread(model, 0.3), examples, seed=seed, quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "CHUNK_BYTES", chunk)
        loader = DataLoader(TensorDataset(x, labels), batch_size=batch)
        cut = label_noise(model, spread(model, 0.3), loader, seed=seed, quiet=True)
    torch.testing.assert_close(cut.expected, whole.expected, atol=1e-6, rtol=1e-4)
    assert cut.label is not None
    assert cut.label.equal(labels)
    assert cut.index.equal(whole.index)


def test_noise_sums_to_zero_and_smoothed_labels_to_one() -> None:
    model, x = linear()
    examples = Source(x, Labels(torch.arange(len(x)) % K, ("a", "b", "c")))
    noise = label_noise(model, spread(model, 0.5), examples, quiet=True)
    assert float(noise.expected.sum(1).abs().max()) < 1e-6
    torch.testing.assert_close(noise.smoothed.sum(1), torch.ones(len(x)))
    assert noise.true_class.equal(noise.expected.gather(1, examples.labels[:, None]).squeeze(1))
    assert float(noise.magnitude.max()) <= 1
    assert "40 examples × 3 classes" in repr(noise)


def test_a_confident_correct_example_has_its_label_smoothed_below_one() -> None:
    logits = torch.tensor([[3.0, 0.0, -1.0]])
    noise = integrate(logits, torch.ones(1, 3), torch.tensor([0]))
    torch.testing.assert_close(noise.expected, torch.tensor([[0.058, -0.040, -0.018]]), atol=1e-3, rtol=0)
    assert 0 < float(noise.smoothed[0, 0]) < 1


def test_smoothed_labels_by_class_put_losses_and_the_posterior_on_one_axis() -> None:
    logits, labels = torch.randn(60, K), torch.arange(60) % K
    noise = integrate(logits, torch.ones(60, K), labels)
    methods = {"ce": LOSSES["ce"](), "ls": LOSSES["ls"](alpha=0.3), "variational": noise}
    rows = smoothed_labels_by_class(methods, logits, labels)
    torch.testing.assert_close(rows["ce"], torch.eye(K), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows["ls"], 0.7 * torch.eye(K) + 0.1, atol=1e-6, rtol=0)
    torch.testing.assert_close(rows["variational"][1], noise.smoothed[labels == 1].mean(0))


def test_what_a_user_can_get_wrong_is_said() -> None:
    model, x = linear()
    q = spread(model, 0.1)
    with pytest.raises(InputError, match="mirrored pairs"):
        label_noise(model, q, x, samples=3, quiet=True)
    with pytest.raises(InputError, match="another model"):
        label_noise(network(), q, x, quiet=True)
    with pytest.raises(InputError, match="no labels"):
        _ = label_noise(model, q, x, quiet=True).smoothed
    with pytest.raises(InputError, match="must be \\(inputs, labels\\)"):
        label_noise(model, q, [x], quiet=True)
    with pytest.raises(InputError, match="is empty"):
        label_noise(model, q, [], quiet=True)
    with pytest.raises(InputError, match="is empty"):
        label_noise(model, q, x[:0], quiet=True)
    for wrong in ({"linearised": -1}, {"batch_size": 0}):
        with pytest.raises(InputError, match="must be ≥ 0, and ≥ 1"):
            label_noise(model, q, x, quiet=True, **wrong)
    binary = nn.Linear(D, 1)
    with pytest.raises(InputError, match="classes ≥ 2"):
        label_noise(binary, spread(binary, 0.1), x, quiet=True)


class Stream(IterableDataset):
    """A data set that cannot say how long it is."""

    def __init__(self, *columns: torch.Tensor) -> None:
        self.columns = columns

    def __iter__(self):
        return iter(zip(*self.columns, strict=True))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_a_stream_and_labels_of_every_width_are_read(kind: torch.dtype) -> None:
    model, x = linear()
    posterior, labels = spread(model, 0.1), torch.arange(len(x)) % 2
    wanted = label_noise(model, posterior, [(x, labels)], quiet=True)
    loader = DataLoader(Stream(x, labels.to(kind)), batch_size=3)
    noise = label_noise(model, posterior, loader, quiet=True)
    assert noise.label is not None
    assert noise.label.equal(labels)
    torch.testing.assert_close(noise.expected, wanted.expected)
    with pytest.raises(InputError, match=r"labels are torch\.float32: must be whole numbers"):
        label_noise(model, posterior, [(x, labels.float())], quiet=True)


def test_logits_of_several_axes_are_refused() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(InputError, match=r"logits of shape \(4, 5, 3\): must be"):
        label_noise(model, spread(model, 0.1), torch.zeros(4, 5, 2), samples=2, quiet=True)
