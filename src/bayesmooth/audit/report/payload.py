"""What the report shows: one frozen record of columns, checked once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.scores import AXES, HARD, MISLABELLED, QUADRANTS
from bayesmooth.audit.thumbnails import Thumbnails
from bayesmooth.errors import InputError

Array = NDArray[Any]
Content = str | Mapping[str, object] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportData:
    """An audit as the report shows it: N examples in the order of the data set, K classes.

    All columns have length N; labels are positions in `class_names`.
    """

    title: str
    source: str
    """One line on where the labels come from."""
    created: str
    """When, as it shall be printed."""
    class_names: Sequence[str]
    ids: Sequence[str] | None = None
    """Unique names of the examples; None for their positions."""
    given: Array
    suggested: Array
    given_probability: Array
    suggested_probability: Array
    disagreement: Array
    """Higher: the label is more likely wrong. Ranks the list; the y axis."""
    ambiguity: Array
    """Size of ε, ≥ 0; the x axis."""
    quadrant: Array
    """Positions in `QUADRANTS`."""
    disagreement_threshold: float
    ambiguity_threshold: float
    axis_names: tuple[str, str] = AXES
    clean: Array | None = None
    """The true labels, where they are known."""
    texts: Sequence[Content] | None = None
    """A text, or a table row as a mapping, for each example; None where it is left out."""
    thumbnails: Thumbnails | None = None
    summary: Mapping[str, object] = field(default_factory=dict)
    """Printed at the end; `method`, `noise_rate` (a fraction) and `seconds` also below the headline."""

    def __post_init__(self) -> None:
        """Refuse what the page could only show wrongly."""
        _check_names("class_names", self.class_names)
        if "" in self.class_names:
            raise InputError("class_names: one is empty; name it, for no one could relabel to it")
        _check_labels("given", self.given, len(self), len(self.class_names))
        _check_labels("suggested", self.suggested, len(self), len(self.class_names))
        _check_labels("quadrant", self.quadrant, len(self), len(QUADRANTS))
        if self.clean is not None:
            _check_labels("clean", self.clean, len(self), len(self.class_names))
        for name in ("given_probability", "suggested_probability"):
            _check_numbers(name, getattr(self, name), len(self), low=0, high=1 + 1e-6)
        _check_numbers("disagreement", self.disagreement, len(self), low=-np.inf, high=np.inf)
        _check_numbers("ambiguity", self.ambiguity, len(self), low=0, high=np.inf)
        if self.ids is not None:
            _check_length("ids", len(self.ids), len(self))
            _check_names("ids", self.ids)
        if self.texts is not None:
            _check_length("texts", len(self.texts), len(self))
        if (
            self.thumbnails is not None
            and not np.isin(self.thumbnails.index, np.arange(len(self))).all()
        ):
            raise InputError(f"thumbnails.index: must be positions below {len(self)}")

    def __len__(self) -> int:
        return len(self.given)

    @property
    def contradicted(self) -> Array:
        """Which labels the prediction speaks against, surely or not: hard ones are wrong as often (docs/audit.md)."""
        return np.isin(self.quadrant, (MISLABELLED, HARD))

    @property
    def headline(self) -> str:
        """The claim in one sentence."""
        wrong, total = int(self.contradicted.sum()), len(self)
        if wrong == 0:
            return f"The model contradicts none of the {total:,} labels."
        return f"The model contradicts {wrong:,} of {total:,} labels ({_percent(wrong / total)})."

    @property
    def precision(self) -> tuple[int, int, int] | None:
        """Where the truth is known: (flagged and wrong, flagged, wrong)."""
        if self.clean is None:
            return None
        flagged, wrong = self.contradicted, self.given != self.clean
        return int((flagged & wrong).sum()), int(flagged.sum()), int(wrong.sum())


def _percent(share: float) -> str:
    """Two digits that mean something: 4.1 %, 0.012 %."""
    digits = 1 if share >= 0.001 else 3
    return f"{100 * share:.{digits}f}\u00a0%"


def _check_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise InputError(
            f"{name}: has {length} entries, must have one for each of {expected} examples"
        )


def _check_names(name: str, values: Sequence[str]) -> None:
    odd = next((value for value in values if not isinstance(value, str)), None)
    if odd is not None:
        raise InputError(f"{name}: {odd!r} is not a string; convert with str")
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise InputError(f"{name}: {twice[0]!r} occurs more than once; decisions need unique names")
    if not values:
        raise InputError(f"{name}: empty; a report needs at least one")


def _check_labels(name: str, values: Array, length: int, classes: int) -> None:
    _check_length(name, len(values), length)
    if not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"{name}: dtype {values.dtype}; must hold integers")
    outside = values[(values < 0) | (values >= classes)]
    if len(outside):
        raise InputError(f"{name}: {outside[0]} is outside 0 … {classes - 1}")


def _check_numbers(name: str, values: Array, length: int, low: float, high: float) -> None:
    _check_length(name, len(values), length)
    outside = values[~(np.isfinite(values) & (values >= low) & (values <= high))]
    if len(outside):
        raise InputError(f"{name}: {outside[0]} must be finite and within [{low:g}, {high:g}]")
