"""A study from its recipes to its files: train what is missing, make the table, draw, judge."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_atomically
from bayesmooth.lab import Recipe, Run
from bayesmooth.lab.recipe import override
from bayesmooth.lab.studies import STUDIES
from bayesmooth.lab.studies.methods import Cell
from bayesmooth.lab.studies.page import write_page
from bayesmooth.lab.studies.rows import Table, final, read, tabulate, write
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.sweep import OVER, Outcome, sweep

LABELLED = ("corruption.", "train.seed")  # what tables and figures call the cells by


@dataclass(frozen=True)
class Folders:
    """Where the data is, where runs go, where figures go."""

    out: Path
    runs: Path
    data_dir: Path | None = None


def reproduce(
    study: Study,
    scale: Scale,
    folders: Folders,
    executor: Executor,
    *,
    settings: Sequence[str] = (),
    command: str = "",
    **how: Any,
) -> list[Outcome]:
    """Run a study; `settings` change every recipe, `how` goes to `sweep`.

    Writes `name`.csv, .png, .svg and .json to the directory `folders.out`, and the page of all studies there. Rows that
    an earlier `name`.csv has for the same recipes are kept and not trained again, so that tables can be continued on
    another machine. Stopped by Ctrl-C, it writes what there is, without a verdict; but no earlier table loses rows.
    """
    check_directory(folders.out)  # before hours of training, not after them
    cells = changed(study.cells(scale), settings)
    quiet = how.get("quiet", False)
    try:
        outcomes = _train(study, cells, folders, executor, how)
        table = make_table(study, cells, folders, quiet)
        if more := changed(study.more(scale, table), settings):
            cells = cells + more
            outcomes += _train(study, more, folders, executor, how)
            table = make_table(study, cells, folders, quiet)
    except KeyboardInterrupt:
        table = [] if study.measure is not None else make_table(study, cells, folders)
        lost = {row["hash"] for row in _earlier(study, folders)} - {row["hash"] for row in table}
        if table and not lost:
            publish(study, scale, cells, table, folders, command)
        raise
    if cells and not table:
        first = outcomes[0].message if outcomes else "there is none"
        raise InputError(f"{study.name}: no run has finished; the first says: {first}")
    publish(study, scale, cells, table, folders, command)
    return outcomes


def _train(
    study: Study, cells: Sequence[Cell], folders: Folders, executor: Executor, how: dict[str, Any]
) -> list[Outcome]:
    """Train the cells that neither a finished run nor a row of an earlier table answers."""
    rows = {row["hash"] for row in _earlier(study, folders)}
    todo = [cell for cell in cells if cell.recipe.hash not in rows]
    names = {cell.recipe.hash: cell.name for cell in todo}
    recipes = [cell.recipe for cell in todo]
    if not recipes:
        return []
    return sweep(recipes, folders.runs, executor, data_dir=folders.data_dir, names=names, **how)


def _earlier(study: Study, folders: Folders) -> Table:
    rows = read(folders.out / f"{study.name}.csv") if study.measure is None else []
    return [row for row in rows if row.get("hash")]


def make_table(study: Study, cells: Sequence[Cell], folders: Folders, quiet: bool = False) -> Table:
    """The rows of all cells that have an answer."""
    runs = find_runs(cells, folders)
    if study.measure is not None:
        return study.measure(cells, runs, folders.data_dir, quiet)
    return tabulate(cells, runs, _earlier(study, folders))


def find_runs(cells: Sequence[Cell], folders: Folders) -> dict[str, Run]:
    """The finished runs of the cells, by hash."""
    runs = {}
    for recipe in {cell.recipe.hash: cell.recipe for cell in cells}.values():
        path = folders.runs / recipe.title
        if path.exists() and (run := Run.open(path)).status in OVER:
            runs[recipe.hash] = run
    return runs


def publish(
    study: Study,
    scale: Scale,
    cells: Sequence[Cell],
    table: Table,
    folders: Folders,
    command: str = "",
) -> None:
    """The files of a study, from its table."""
    write(table, folders.out / f"{study.name}.csv")
    if study.measure is None:
        rows = {row["hash"]: row for row in table}
    else:
        rows = {hash: final(run) for hash, run in find_runs(cells, folders).items()}
    facts = {
        "scale": scale.name,
        "command": command,
        "runs": len(rows),
        "missing": len({cell.recipe.hash for cell in cells} - rows.keys()),
        "diverged": sum(bool(row.get("diverged")) for row in rows.values()),
        "seconds": round(sum(row.get("seconds") or 0 for row in rows.values())),
    }
    redraw(study, folders.out, facts)


def redraw(study: Study, out: Path, facts: dict[str, Any]) -> None:
    """Figure, claims and page, from the CSV alone. Where runs are missing, nothing is judged."""
    rows = read(out / f"{study.name}.csv")
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
        **({"table": study.summarise(rows)} if study.summarise else {}),
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
        Cell(cell.labels, Recipe.from_dict(override(cell.recipe.to_dict(), settings)))
        for cell in cells
    ]
    if len({c.recipe.hash for c in made}) < len({c.recipe.hash for c in cells}):
        raise InputError(
            f"--set {' --set '.join(settings)}: makes runs equal that the study compares; use `bayesmooth sweep`"
        )
    return made
