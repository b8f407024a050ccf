"""What is predicted of every example: all that the scores may look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from bayesmooth.audit.transitions import learn_transitions, probability_wrong
from bayesmooth.errors import InputError


class LeftOut(NamedTuple):
    """What is predicted of each example without its own label: of its label's class, the best and the second best."""

    own: Tensor
    best: Tensor
    second: Tensor
    best_class: Tensor
    wrong: Tensor
    """The probability that the label is wrong."""

    @classmethod
    def of(
        cls, probabilities: Tensor, labels: Tensor, transitions: Tensor | None = None
    ) -> "LeftOut":
        """From probabilities (N, K) that do not know the labels; T is learned where it is not given."""
        if transitions is None:
            transitions = learn_transitions(probabilities, labels)
        top = probabilities.topk(2, dim=1)
        own = probabilities.gather(1, labels[:, None]).squeeze(1)
        wrong = probability_wrong(probabilities, transitions, labels)
        return cls(own, top.values[:, 0], top.values[:, 1], top.indices[:, 0], wrong)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Labels, averaged probabilities (N, K), and the noise where there is a posterior to have one."""

    labels: Tensor
    probabilities: Tensor
    """Of the true class; with the example left out where `method` says so."""
    noise: Tensor | None
    """Signed ε (N, K) of the posterior; None where probabilities are all there is."""
    method: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Figures for the summary."""
    index: Tensor | None = None
    """Positions in the data, where they are not 0 … N−1."""
    without_label: LeftOut | None = None
    """The prediction with every example left out; None where `probabilities` are that already."""
    transitions: Tensor | None = None
    """T (K, K) by which the given labels count in the ranking; None where they do not."""
    neighbours: tuple[Tensor, Tensor] | None = None
    """Positions and similarities of every example's nearest ones, where all were compared."""

    @property
    def left_out(self) -> LeftOut:
        """The prediction that has not seen the example's label."""
        return self.without_label or LeftOut.of(self.probabilities, self.labels)

    def signed_noise(self) -> Tensor:
        """ε, or an error that says what it takes."""
        if self.noise is None:
            raise InputError(
                "score='noise_of_label' needs a posterior; with probabilities alone use 'root_margin'"
            )
        return self.noise
