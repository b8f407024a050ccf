"""A study: a figure of the paper, the recipes behind it, its drawing, its claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesmooth.lab import Recipe, Run
from bayesmooth.lab.studies.methods import Cell
from bayesmooth.lab.studies.rows import Table
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.verdict import Claim

# cells, runs by hash, where the data is, whether to be quiet
Measure = Callable[[Sequence[Cell], Mapping[str, Run], Path | None, bool], Table]


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
    measure: Measure | None = None
    more: Callable[[Scale, Table], list[Cell]] = lambda scale, table: []
    summarise: Callable[[Table], list[list[str]]] | None = None  # a table for people, head first

    def recipes(self, scale: Scale) -> list[Recipe]:
        """What has to be trained, each once."""
        return list({cell.recipe.hash: cell.recipe for cell in self.cells(scale)}.values())
