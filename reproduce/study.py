"""What a figure is: its recipes, its drawing, its claims."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesmooth.train import Recipe, Run
from reproduce.methods import Cell
from reproduce.rows import Table
from reproduce.scale import Scale
from reproduce.verdict import Claim


@dataclass(frozen=True)
class Finished:
    """The runs of a study that are over, by the hash of their recipe, and how to measure on them."""

    cells: Sequence[Cell]
    runs: Mapping[str, Run]
    device: str | None = None
    samples: int = 64  # of the posterior

    def pairs(self) -> Iterator[tuple[Cell, Run]]:
        """Every cell that has a run, with that run."""
        for cell in self.cells:
            if (run := self.runs.get(cell.recipe.hash)) is not None:
                yield cell, run


@dataclass(frozen=True)
class Study:
    """One figure.

    `cells` are the places in it with their recipes; `more` are those that follow from the table of the first ones
    (further seeds of what a grid chose). `measure` makes a table of the finished runs where accuracies are not what the
    figure shows. `draw` and `claims` see nothing but the table, so a figure can be drawn again from its CSV.
    """

    name: str
    figure: str  # the label in the paper; "" where the figure is not in it
    title: str
    shows: str
    cells: Callable[[Scale], list[Cell]]
    draw: Callable[[Table, Path], None]
    claims: Callable[[Table], list[Claim]]
    measure: Callable[[Finished], Table] | None = None
    more: Callable[[Scale, Table], list[Cell]] = lambda scale, table: []
    summarise: Callable[[Table], list[list[str]]] | None = None  # a table for people, head first

    def recipes(self, scale: Scale) -> list[Recipe]:
        """What has to be trained, each once."""
        return list({cell.recipe.hash: cell.recipe for cell in self.cells(scale)}.values())
