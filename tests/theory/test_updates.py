import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from bayesmooth.errors import InputError
from bayesmooth.theory.updates import COVARIANCES, Covariance

D, C, N = 70, 3, 40  # wider than a column strip


@pytest.fixture(params=COVARIANCES.values(), ids=COVARIANCES.keys())
def structure(request) -> type[Covariance]:
    return request.param


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def curvature(structure: type[Covariance]) -> torch.Tensor:
    p = torch.softmax(random(N, C), -1)
    matrix = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return matrix if structure.matrix else matrix.diagonal(dim1=-2, dim2=-1)


def dense(covariance: Covariance) -> torch.Tensor:
    """Λ as one matrix over all parameters, class by class."""
    return torch.block_diag(*covariance.precision)


@pytest.fixture
def covariance(structure) -> Covariance:
    return structure.from_curvature(random(N, D), curvature(structure), 0.3)


def test_the_precision_is_the_sum_of_kronecker_products_as_far_as_kept(structure, covariance):
    features, weights = random(N, D), curvature(structure)
    matrices = weights if structure.matrix else torch.diag_embed(weights)
    total = torch.einsum("njk,nd,ne->jdke", matrices, features, features).reshape(C * D, C * D)
    kept = dense(covariance) != 0
    expected = (total + 0.3 * torch.eye(C * D, dtype=torch.float64)) * kept
    torch.testing.assert_close(dense(covariance), expected)


def test_every_answer_is_that_of_the_dense_matrix(covariance):
    sigma = torch.linalg.inv(dense(covariance))
    g, features = random(D, C), random(N, D)
    flat = covariance.solve(g).mT.reshape(-1)
    torch.testing.assert_close(flat, sigma @ g.mT.reshape(-1))
    torch.testing.assert_close(covariance.variances(), sigma.diagonal())
    zero = torch.zeros(C * D, dtype=torch.float64)
    q, prior = MultivariateNormal(g.mT.reshape(-1), sigma), MultivariateNormal(zero, torch.eye(C * D).double() / 2)
    assert covariance.kl_divergence(g, 2.0) == pytest.approx(float(kl_divergence(q, prior)))
    blocks = sigma.reshape(C, D, C, D)
    spread = torch.einsum("nd,jdke,ne->njk", features, blocks, features)
    if not covariance.matrix:
        spread = spread.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(covariance.logit_covariance(features), spread)


def test_isotropic_and_shifted(structure, covariance):
    unit = structure.isotropic(2.0, torch.zeros(D, C, dtype=torch.float64))
    eye = torch.eye(C * D, dtype=torch.float64)
    torch.testing.assert_close(dense(unit), 2 * eye)
    torch.testing.assert_close(dense(covariance.shifted(0.5)), dense(covariance) + 0.5 * eye)


def test_a_singular_hessian_is_named_with_the_way_out():
    broken = Covariance(torch.full((1, 2, 2), torch.nan))
    with pytest.raises(InputError, match="raise prior_precision"):
        broken.variances()
    nearly = torch.ones(1, 2, 2, dtype=torch.float64)
    assert Covariance(nearly).variances().isfinite().all()  # a rounding error on the diagonal is enough
