"""Embeddings with labels: a Bayesian softmax regression in seconds, its prior set by the ELBO, no training code."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bayesmooth.audit.evidence import Evidence
from bayesmooth.audit.loo import leave_one_out
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, exact_label_noise
from bayesmooth.progress import track
from bayesmooth.theory.expectation import vector_expectation
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.glm.covariance import FULL_LIMIT, ROWS, Full
from bayesmooth.theory.links import Categorical

MAX_DIMS = 128  # principal components: twice as many find a little more at twice the time
WORK = 4e12  # operations a step at most; beyond it fewer components
TOLERANCE = 0.1  # posterior standard deviations: finer steps do not change the ranking
POINTS = 256  # quasi-random ones, for the averages of logits that were left out


def prepare(examples: Examples, max_dims: int = MAX_DIMS) -> Tensor:
    """Centred, turned to principal components, scaled to unit mean square norm, and a column of ones.

    The prior is isotropic, so turning changes nothing but what is cut off. Two passes over the rows in
    pieces: beside the result, memory holds one piece and a D × D matrix.
    """
    mean, power, axes = _principal_axes(examples)
    total = float(power.clamp_min(0).sum())
    if total == 0:
        raise InputError(f"{examples.name}: all embeddings are the same; nothing to learn from")
    affordable = max(16, int((WORK / (len(examples) * examples.num_classes)) ** 0.5))
    useful = int((power > 1e-6 * power[-1]).sum())
    kept = (axes[:, -min(max_dims, affordable, useful) :].flip(1) / total**0.5).float()
    scaled = [(rows - mean.float()) @ kept for rows in _pieces(examples)]
    return torch.cat([torch.cat(scaled), torch.ones(len(examples), 1)], 1)


def _principal_axes(examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variances (ascending) and axes of the inputs."""
    start = 0
    total, gram = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    shift: Tensor | None = None
    for rows in _pieces(examples):
        broken = (~rows.isfinite()).any(1)
        if broken.any():
            at = start + int(broken.nonzero()[0])
            raise InputError(
                f"{examples.name}: row {at} has NaN or infinite entries; must be finite"
            )
        start += len(rows)
        shift = (
            rows.mean(0) if shift is None else shift
        )  # near the mean: float32 products stay sharp
        moved = rows - shift
        total, gram = total + moved.sum(0).double(), gram + (moved.mT @ moved).double()
    assert shift is not None
    offset = total / start
    covariance = gram / start - offset[:, None] * offset
    return shift.double() + offset, *torch.linalg.eigh(covariance.float())


def _pieces(examples: Examples) -> Iterator[Tensor]:
    for index in torch.arange(len(examples)).split(ROWS):  # type: ignore[no-untyped-call]
        yield examples.batch(index).flatten(1)


def fit_softmax(features: Tensor, labels: Tensor, classes: int) -> GLMFit:
    """VON with a block a class, its prior precision chosen by the ELBO."""
    return fit_glm(
        features,
        labels,
        classes=classes,
        prior_precision="elbo",
        bias=False,
        tol=TOLERANCE,
        dtype=torch.float32,
    )


def audit_embeddings(
    examples: Examples,
    *,
    out_of_sample: str = "none",
    folds: int = 5,
    seed: int = 0,
    quiet: bool = False,
) -> Evidence:
    """Evidence from one fit (`loo` or `none`), or with probabilities from `folds` more."""
    labels, classes = examples.labels, examples.num_classes
    features = prepare(examples)
    fit = fit_softmax(features, labels, classes)
    noise = exact_label_noise(*fit.logits(features), labels)
    probabilities = noise.averaged
    if out_of_sample == "loo":
        curvature, spread = response(features, noise, fit.prior_precision)
        left = leave_one_out(noise.logits, spread, noise.averaged, labels, curvature)
        probabilities = averaged_softmax(left.logits, left.cov)
    elif out_of_sample == "folds":
        probabilities = cross_fit(features, labels, classes, folds, seed=seed, quiet=quiet)
    facts = {
        "components": features.shape[1] - 1,
        "prior_precision": fit.prior_precision,
        "fit": fit.message,
    }
    ways = {"loo": "leave-one-out", "folds": f"{folds}-fold cross-fit", "none": "in-sample"}
    method = f"variational softmax regression, {ways[out_of_sample]}"
    return Evidence(labels, probabilities, noise.expected, method, facts)


def response(features: Tensor, noise: LabelNoise, prior: float) -> tuple[Tensor | None, Tensor]:
    """E[A″] (N, K, K) and how the logits answer to a pull on them, the coupling of the classes included.

    The fit's own blocks leave the coupling out and answer up to twice as strongly; they must do where the
    whole covariance would be too large.
    """
    if features.shape[1] * noise.logits.shape[1] > FULL_LIMIT:
        return None, noise.logit_variance
    link = Categorical()
    curvature = vector_expectation(link.variance, noise.logits, noise.logit_variance, POINTS // 4)
    return curvature, Full.from_curvature(features, curvature, prior).logit_covariance(features)


def cross_fit(
    features: Tensor, labels: Tensor, classes: int, folds: int, *, seed: int, quiet: bool
) -> Tensor:
    """Averaged probabilities of every example from the fit to the folds it is not in."""
    member = stratified_folds(labels, folds, seed)
    out = features.new_empty(len(features), classes)
    for fold in track(range(folds), description="cross-fit", quiet=quiet):
        held = member == fold
        fit = fit_softmax(features[~held], labels[~held], classes)
        out[held] = averaged_softmax(*fit.logits(features[held]))
    return out


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """A fold for each example, the examples of a class spread evenly over them."""
    if not 2 <= folds <= len(labels):
        raise InputError(f"folds={folds}: must be from 2 to the number of examples, {len(labels)}")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    member = torch.empty_like(labels)
    member[by_class] = torch.arange(len(labels)) % folds
    return member


def averaged_softmax(
    mean: Tensor,
    var: Tensor,
) -> Tensor:
    """E[softmax(f)], f ~ N(mean, var), at quasi-random points."""
    return vector_expectation(lambda f: torch.softmax(f, -1), mean, var, POINTS)
