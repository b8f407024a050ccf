"""Who said what of which example: votes as people keep them, one row per vote or one column per annotator."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.settings import Settings
from bayesmooth.data import Examples
from bayesmooth.data.columns import PICTURES, as_texts
from bayesmooth.data.formats import find_id, find_label
from bayesmooth.data.labels import MISSING, class_numbers, label_texts
from bayesmooth.data.tabular import number_rows, read_frame
from bayesmooth.errors import InputError


class Ballots(NamedTuple):
    """Votes as texts: one entry per vote."""

    ids: list[str]
    annotators: list[str]
    labels: list[str]

    def majority(self) -> dict[str, str]:
        """What most people said, by id; where two labels tie, the one that was said first."""
        said: dict[str, Counter[str]] = {}
        for id, label in zip(self.ids, self.labels, strict=True):
            said.setdefault(id, Counter())[label] += 1
        return {id: counts.most_common(1)[0][0] for id, counts in said.items()}


def read_ballots(source: Any, settings: Settings) -> tuple[Any, Ballots]:
    """A table of votes (a path or a frame) as a frame with one row per example, and the votes.

    Of the rows of an example the first is kept, with the label that most people gave.
    """
    frame, where = source, "table"
    if isinstance(source, str | Path):
        where = str(source)
        columns = (settings.label, settings.clean_label, settings.id)
        frame = read_frame(Path(source), *columns, encoding=settings.encoding)
    elif hasattr(source, "to_pandas"):
        frame = source.to_pandas()
    if not hasattr(frame, "columns"):
        raise InputError(
            "annotator: needs a table with one row per vote; for an array N × A use votes="
        )
    frame = number_rows(frame, where)
    who, key = settings.annotator, find_id(where, list(frame.columns), settings.id)
    label = find_label(where, list(frame.columns), settings.label)
    if who not in frame or key is None:
        known = ", ".join(map(str, frame.columns))[:200]
        raise InputError(
            f"{where}: needs the columns of annotators ({who!r}) and of ids, which name the example of a vote "
            f"(--id), and has only {known}"
        )
    every = Ballots(as_texts(frame[key]), as_texts(frame[who]), label_texts(as_texts(frame[label])))
    missing = set(MISSING) - set(settings.class_names or ())
    there = [text not in missing for text in every.labels]
    ballots = Ballots(*([x for x, keep in zip(part, there, strict=True) if keep] for part in every))
    chosen = frame[there].drop(columns=[who])
    chosen = chosen[~chosen[key].duplicated()].reset_index(drop=True)
    majority = ballots.majority()
    chosen[label] = [majority[id] for id in as_texts(chosen[key])]
    if isinstance(source, str | Path):  # pictures lie beside the table
        for column in {settings.image, *PICTURES} & set(chosen.columns):
            chosen[column] = [
                str(Path(source).parent / value) if isinstance(value, str) else value
                for value in chosen[column]
            ]
    return chosen, ballots


def from_columns(votes: Any, class_names: Sequence[str] | None) -> tuple[list[str], Ballots]:
    """The majority of each row, and the votes, of an array or a frame N × A; gaps are −1, NaN or None."""
    table = np.asarray(votes, dtype=object)
    if table.ndim != 2:
        raise InputError(f"votes of shape {table.shape}: must be examples × annotators")
    names = [str(name) for name in getattr(votes, "columns", range(table.shape[1]))]
    texts = np.array(label_texts(table.flatten().tolist()), object).reshape(table.shape)
    missing = {*MISSING, "-1"} - set(class_names or ())
    rows, columns = np.nonzero(~np.isin(texts, [*missing]))
    ballots = Ballots([*map(str, rows)], [names[a] for a in columns], texts[rows, columns].tolist())
    majority = ballots.majority()
    silent = [row for row in range(len(table)) if str(row) not in majority]
    if silent:
        raise InputError(f"votes[{silent[0]}]: nobody labelled it; leave the example out")
    return [majority[str(row)] for row in range(len(table))], ballots


@dataclass(frozen=True)
class Votes:
    """Votes as numbers, of the examples that are audited."""

    example: Tensor
    annotator: Tensor
    label: Tensor
    examples: int
    annotators: tuple[str, ...]
    classes: int

    @classmethod
    def of(cls, ballots: Ballots, examples: Examples) -> "Votes":
        """The votes on examples and classes that are left; a label that is no example's majority is no class."""
        ids = examples.ids or tuple(map(str, range(len(examples))))
        place = {id: i for i, id in enumerate(ids)}
        number = class_numbers(set(ballots.labels), examples.class_names)
        names = tuple(sorted(set(ballots.annotators)))
        who = {name: a for a, name in enumerate(names)}
        kept = [
            (place[id], who[a], number[label])
            for id, a, label in zip(*ballots, strict=True)
            if id in place and label in number
        ]
        example, annotator, label = (
            torch.tensor(kept, dtype=torch.int64, device="cpu").reshape(-1, 3).unbind(1)
        )
        return cls(example, annotator, label, len(examples), names, examples.num_classes)

    def counts(self) -> Tensor:
        """How many chose each class, (N, K)."""
        cells = self.examples * self.classes
        flat = torch.bincount(self.example * self.classes + self.label, minlength=cells)
        return flat.view(self.examples, self.classes)

    def majority(self, prior: Tensor) -> Tensor:
        """The class that most people chose (N,); where classes tie, the one that the prior prefers."""
        return (self.counts() + 0.5 * prior).argmax(1)

    def by_example(self) -> list[list[tuple[int, int]]]:
        """The votes on each example as pairs of annotator and label."""
        said: list[list[tuple[int, int]]] = [[] for _ in range(self.examples)]
        for i, a, k in torch.stack([self.example, self.annotator, self.label], 1).tolist():
            said[i].append((a, k))
        return said

    def texts(self, class_names: Sequence[str]) -> list[str]:
        """The votes on each example in words: "ann: cat, bob: dog"."""
        return [
            ", ".join(f"{self.annotators[a]}: {class_names[k]}" for a, k in votes)
            for votes in self.by_example()
        ]
