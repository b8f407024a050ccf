"""torch's default dtype and device are the user's: whatever they are, the same calls give the same bits."""

import ast
import functools
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesmooth
from bayesmooth import IVON, audit, metrics
from bayesmooth.calling import recompute_batchnorm
from bayesmooth.data import Labels, Source, corrupt
from bayesmooth.integrations.sklearn import IVONClassifier
from bayesmooth.labelnoise import label_noise
from bayesmooth.losses import estimate_transition
from bayesmooth.posterior import Posterior
from bayesmooth.theory import fit_glm
from tests.conftest import make_closure

DEFAULTS = [torch.float64, torch.bfloat16, torch.float16, torch.device("meta")]
SOURCE = Path(bayesmooth.__file__).parent
# Whole numbers by themselves; the others take the default dtype.
WHOLE = {"arange", "randint", "randperm"}
FLOATING = {
    "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "tensor", "zeros",
}  # fmt: skip


@contextmanager
def changed_default(default):
    """Another default dtype or device inside."""
    if isinstance(default, torch.device):
        with default:
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def task(dtype=torch.float32):
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(60, 5)))
    labels = torch.from_numpy(np.arange(60) % 3)
    inputs[:, :3] += 2 * nn.functional.one_hot(labels, 3)
    kind = {"dtype": dtype, "device": "cpu"}
    model = nn.Sequential(nn.Linear(5, 8, **kind), nn.BatchNorm1d(8, **kind), nn.Linear(8, 3, **kind))
    for param in model.parameters():
        param.data = torch.from_numpy(rng.normal(size=param.shape) / 2).to(dtype)
    return model, inputs.to(dtype), labels


def train(dtype, fused=None, **settings):
    model, inputs, labels = task(dtype)
    optimizer = IVON(model.parameters(), 0.1, 60, hess_init=0.5, steps=3, seed=2**63 - 1, fused=fused, **settings)
    closure = make_closure(optimizer, lambda: nn.functional.cross_entropy(model(inputs).float(), labels))
    for _ in range(3):
        optimizer.step(closure)
    return model, inputs, labels, optimizer


def take_steps(dtype, fused):
    model, *_, optimizer = train(dtype, fused, mc_samples=2)
    with optimizer.sampled_params():
        drawn = [p.detach().clone() for p in model.parameters()]
    return [*drawn, *model.state_dict().values(), *optimizer.posterior(model).std.values()]


def use_the_posterior(folder):
    model, inputs, labels, optimizer = train(torch.float32)
    optimizer.posterior(model).save(folder / "new" / "posterior.safetensors")
    posterior = Posterior.load(folder / "new" / "posterior.safetensors")
    averaged = posterior.predict(model, inputs, 4, batchnorm=[inputs])
    recompute_batchnorm(model, [inputs])
    noise = label_noise(model, posterior, [(inputs, labels)], samples=4, linearised=2, quiet=True)
    bins = metrics.ece(averaged, labels), metrics.nll(averaged, labels)
    return [averaged, noise.expected, noise.linearised, noise.smoothed, bins]


def fit_models(folder):
    _, inputs, labels = task()
    fits = [
        fit_glm(inputs, labels, covariance=covariance, draws=draws)
        for covariance, draws in (("full", 0), ("block", 0), ("diagonal", 8))
    ]
    classifier = IVONClassifier(epochs=2, random_state=0).fit(inputs.numpy(), labels.numpy())
    return [
        *(value for fit in fits for value in (fit.mean, fit.label_noise(inputs))),
        torch.from_numpy(classifier.predict_proba(inputs.numpy())),
    ]


def judge_labels(folder):
    _, inputs, labels = task()
    examples, _ = corrupt(Source(inputs, Labels(labels, ("a", "b", "c"))), "symmetric", rate=0.2)
    found = audit(inputs, examples.labels.numbers, quiet=True)
    return [
        examples.labels.numbers,
        estimate_transition(inputs.softmax(1)),
        torch.from_numpy(found.disagreement),
        torch.from_numpy(found.ambiguity),
    ]


CALLS = {
    **{
        f"IVON, {dtype}, fused={fused}": lambda folder, dtype=dtype, fused=fused: take_steps(dtype, fused)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        for fused in (None, False)
    },
    "posterior": use_the_posterior,
    "models": fit_models,
    "audit": judge_labels,
}


@functools.cache
def compute_expected(name):
    """What the call gives under torch's own defaults."""
    with tempfile.TemporaryDirectory() as folder:
        return CALLS[name](Path(folder))


@pytest.mark.parametrize("default", DEFAULTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_whatever_the_defaults_are(name, default, tmp_path):
    expected = compute_expected(name)
    with changed_default(default):
        found = CALLS[name](tmp_path)
    for ours, theirs in zip(found, expected, strict=True):
        same = torch.equal if isinstance(ours, torch.Tensor) else lambda a, b: a == b
        assert same(ours, theirs)


def find_factories(path):
    """Calls of torch's factories that leave the device, or the dtype of floats, to the defaults."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = getattr(node, "func", None)
        if not isinstance(call, ast.Attribute) or ast.unparse(call.value) != "torch":
            continue
        given = {keyword.arg for keyword in node.keywords}
        needed = {"device", "dtype"} if call.attr in FLOATING else {"device"}
        if path.parent.name == "losses":  # modules are made where torch makes them, and `.to` moves them
            needed -= {"device"}
        if call.attr in WHOLE | FLOATING and not needed <= given:
            yield node.lineno, call.attr


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_tensors_are_made_with_dtype_and_device(path):
    assert list(find_factories(path)) == []
