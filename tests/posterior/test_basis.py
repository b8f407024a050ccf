"""Covariances that are not diagonal: in draws, in files, in label noise and audits."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from bayesmooth import audit
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import label_noise
from bayesmooth.optim import EVON
from bayesmooth.posterior import Basis, Posterior


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def orthogonal(side, seed=0):
    return torch.linalg.qr(random(side, side, seed=seed)).Q


@pytest.fixture
def posterior(model):
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    std = {name: 0.3 * random(*p.shape, seed=1).abs() for name, p in mean.items()}
    return Posterior(mean, std, {"weight": Basis(orthogonal(3), orthogonal(4))})


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
@pytest.mark.parametrize(("left", "right"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_entering_undoes_leaving(shape, left, right):
    basis = Basis(orthogonal(3) if left else None, orthogonal(4) if right else None)
    weight = random(*shape)
    assert basis.is_identity is (not left and not right)
    torch.testing.assert_close(basis.enter(basis.leave(weight)), weight)
    torch.testing.assert_close(basis.leave(weight).norm(), weight.norm())


def test_label_noise_has_the_variance_of_the_turned_gaussian(model, posterior):
    """Var f_k = Σ over the basis of (Q_Lₖᵢ σᵢⱼ (Q_Rᵀφ)ⱼ)², and the bias's."""
    x = random(20, 4, seed=2)
    found = label_noise(model, posterior, x, samples=2000, quiet=True).logit_variance
    left, right = posterior.bases["weight"]
    inside = (x @ right).square() @ posterior.std["weight"].square().mT
    exact = inside @ left.square().mT + posterior.std["bias"].square()
    torch.testing.assert_close(found, exact, rtol=0.2, atol=0)
    plain = Posterior(posterior.mean, posterior.std)
    diagonal = label_noise(model, plain, x, samples=2000, quiet=True).logit_variance
    assert (diagonal - exact).abs().max() > 0.5 * exact.max()


def test_a_file_brings_back_every_basis(model, posterior, tmp_path):
    posterior = Posterior(posterior.mean, posterior.std, {"weight": Basis(right=orthogonal(4))})
    posterior.save(tmp_path / "q.safetensors")
    loaded = Posterior.load(tmp_path / "q.safetensors")
    assert loaded.bases["weight"].left is None
    assert torch.equal(loaded.bases["weight"].right, posterior.bases["weight"].right)
    x = random(5, 4)
    assert torch.equal(loaded.predict(model, x, 4), posterior.predict(model, x, 4))


@pytest.mark.parametrize(
    ("name", "basis", "message"),
    [
        ("bias", Basis(left=torch.eye(3)), "bias: has a basis and is no matrix"),
        ("other", Basis(left=torch.eye(3)), "other: has a basis and is no matrix"),
        ("weight", Basis(left=torch.eye(4)), r"shape \(4, 4\); must be 3 × 3"),
        ("weight", Basis(right=2 * torch.eye(4)), "not orthogonal"),
        ("weight", Basis(right=torch.full((4, 4), float("nan"))), "not orthogonal"),
    ],
)
def test_a_basis_that_cannot_be_one_is_refused(posterior, name, basis, message):
    with pytest.raises(InputError, match=message):
        Posterior(posterior.mean, posterior.std, {name: basis})


def test_a_file_with_a_broken_basis_is_named(posterior, tmp_path):
    from safetensors.torch import load_file, save_file

    from bayesmooth.posterior.gaussian import FORMAT

    path = tmp_path / "q.safetensors"
    posterior.save(path)
    save_file({**load_file(path), "left.weight": torch.ones(3, 3)}, path, {"format": FORMAT})
    with pytest.raises(InputError, match=r"q\.safetensors: weight: its basis is not orthogonal"):
        Posterior.load(path)


def test_an_audit_takes_the_optimizer_that_learned_the_basis(model):
    x = random(60, 4, seed=3)
    labels = (x @ random(4, 3, seed=4)).argmax(1)
    optimizer = EVON(model.parameters(), 0.1, 60, epochs=80, steps=80, seed=0)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), labels)
        loss.backward()
        return loss

    for _ in range(80):
        optimizer.step(closure)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, labels), batch_size=20)
    posterior = optimizer.posterior(model)
    plain = Posterior(posterior.mean, posterior.std)
    turned, given, diagonal = (
        audit(model, q, loader, quiet=True).to_csv() for q in (optimizer, posterior, plain)
    )
    assert turned == given != diagonal
