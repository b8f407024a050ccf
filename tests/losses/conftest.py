"""The losses under test, each with its label noise in closed form: with one golden number it fixes the loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.losses import ALASCA, LOSSES, Loss


@dataclass(frozen=True)
class Case:
    """noise(loss, z, y) is ε."""

    method: str
    noise: Callable[[Any, Tensor, Tensor], Tensor]
    options: Callable[[int], dict[str, Any]] = lambda K: {}
    prepare: Callable[[Any, Tensor], dict[str, Any]] = lambda loss, z: {}
    variant: str = ""

    def make(self, K: int, **options: Any) -> Loss:
        torch.manual_seed(0)
        loss = LOSSES[self.method](**self.options(K), **options)
        if isinstance(loss, ALASCA):
            loss.attach(TinyResNet(), images(1))
        if self.method == "loras":
            nn.init.normal_(loss.embedding, std=0.5)
        if self.method == "sop":
            loss.u.fill_(0.5)
            loss.v.fill_(0.1)
        # An epoch whose predictions are all correct, so that S is no constant.
        if self.method == "ols":
            loss(2 * torch.eye(K) + 0.3 * torch.randn(K, K), torch.arange(K))
            loss.end_epoch()
        return loss

    def __call__(self, loss: Loss, z: Tensor, y: Tensor) -> Tensor:
        return loss(z, y, **self.prepare(loss, z))


class TinyResNet(nn.Module):
    """Three stages that halve the image, as the first three of a ResNet do."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, stride=2), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1, stride=2), nn.ReLU())
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def images(batch: int, size: int = 16) -> Tensor:
    return torch.randn(batch, 1, size, size, generator=torch.Generator().manual_seed(1))


def one_hot(z: Tensor, y: Tensor) -> Tensor:
    return F.one_hot(y, z.shape[1]).to(z.dtype)


def entropy(p: Tensor) -> Tensor:
    return -torch.special.xlogy(p, p).sum(1)


def past(z: Tensor) -> Tensor:
    return z.detach().flip(1).mul(0.5).to(torch.promote_types(z.dtype, torch.float32)).softmax(1)


def rate(z: Tensor) -> Tensor:
    return (1 - entropy(z.softmax(1)) / math.log(z.shape[1])).unsqueeze(1)


def acls_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    top = z.max(1, keepdim=True).values
    is_top = (z == top).to(z.dtype)
    others = 0.1 / (z.shape[1] - 1) * (top - z - loss.margin).relu()
    return 2 * loss.alpha * (others - is_top * (z - loss.margin).relu())


def spread_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    """−λ p_i (d_i − Σ_j p_j d_j) with d_i = (p_i − p̄)/((K−1)s) on the classes that are not excluded."""
    p, others = z.softmax(1), z.shape[1] - 1
    inside = 1 - one_hot(z, z.argmax(1) if loss.exclude == "predicted" else y)
    away = inside * (p - (p * inside).sum(1, keepdim=True) / others)
    d = away / (others * (away.square().sum(1, keepdim=True) / others + 1e-12).sqrt())
    return -loss.weight * p * (d - (p * d).sum(1, keepdim=True))


def penalty_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(1)
    H = entropy(p).unsqueeze(1)
    active = 1.0 if loss.threshold is None else (loss.threshold > H).to(z.dtype)
    return -loss.beta * active * p * (p.log() + H)


def low_rank_label(loss: Any, y: Tensor) -> Tensor:
    E = loss.embedding.detach().double()
    return (E[y] @ E.t()).softmax(1)


def alasca_prepare(loss: Any, z: Tensor) -> dict[str, Any]:
    model = tiny_resnet()
    loss.attach(model)
    model(images(len(z)))
    return {"index": torch.arange(len(z)), "epoch": 15.0}


def tiny_resnet() -> TinyResNet:
    torch.manual_seed(2)
    return TinyResNet()


def transition(K: int) -> Tensor:
    mixed = torch.rand(K, K, generator=torch.Generator().manual_seed(3)).double()
    return 0.7 * torch.eye(K, dtype=torch.float64) + 0.3 * mixed / mixed.sum(1, keepdim=True)


