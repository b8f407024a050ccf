"""Every setting of an audit, in one place: what the columns of a table mean, how to embed, how to score."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from bayesmooth.data.encoders import Encoder
from bayesmooth.errors import InputError

WAYS = ("none", "loo", "folds")
CLUSTERS = (None, "ray")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `audit` takes beside the data. None: the usual names decide, or the best that is installed."""

    # The columns of a table.
    label: str | None = None
    clean_label: str | None = None
    """True labels, where they are known."""
    text: str | None = None
    """Texts to learn from."""
    image: str | None = None
    """Pictures to learn from: paths, or the bytes of files."""
    id: str | None = None
    annotator: str | None = None
    """Who gave the label: the table has one row per vote, and `id` names the example."""
    separator: str | None = None
    """Between the tags of an example in the column of labels."""
    features: Sequence[str] | None = None
    """Columns to learn from."""
    class_names: Sequence[str] | None = None
    """In the order of their numbers."""
    encoding: str | None = None
    """Of a CSV, where it is neither UTF-8 nor UTF-16 nor cp1252."""

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

    # What else was given, known once the source is opened.
    labels_file: Path | None = None
    """A .npy of labels, beside a .npy of embeddings."""
    tags: Sequence[str] | None = None
    """Columns of 0 and 1, one per tag: an example has several labels."""
    predicted: bool = False
    """The numbers of the source are predicted probabilities."""

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
        for name in ("features", "class_names", "tags"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name}={getattr(self, name)!r}: must be a list of names")
        if self.separator == "":
            raise InputError("separator='': must be what stands between two tags, such as ';'")
        if self.tags is not None and not len(self.tags):
            raise InputError("labels=[]: must name at least one column of 0 and 1")
        for name, wanted, way_out in (
            ("annotator", self.annotator, "votes are on one label: audit one tag at a time"),
            ("cluster", self.cluster, "tags are judged on one machine: leave it out"),
            ("folds", self.out_of_sample == "folds", "use 'none' or 'loo', which need no refit"),
        ):
            if self.tagged and wanted:
                raise InputError(f"{name} with several labels per example: {way_out}")

    @property
    def tagged(self) -> bool:
        """Whether an example has several labels, its tags."""
        return self.tags is not None or self.separator is not None

    @property
    def exact_columns(self) -> tuple[str | None, str | None, str | None]:
        """The columns that are read as they stand in a file: labels, clean labels, ids."""
        return self.label, self.clean_label, self.id

    @property
    def clean_options(self) -> dict[str, str]:
        """What `bayesmooth clean` has to be told again to find the same labels."""
        names = {"label": self.label, "id": self.id, "labels": self.tags}
        names |= {"separator": self.separator, "class-names": self.class_names}
        names |= {"encoding": self.encoding}
        return {
            option: name if isinstance(name, str) else ",".join(map(str, name))
            for option, name in names.items()
            if name is not None
        }

    def describe_way(self) -> str:
        """How an example is kept from supporting its own label, in words."""
        folds = f"{self.folds}-fold cross-fit"
        return {"none": "in-sample", "loo": "leave-one-out", "folds": folds}[self.out_of_sample]
