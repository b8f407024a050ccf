"""A trained network with a posterior over its weights as a source of evidence."""

from typing import Any

from torch import Tensor, nn

from bayesmooth.audit.embeddings import averaged_softmax
from bayesmooth.audit.evidence import Evidence
from bayesmooth.audit.loo import leave_one_out
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.posterior import Posterior


def as_posterior(source: Any, model: nn.Module) -> Posterior:
    """A posterior as it is, or that of an optimizer that has one (IVON, bSAM)."""
    if isinstance(source, Posterior):
        return source
    make = getattr(source, "posterior", None)
    if not callable(make):
        raise InputError(
            f"{type(source).__name__} has no posterior: give a Posterior, or an optimizer that "
            "learns one (IVON, BSAM)"
        )
    made = make(model)
    assert isinstance(made, Posterior)
    return made


def audit_network(
    model: nn.Module,
    posterior: Posterior,
    data: Any,
    *,
    out_of_sample: str = "none",
    samples: int = 16,
    seed: int = 0,
    batch_size: int = 256,
    quiet: bool = False,
) -> Evidence:
    """Evidence from posterior samples; `loo` takes each example's pull on the network back."""
    noise = label_noise(
        model, posterior, data, samples=samples, seed=seed, batch_size=batch_size, quiet=quiet
    )
    labels = _labels(noise)
    probabilities = noise.averaged
    if out_of_sample == "loo":
        left = leave_one_out(noise.logits, noise.logit_variance, noise.averaged, labels)
        probabilities = averaged_softmax(left.logits, left.cov)
    way = {"loo": "leave-one-out", "none": "in-sample"}[out_of_sample]
    method = f"{type(model).__name__}, {samples} posterior samples, {way}"
    return Evidence(labels, probabilities, noise.expected, method, index=noise.index)


def _labels(noise: LabelNoise) -> Tensor:
    if noise.label is None:
        raise InputError("the data has no labels to audit; give batches (inputs, labels)")
    classes = noise.logits.shape[1]
    bad = ((noise.label < 0) | (noise.label >= classes)).nonzero().flatten()
    if len(bad):
        at = int(bad[0])
        raise InputError(
            f"label {int(noise.label[at])} of example {int(noise.index[at])}: must be from 0 to "
            f"{classes - 1}, the model's classes"
        )
    return noise.label
