from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bayesmooth.audit.table import Audit
from bayesmooth.data import Labels, Source, corrupt
from tests.audit.browser import driver, reader  # noqa: F401


def make_audit(count: int = 300, classes: int = 4, **changes: Any) -> Audit:
    """A made-up audit: example i is of class i mod K, and one in ten looks like the next class."""
    rng = np.random.default_rng(0)
    given = np.arange(count) % classes
    wrong = np.arange(count) % 10 == 3
    suggested = np.where(wrong, (given + 1) % classes, given)
    ambiguity = rng.uniform(0.01, 0.3, count)
    sure = rng.uniform(0.7, 0.99, count)
    disagreement = np.where(wrong, sure, -sure)
    names = changes.get("class_names", tuple(f"class {k}" for k in range(classes)))
    clean, texts = changes.pop("clean", None), changes.pop("texts", [])
    meta = {"text": texts} if texts else {}
    if texts and isinstance(texts[0], dict):
        meta = {key: [str(row[key]) for row in texts] for key in texts[0]}
    source = Source(
        torch.empty(count, 0),
        Labels(torch.from_numpy(given), names),
        None if clean is None else torch.from_numpy(clean),
        changes.pop("ids", ()),
        meta=meta,
        pictures=changes.pop("pictures", None),
    )
    columns: dict[str, Any] = {
        "examples": source,
        "class_names": names,
        "given": given,
        "suggested": suggested,
        "given_probability": np.where(wrong, 1 - sure, sure),
        "suggested_probability": sure,
        "disagreement": disagreement,
        "ambiguity": ambiguity,
        "close": changes.pop("close", ambiguity >= 0.25),
        "disagreement_threshold": 0.0,
        "summary": {"source": "classes in turn", "method": "made up", "seconds": 0.5},
    }
    return Audit(**{**columns, **changes})


@pytest.fixture(scope="session")
def made_up() -> Callable[..., Audit]:
    return make_audit


def clouds(count: int = 90, wrong: int = 6) -> Source:
    """Three clouds far apart; the first `wrong` labels are moved on by one."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.arange(count) % 3
    x = 8 * torch.eye(3)[clean] + torch.randn(count, 3, generator=generator)
    labels = clean.clone()
    labels[:wrong] = (labels[:wrong] + 1) % 3
    return Source(x, Labels(labels, ("ant", "bee", "<script>")), clean, name="clouds")


def make_clouds(rate: float, count: int = 2000, apart: float = 3.5) -> Source:
    """Five clouds that overlap somewhat (the best classifier errs on about 5 %), and labels moved anywhere."""
    clean = torch.arange(count) % 5
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    examples = Source(apart * torch.eye(8)[clean] + x, Labels(clean, tuple("01234")), clean, name="clouds")
    return corrupt(examples, "symmetric", rate=rate, seed=1)[0]


@pytest.fixture(scope="session")
def noisy_clouds() -> Callable[..., Source]:
    return make_clouds


def make_tags(count: int = 240) -> tuple[Any, Any, Any]:
    """Three independent tags, each a direction; some pairs flipped. Rows, given and true tags."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, (count, 3))
    rows = 6.0 * (2 * true - 1) + rng.normal(size=(count, 3))
    given = true.copy()
    given[7, 1] ^= 1
    given[20] ^= np.array([1, 0, 1])
    return rows, given, true
