"""How labels are judged: the settings of an audit beside what the columns of its data mean (`data.Columns`)."""

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from bayesmooth.data.encoders import Encoder
from bayesmooth.data.labels import Labels
from bayesmooth.errors import InputError

WAYS = ("none", "loo", "folds")
CLUSTERS = (None, "ray")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `audit` takes beside the data. None: the best that is installed."""

    # How texts and pictures become rows of numbers.
    encoder: Encoder = None
    """`plain`, the name or path of a model, or a function from a batch to rows of numbers."""
    cache: str | Path | None = None
    """The folder where embeddings are kept."""

    # How labels are judged.
    out_of_sample: str = WAYS[0]
    """How an example is kept from supporting its own label."""
    folds: int = 5
    samples: int = 16
    """Of the posterior over a network's weights."""
    seed: int = 0
    batch_size: int = 256
    """Examples that go through a network at once."""
    cluster: str | None = None
    """`ray`: score the rows as tasks of a Ray cluster."""
    quiet: bool = False

    def __post_init__(self) -> None:
        """Refuse what no audit can be made with, before anything is read."""
        known = {"out_of_sample": WAYS, "cluster": CLUSTERS}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                shown = ", ".join(map(str, choices))
                raise InputError(f"{name}={getattr(self, name)!r}: must be one of {shown}")
        for name, low in {"folds": 2, "samples": 1, "batch_size": 1, "seed": 0}.items():
            value, high = getattr(self, name), LARGEST_SEED if name == "seed" else None
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not whole or not low <= value <= (high or value):
                bounds = f"from {low}" if high is None else f"from {low} to {high}"
                raise InputError(f"{name}={value!r}: must be a whole number {bounds}")
            object.__setattr__(self, name, int(value))

    def check_for(self, labels: Labels) -> None:
        """Refuse settings that labels which are no classes cannot be judged with."""
        for name, wanted, way_out in (
            ("cluster", self.cluster, "tags are judged on one machine: leave it out"),
            ("folds", self.out_of_sample == "folds", "use 'none' or 'loo', which need no refit"),
        ):
            if not labels.are_classes and wanted:
                raise InputError(f"{name} with several labels per example: {way_out}")

    def describe_way(self) -> str:
        """How an example is kept from supporting its own label, in words."""
        folds = f"{self.folds}-fold cross-fit"
        return {"none": "in-sample", "loo": "leave-one-out", "folds": folds}[self.out_of_sample]
