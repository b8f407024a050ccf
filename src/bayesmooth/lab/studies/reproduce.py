"""A study from its recipes to its files: train what is missing, make the table, draw, judge."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_atomically
from bayesmooth.lab import Recipe, Run, toml
from bayesmooth.lab.studies import STUDIES, table
from bayesmooth.lab.studies.methods import Cell
from bayesmooth.lab.studies.page import write_page
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.sweep import OVER, Outcome, sweep

LABELLED = ("corruption.", "train.seed")  # what tables and figures call the cells by


@dataclass(frozen=True)
class Place:
    """Where the data is, where runs go, where figures go."""

    out: Path
    runs: Path
    data_dir: Path | None = None


def reproduce(
    study: Study,
    scale: Scale,
    place: Place,
    executor: Executor,
    *,
    settings: Sequence[str] = (),
    command: str = "",
    **how: Any,
) -> list[Outcome]:
    """Run a study; `settings` change every recipe, `how` goes to `sweep`.

    Writes `name`.csv, .png, .svg and .json to the directory `place.out`, and the page of all studies there.
    """
    cells = changed(study.cells(scale), settings)
    check_directory(place.out)  # before hours of training, not after them
    names = {cell.recipe.hash: cell.name for cell in cells}
    outcomes = sweep(
        [cell.recipe for cell in cells],
        place.runs,
        executor,
        data_dir=place.data_dir,
        names=names,
        **how,
    )
    ended = {o.recipe.hash: Run.open(o.path) for o in outcomes if o.status in OVER}
    if cells and not ended:
        raise InputError(
            f"{study.name}: no run has finished; the first says: {outcomes[0].message}"
        )
    publish(study, scale, cells, ended, place, command)
    return outcomes


def publish(
    study: Study,
    scale: Scale,
    cells: Sequence[Cell],
    runs: dict[str, Run],
    place: Place,
    command: str = "",
) -> None:
    """The files of a study, from the runs that there are."""
    file = place.out / f"{study.name}.csv"
    table.write(study.measure(cells, runs, place.data_dir), file)
    facts = {
        "scale": scale.name,
        "command": command,
        "runs": len(runs),
        "missing": len({cell.recipe.hash for cell in cells} - runs.keys()),
        "diverged": sum(run.status == "diverged" for run in runs.values()),
        "seconds": round(sum(run.seconds() for run in runs.values())),
    }
    redraw(study, place.out, facts)


def redraw(study: Study, out: Path, facts: dict[str, Any]) -> None:
    """Figure, claims and page, from the CSV alone. Where runs are missing, nothing is judged."""
    rows = table.read(out / f"{study.name}.csv")
    study.draw(rows, out / study.name)
    claims = study.claims(rows)
    if facts.get("missing"):
        claims = [replace(claim, verdict="not run") for claim in claims]
    content = {
        "study": study.name,
        "figure": study.figure,
        "title": study.title,
        "shows": study.shows,
        **facts,
        "claims": [asdict(claim) for claim in claims],
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_atomically(out / f"{study.name}.json", text + "\n")
    write_page(out, STUDIES)


def changed(cells: Sequence[Cell], settings: Sequence[str]) -> list[Cell]:
    """The same cells with these settings in every recipe."""
    for setting in settings:
        if cells and setting.strip().startswith(LABELLED):
            raise InputError(
                f"--set {setting}: a study decides its noise and seeds itself; use `bayesmooth sweep` for others"
            )
    made = [
        Cell(cell.labels, Recipe.from_dict(toml.override(cell.recipe.to_dict(), settings)))
        for cell in cells
    ]
    if len({c.recipe.hash for c in made}) < len({c.recipe.hash for c in cells}):
        raise InputError(
            f"--set {' --set '.join(settings)}: makes runs equal that the study compares; use `bayesmooth sweep`"
        )
    return made
