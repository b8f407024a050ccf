"""More rows than are learned from, in several pieces, here or on a cluster."""

from collections.abc import Callable

import pytest
import torch

from bayesmooth.audit import Audit, audit, embedded
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError
from bayesmooth.metrics import average_precision


def errors(made: Audit) -> float:
    """Average precision of the ranking."""
    assert made.clean is not None
    return average_precision(made.disagreement, torch.from_numpy(made.given != made.clean))


@pytest.fixture
def examples(noisy_clouds: Callable[..., Source]) -> Source:
    return noisy_clouds(0.1, count=1000, apart=8)


def learn_from_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the examples are more than are learned from, and come in several pieces."""
    monkeypatch.setattr(embedded, "SAMPLE", 300)
    monkeypatch.setattr(embedded, "ROWS_PER_CLASS", 10)
    monkeypatch.setattr(embedded, "ROWS_AT_ONCE", 128)


def test_what_is_learned_from_a_sample_finds_the_errors_of_all(
    examples: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = errors(audit(examples, quiet=True))
    learn_from_few(monkeypatch)
    made = audit(examples, quiet=True)
    assert made.summary["fitted_to"] < 350
    assert len(made) == 1000
    assert errors(made) > whole - 0.02


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_cluster_gives_the_same_ranking(
    examples: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    learn_from_few(monkeypatch)
    here = audit(examples, quiet=True)
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error")
    try:
        there = audit(examples, cluster="ray", quiet=True)
    finally:
        ray.shutdown()
    assert (here.order == there.order).all()
    with pytest.raises(InputError, match="must be one of None, ray"):
        audit(examples, cluster="dask", quiet=True)


def test_a_sample_holds_every_class_and_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SAMPLE", 100)
    monkeypatch.setattr(embedded, "ROWS_PER_CLASS", 7)
    labels = torch.cat([torch.zeros(5000), torch.ones(9), torch.full((3,), 2.0)]).long()
    rows = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0))
    chosen = embedded.choose_rows(Source(rows, Labels(labels, ("a", "b", "c"))))
    assert chosen.equal(chosen.unique())
    assert torch.bincount(labels[chosen])[1:].tolist() in ([7, 3], [8, 3], [9, 3])
    assert 100 <= len(chosen) <= 110
