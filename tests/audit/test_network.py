"""A user's own network, with a posterior over its weights."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from bayesmooth.audit import audit_network
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError
from bayesmooth.models import MODELS
from bayesmooth.optim import IVON
from bayesmooth.posterior import Posterior
from tests.audit.conftest import clouds


def trained(examples: Source) -> tuple[nn.Module, IVON]:
    model = MODELS["linear"](num_classes=3, input_shape=(3,), seed=0)
    optimizer = IVON(model.parameters(), lr=0.1, ess=90, hess_init=4.0, weight_decay=1e-2, seed=0)
    x, y = examples.batch(torch.arange(90)), examples.labels.numbers

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(200):
        optimizer.step(closure)
    return model, optimizer


def posterior_of(model: nn.Module, std: float = 0.1) -> Posterior:
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})


@pytest.mark.filterwarnings("ignore:a step moved the weights")  # it is a tiny model
def test_three_lines_audit_a_users_own_model() -> None:
    examples = clouds()
    model, optimizer = trained(examples)
    loader = DataLoader(TensorDataset(examples.batch(torch.arange(90)), examples.labels.numbers), batch_size=32)
    made = audit_network(model, optimizer, loader, quiet=True)
    assert {row["id"] for row in made.top(6)} == {str(i) for i in range(6)}
    other = audit_network(model, optimizer.posterior(model), examples, leave_out=True, quiet=True)
    assert {row["id"] for row in other.top(6)} == {str(i) for i in range(6)}
    assert other.class_names == examples.class_names


def test_batches_in_another_order_than_the_data_are_refused() -> None:
    examples, model = clouds(), nn.Linear(3, 3)
    data = TensorDataset(examples.batch(torch.arange(90)), examples.labels.numbers)
    chosen = SubsetRandomSampler(range(90))
    for loader in (
        DataLoader(data, 32, shuffle=True),
        DataLoader(data, 32, sampler=chosen),
        DataLoader(data, batch_sampler=[[1, 0], [2, 3]]),
        DataLoader(data, None, sampler=chosen),
    ):
        with pytest.raises(InputError, match="a DataLoader with a"):
            audit_network(model, posterior_of(model), loader, quiet=True)


def test_a_posterior_of_another_model_is_refused() -> None:
    model = nn.Linear(3, 3)
    foreign = Posterior({"w": torch.zeros(2)}, {"w": torch.ones(2)})
    with pytest.raises(InputError, match="another model"):
        audit_network(model, foreign, clouds(), quiet=True)
    with pytest.raises(InputError, match="no posterior"):
        audit_network(model, torch.optim.SGD(model.parameters()), clouds(), quiet=True)


def test_labels_beyond_the_models_classes_are_refused() -> None:
    examples = clouds()
    batch = [(examples.batch(torch.arange(90)), examples.labels.numbers + 5)]
    model = nn.Linear(3, 3)
    with pytest.raises(InputError, match="must be from 0 to 2"):
        audit_network(model, posterior_of(model), batch, quiet=True)


def test_a_network_with_batch_norm_is_audited_with_the_statistics_of_the_weights_that_predict() -> None:
    """Stale running statistics, as training under samples leaves them, must not matter."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    posterior = posterior_of(model)
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    examples = Source(inputs, Labels(torch.arange(60) % 3, ("a", "b", "c")))
    fresh = audit_network(model, posterior, examples, quiet=True).probabilities
    model[1].running_mean += 5.0
    stale = audit_network(model, posterior, examples, quiet=True).probabilities
    assert np.array_equal(fresh, stale)
    assert model[1].running_mean.mean() > 4  # and they are back afterwards
