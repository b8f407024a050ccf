"""What a source tells the audit about every example; all that the scores may look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesmooth.errors import InputError

FEWEST = 2  # examples a class: with one, its only witness is itself


@dataclass(frozen=True, eq=False)
class Evidence:
    """Labels, averaged probabilities (N, K), and the noise where there is a posterior to have one."""

    labels: Tensor
    probabilities: Tensor
    """Posterior-averaged, with the example left out where `method` says so."""
    noise: Tensor | None
    """Signed ε (N, K) of the whole fit; None where probabilities are all there is."""
    method: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Figures for the summary."""
    index: Tensor | None = None
    """Positions in the data, where they are not 0 … N−1."""

    @property
    def ambiguity(self) -> Tensor:
        """½‖ε‖₁; without a posterior the entropy of the prediction over log K stands in."""
        if self.noise is not None:
            return self.noise.abs().sum(1) / 2
        p = self.probabilities.clamp_min(torch.finfo(torch.float32).tiny)
        return -(p * p.log()).sum(1) / torch.tensor(float(p.shape[1])).log()

    def signed_noise(self) -> Tensor:
        """ε, or an error that says what it takes."""
        if self.noise is None:
            raise InputError(
                "score='noise_of_label' needs a posterior; with probabilities alone use 'root_margin'"
            )
        return self.noise


def check_labels(labels: Tensor, class_names: tuple[str, ...]) -> None:
    """Refuse labels from which nothing can be learned about themselves."""
    if len(class_names) < 2:
        raise InputError(
            f"{len(class_names)} class: an audit needs two at least, or every label is right"
        )
    counts = torch.bincount(labels, minlength=len(class_names))
    few = ((counts > 0) & (counts < FEWEST)).nonzero().flatten().tolist()
    if few:
        raise InputError(
            f"class {class_names[few[0]]!r} has {int(counts[few[0]])} example: must be {FEWEST} at "
            "least, as the others are what contradicts a label; merge the class or leave it out"
        )
    if int((counts > 0).sum()) < 2:
        raise InputError(
            f"all {len(labels)} labels are {class_names[int(counts.argmax())]!r}: an audit needs "
            "two classes at least"
        )


def check_probabilities(probabilities: Tensor, count: int, classes: int) -> Tensor:
    """Rows of probabilities as float32 that sum to one."""
    if probabilities.shape != (count, classes):
        raise InputError(
            f"probabilities of shape {tuple(probabilities.shape)}: must be {count} × {classes}, "
            "a row an example and a column a class"
        )
    values = probabilities.float()
    sums = values.sum(1)
    broken = (~values.isfinite() | (values < 0)).any(1) | ((sums - 1).abs() > 0.01)
    if broken.any():
        row = int(broken.nonzero()[0])
        shown = [round(float(p), 4) for p in values[row, :5]]
        raise InputError(
            f"probabilities[{row}] = {shown}…: must be ≥ 0 and sum to one; pass logits.softmax(-1)"
        )
    return values / sums[:, None]
