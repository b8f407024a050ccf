"""The regression on principal components and the neighbours; more rows than are learned from; other models."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from bayesmooth.audit import Audit, audit, predictors
from bayesmooth.audit.predictors import Projection
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError


def sparse_rows(dims: int, share: float, count: int = 60, seed: int = 0) -> Tensor:
    """Rows of which a share of the columns is constant, as ReLU features are."""
    generator = torch.Generator().manual_seed(seed)
    used = torch.randperm(dims, generator=generator)[: max(round(dims * (1 - share)), 2)]
    rows = torch.zeros(count, dims)
    rows[:, used] = torch.randn(count, len(used), generator=generator)
    return rows


@pytest.mark.parametrize("share", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("dims", [8, 64, 512])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e12])
def test_constant_columns_never_stop_the_decomposition(dims: int, share: float, scale: float) -> None:
    for seed in range(2):
        rows = scale * sparse_rows(dims, share, seed=seed)
        features = Projection.of(rows).features(rows)
        assert features.isfinite().all()
        assert float(features[:, :-1].square().sum(1).mean()) == pytest.approx(1, rel=1e-3)


def test_rounding_far_from_zero_is_no_axis() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 3, generator=generator) @ torch.randn(3, 40, generator=generator)
    assert Projection.of(rows + 1e5).axes.shape[1] == 3


def test_a_turn_of_the_embeddings_changes_nothing(noisy_clouds: Callable[..., Source]) -> None:
    examples = noisy_clouds(0.1, count=300)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q
    turned = Source(examples.batch(torch.arange(300)) @ turn, examples.labels)
    one, two = audit(examples, quiet=True), audit(turned, quiet=True)
    np.testing.assert_allclose(one.disagreement, two.disagreement, atol=2e-3)


def errors(made: Audit) -> float:
    """Average precision of the ranking."""
    assert made.clean is not None
    return float(average_precision_score(made.given != made.clean, made.disagreement))


@pytest.fixture
def examples(noisy_clouds: Callable[..., Source]) -> Source:
    return noisy_clouds(0.1, count=1000, apart=8)


def learn_from_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the examples are more than are learned from, and come in several pieces."""
    monkeypatch.setattr(predictors, "SAMPLE", 300)
    monkeypatch.setattr(predictors, "ROWS_PER_CLASS", 10)
    monkeypatch.setattr(predictors, "ROWS_AT_ONCE", 128)


def test_what_is_learned_from_a_sample_finds_the_errors_of_all(
    examples: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = errors(audit(examples, quiet=True))
    learn_from_few(monkeypatch)
    made = audit(examples, quiet=True)
    assert made.summary["fitted_to"] < 350
    assert len(made) == 1000
    assert errors(made) > whole - 0.02


def test_a_sample_holds_every_class_and_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictors, "SAMPLE", 100)
    monkeypatch.setattr(predictors, "ROWS_PER_CLASS", 7)
    labels = torch.cat([torch.zeros(5000), torch.ones(9), torch.full((3,), 2.0)]).long()
    rows = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0))
    chosen = predictors.choose_rows(Source(rows, Labels(labels, ("a", "b", "c"))))
    assert chosen.equal(chosen.unique())
    assert torch.bincount(labels[chosen])[1:].tolist() in ([7, 3], [8, 3], [9, 3])
    assert 100 <= len(chosen) <= 110


def slipped(count: int = 600) -> tuple[Source, np.ndarray]:
    """Three clouds; of the first class all that lie on one side are called the second: a rule that can be learned. And
    what another model says of the true classes, which it often confuses."""
    generator, clean = torch.Generator().manual_seed(0), torch.arange(count) % 3
    x = 6 * torch.eye(6)[clean] + torch.randn(count, 6, generator=generator)
    moved = (clean == 0) & (x[:, 5] > 0)
    labels = torch.where(moved, 1, clean)
    noise = torch.randn(count, 3, generator=generator)
    other = (1.5 * torch.eye(3)[clean] + noise).softmax(1).numpy()
    return Source(x, Labels(labels, ("a", "b", "c")), clean), other


def test_another_model_finds_errors_that_are_always_made_the_same_way() -> None:
    examples, other = slipped()
    with_other = audit(examples, predicted=other, quiet=True)
    assert errors(with_other) > errors(audit(examples, quiet=True)) + 0.2
    assert "another model" in with_other.summary["method"]


def test_predictions_of_another_model_are_columns_that_are_not_learned_from() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas, the extra data")
    examples, other = slipped()
    frame = pandas.DataFrame(examples.inputs.numpy()).rename(columns=str)
    frame["label"] = examples.labels.texts()
    frame.loc[4, "label"] = None
    named = frame.assign(**dict(zip("bac", other[:, [1, 0, 2]].T, strict=True)))
    made = audit(named, predicted=["b", "a", "c"], quiet=True)
    assert "'a'" not in made.summary["notes"][0]
    lists = audit(frame.assign(p=list(other)), predicted="p", quiet=True)
    arrays = audit(frame, predicted=other, quiet=True)
    for same in (lists, arrays):
        np.testing.assert_allclose(same.disagreement, made.disagreement, atol=1e-5)
    with pytest.raises(InputError, match="must be 600 × 3"):
        audit(examples, predicted=other[:, :2], quiet=True)


@pytest.mark.parametrize("shape", [(30, 200), (200, 30)])
def test_principal_axes_come_from_the_smaller_side_and_are_those_of_the_larger(monkeypatch, shape):
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    centred = (rows - rows.mean(0)).double()
    largest = np.linalg.eigvalsh((centred.mT @ centred).numpy())[::-1][:25]
    sides, eigh = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda gram: sides.append(len(gram)) or eigh(gram))
    features = Projection.of(rows).features(rows)[:, :25].double()
    assert sides == [30]
    gram = features.mT @ features
    share = torch.from_numpy(largest.copy()) / centred.square().sum() * len(rows)
    torch.testing.assert_close(gram, torch.diag(share), atol=1e-4, rtol=1e-3)
