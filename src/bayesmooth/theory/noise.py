"""Label noise ε: the term to add to a label so that the plain loss gives the same gradient.

Three quantities go by that name, and they have three functions here, all signed, for f ~ N(mean, cov):

- `expected_noise`    A′(m) − E[A′(f)]       one number per example  (eq:labelnoiseGLMGD)
- `sampled_noise`     A′(m) − A′(f)          one draw of f
- `linearised_noise`  −A″(m) (f − m)         its first-order expansion  (eq:taylor_noise)

The expected noise has the sign of the logit: for a confident correct example y + ε lies beyond the
label. The smoothed label that one plots is y − ε, on a log scale |ε|.
A covariance has the shape of the mean (independent entries) or one more axis (one matrix per example).
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.theory.links import Bernoulli, Categorical, Link, covariance_root, moments, softmax_moments


def expected_noise(mean: Tensor, cov: Tensor, link: Link, *, samples: int = 512, seed: int = 0) -> Tensor:
    """ε = A′(m) − E[A′(f)], f ~ N(m, cov)  (eq:labelnoiseGD, eq:labelnoiseGLMGD).

    Scalar links are integrated, the sigmoid to 1e-7 at any variance; the softmax is averaged over `samples`
    quasi-random points.

    >>> expected_noise(torch.tensor([-1.52894, 0.0, 1.52894]), torch.ones(3), Bernoulli())
    tensor([-0.0391, 0.0000, 0.0391])
    """
    if isinstance(link, Categorical):
        return link.mean(mean) - softmax_moments(mean, cov, samples, seed).mean
    # The noise of the sigmoid is odd in m: on the negative side no digit is lost to 1 − tiny.
    side = torch.where(mean > 0, -1.0, 1.0).to(mean.dtype) if isinstance(link, Bernoulli) else 1.0
    return side * (link.mean(side * mean) - moments(link, side * mean, cov).mean)


def gaussian_draw(mean: Tensor, cov: Tensor, seed: int) -> Tensor:
    """Σ^½ e, e ~ N(0, I): the displacement of one draw of f ~ N(mean, cov) from its mean."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(mean.shape, generator=generator, device="cpu", dtype=mean.dtype).to(mean.device)
    root = covariance_root(mean, cov)
    return torch.einsum("...ij,...j->...i", root, draw) if cov.ndim > mean.ndim else root * draw


def sampled_noise(mean: Tensor, cov: Tensor, link: Link, seed: int) -> Tensor:
    """A′(m) − A′(m + Σ^½e), one draw e ~ N(0, I): its mean over draws is the expected noise."""
    return link.mean(mean) - link.mean(mean + gaussian_draw(mean, cov, seed))


def linearised_noise(mean: Tensor, cov: Tensor, link: Link, seed: int) -> Tensor:
    """−A″(m) Σ^½e: the sampled noise of the same seed to first order, with mean zero.

    The paper drops the minus  (eq:taylor_noise, eq:taylor_noise_nn).
    """
    response, move = link.variance(mean), gaussian_draw(mean, cov, seed)
    return -(torch.einsum("...ij,...j->...i", response, move) if link.vector else response * move)


def linearised_std(mean: Tensor, cov: Tensor, link: Link) -> Tensor:
    """The standard deviation of each entry of the linearised noise, √diag(A″ Σ A″)."""
    root = covariance_root(mean, cov)
    if not link.vector:
        return link.variance(mean) * root
    response = link.variance(mean)
    spread = response @ root if cov.ndim > mean.ndim else response * root.unsqueeze(-2)
    return spread.square().sum(-1).sqrt()


def effective_labels(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
    """t = p − ∂L/∂z: the labels (B, K) with which cross-entropy has the gradient of `loss`.

    `loss(logits, labels, **extra)` is any module with a `reduction`, or any function that returns
    one value per example. It takes one backward pass, and leaves the loss's state, its parameters'
    gradients, the random state and the graph of `logits` as they were.

    >>> smoothing = nn.CrossEntropyLoss(label_smoothing=0.3)
    >>> effective_labels(smoothing, torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor([[0.8000, 0.1000, 0.1000]])
    """
    if logits.ndim != 2:
        raise InputError(f"logits of shape {tuple(logits.shape)}: must be (examples, classes)")
    wide = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    devices = [logits.device] if logits.is_cuda else []
    with torch.enable_grad(), torch.random.fork_rng(devices):
        z = wide.requires_grad_()
        (gradient,) = torch.autograd.grad(_per_example(loss, z, labels, extra).sum(), z)
    return torch.softmax(wide.detach(), -1).sub_(gradient)


def effective_noise(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
    """ε = t − y: the effective labels (B, K) of a loss less the one-hot labels."""
    noise = effective_labels(loss, logits, labels, **extra)
    return noise.scatter_add_(1, labels.unsqueeze(1), -torch.ones_like(noise[:, :1]))


@torch.enable_grad()
def sam_noise(model: nn.Module, inputs: Tensor, labels: Tensor, rho: float = 0.05) -> Tensor:
    """ε = A′(f(w)) − A′(f(ŵ)), ŵ = w + ρ g/‖g‖: the label noise (B, K) of SAM on this batch.

    With labels y + ε the plain gradient of cross-entropy is SAM's: exactly if the logits are linear in w, else to first
    order in ρ. The model, its buffers and the random state stay as they are.
    """
    params = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}

    def run(weights: dict[str, Tensor]) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with torch.random.fork_rng([inputs.device] if inputs.is_cuda else []):
            logits: Tensor = torch.func.functional_call(model, weights | buffers, (inputs,))
        return logits

    here = run(params)
    loss = nn.functional.cross_entropy(here, labels)
    grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt() + 1e-12
    moved = {name: p.detach() + rho * g / norm for (name, p), g in zip(params.items(), grads, strict=True)}
    return (here.softmax(-1) - run(moved).softmax(-1)).detach()


def _per_example(loss: Callable[..., Tensor], z: Tensor, labels: Tensor, extra: dict[str, Any]) -> Tensor:
    """The loss of every example, from a shadow of the module that takes the state changes."""
    if isinstance(loss, nn.Module):
        buffers = {name: buffer.clone() for name, buffer in loss.named_buffers()}
        loss = copy.copy(loss)
        loss.reduction = "none"  # type: ignore[assignment]
        values: Tensor = torch.func.functional_call(loss, buffers, (z, labels), extra)
    else:
        values = loss(z, labels, **extra)
    if values.numel() != len(z):
        raise InputError(
            f"the loss returned {values.numel()} values for {len(z)} examples: must be one per "
            "example; give a module that obeys its `reduction`, or a function without one"
        )
    return values