def forward_label(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    joint = z.softmax(1) * transition(z.shape[1]).t()[y]
    return joint / joint.sum(1, keepdim=True)


def doubted(z: Tensor, y: Tensor, kept: Tensor) -> Tensor:
    """(1 − w)(p − y): a share of the label is replaced by the prediction."""
    return (1 - kept).unsqueeze(1) * (z.softmax(1) - one_hot(z, y))


def prob_of(z: Tensor, y: Tensor) -> Tensor:
    return z.softmax(1).gather(1, y[:, None])[:, 0]


def bootstrapped_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(1)
    soft = p * (1 + p.log() + entropy(p).unsqueeze(1))
    own = one_hot(z, z.argmax(1)) if loss.form == "hard" else soft
    return (1 - loss.beta) * (own - one_hot(z, y))


def positions(loss: Any, z: Tensor) -> dict[str, Any]:
    return {"index": torch.arange(len(z))}


def elr_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(1)
    t = loss.beta * loss.averages[: len(z)].to(z.dtype) + (1 - loss.beta) * p
    agreement = (p * t).sum(1, keepdim=True)
    return loss.weight * p * (t - agreement) / (1 - agreement)


def sop_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    """t = p − ∂L/∂z; classes that a bound holds pass no gradient."""
    p, u, v = z.softmax(1), loss.u[: len(z)].to(z.dtype), loss.v[: len(z)].to(z.dtype)
    raised = p + torch.where(one_hot(z, y) == 1, u**2, -(v**2))
    bounded, free = raised.clamp_min(1e-4), (raised > 1e-4).to(z.dtype)
    total = bounded.sum(1, keepdim=True)
    slope = free * (1 / total - one_hot(z, y) / bounded)
    seen = (bounded / total).gather(1, y[:, None]) > 1e-4
    return p - one_hot(z, y) - seen * p * (slope - (p * slope).sum(1, keepdim=True))


def no_noise(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(z)


def of_examples(K: int) -> dict[str, Any]:
    return {"num_classes": K, "num_examples": 64}


CASES = [
    Case("ce", no_noise),
    Case("ls", lambda loss, z, y: 0.1 * (1 / z.shape[1] - one_hot(z, y))),
    Case(
        "ls",
        lambda loss, z, y: 0.1 * ((1 - one_hot(z, y)) / (z.shape[1] - 1) - one_hot(z, y)),
        lambda K: {"form": "others"},
        variant="others",
    ),
    Case("ols", lambda loss, z, y: 0.3 * (loss.soft[y] - one_hot(z, y)), lambda K: {"num_classes": K, "alpha": 0.3}),
    Case("acls", acls_noise, lambda K: {"margin": 1.0}),
    Case(
        "self_knowledge",
        lambda loss, z, y: rate(z) * (past(z) - one_hot(z, y)),
        prepare=lambda loss, z: {"past": past(z)},
    ),
    Case("alasca", no_noise, of_examples, alasca_prepare),
    Case(
        "loras",
        lambda loss, z, y: loss.beta * (low_rank_label(loss, y) - z.softmax(1)),
        lambda K: {"num_classes": K, "dropout": 0.0},
    ),
    Case("als", spread_noise, lambda K: {"weight": 0.5}),
    Case("als", spread_noise, lambda K: {"weight": 0.5, "exclude": "true"}, variant="true"),
    Case("confidence_penalty", penalty_noise),
    Case("confidence_penalty", penalty_noise, lambda K: {"beta": 0.2, "threshold": 0.5 * math.log(K)}, variant="hinge"),
    Case(
        "forward_correction",
        lambda loss, z, y: forward_label(loss, z, y) - one_hot(z, y),
        lambda K: {"transition": transition(K)},
    ),
    Case(
        "backward_correction",
        lambda loss, z, y: transition(z.shape[1]).inverse()[y] - one_hot(z, y),
        lambda K: {"transition": transition(K)},
    ),
    Case("gce", lambda loss, z, y: doubted(z, y, prob_of(z, y) ** 0.7)),
    Case("sce", lambda loss, z, y: doubted(z, y, 0.1 + 4 * prob_of(z, y))),
    Case("bootstrapping", bootstrapped_noise, lambda K: {"beta": 0.6}),
    Case("bootstrapping", bootstrapped_noise, lambda K: {"form": "hard", "beta": 0.6}, variant="hard"),
    Case("elr", elr_noise, of_examples, positions),
    Case("sop", sop_noise, of_examples, positions),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case.method}{case.variant and '-' + case.variant}")
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def cases() -> list[Case]:
    return CASES


@pytest.fixture
def tiny_model() -> Callable[[], TinyResNet]:
    """Builds the same small ResNet every time."""
    return tiny_resnet
