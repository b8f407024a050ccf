"""A study from its recipes to its files: train what is missing, make the table, draw, judge."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_atomically
from bayesmooth.train import Run
from bayesmooth.train.recipe import override
from bayesmooth.train.sweep import OVER, Outcome, sweep
from reproduce import STUDIES
from reproduce.methods import Cell
from reproduce.page import write_page
from reproduce.rows import (
    Row,
    Table,
    make_table,
    read_final,
    read_table,
    tabulate_runs,
    write_table,
)
from reproduce.scale import Scale
from reproduce.study import Finished, Study

LABELLED = ("corruption", "train.seed")  # what tables and figures call the cells by


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
    another machine. On Ctrl-C it writes what there is, without a verdict; an earlier table never loses rows.
    """
    check_directory(folders.out)  # before hours of training, not after them
    cells = change_cells(study.cells(scale), settings)
    quiet = how.get("quiet", False)
    try:
        outcomes = _train(study, cells, folders, executor, how)
        table = tabulate(study, cells, folders, quiet)
        if more := change_cells(study.more(scale, table), settings):
            cells = cells + more
            outcomes += _train(study, more, folders, executor, how)
            table = tabulate(study, cells, folders, quiet)
    except KeyboardInterrupt:
        # Label noise takes too long to measure now, and an earlier table must not lose rows.
        table = make_table([]) if study.measure is not None else tabulate(study, cells, folders)
        if len(table) and {row["hash"] for row in _earlier(study, folders)} <= {*table["hash"]}:
            publish(study, scale, cells, table, folders, command)
        raise
    if cells and table.empty:
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
    if not todo:
        return []
    recipes = [cell.recipe for cell in todo]
    # Two places may share a run; the first, which is the run as it ends, gives it its name.
    names = {cell.recipe.hash: cell.name for cell in reversed(todo)}
    return sweep(recipes, folders.runs, executor, data_dir=folders.data_dir, names=names, **how)


def _earlier(study: Study, folders: Folders) -> list[Row]:
    """The rows of an earlier table, where a row answers a cell."""
    if study.measure is not None:
        return []
    rows: list[Row] = read_table(folders.out / f"{study.name}.csv").to_dict("records")
    return rows


def tabulate(study: Study, cells: Sequence[Cell], folders: Folders, quiet: bool = False) -> Table:
    """The rows of all cells that have an answer."""
    runs = find_runs(cells, folders)
    if study.measure is not None:
        return study.measure(Finished(cells, runs, folders.data_dir, quiet))
    return tabulate_runs(cells, runs, _earlier(study, folders))


def find_runs(cells: Sequence[Cell], folders: Folders) -> dict[str, Run]:
    """The finished runs of the cells, by hash."""
    recipes = {cell.recipe.hash: cell.recipe for cell in cells}
    runs = {key: Run(folders.runs / recipe.title, recipe) for key, recipe in recipes.items()}
    return {key: run for key, run in runs.items() if run.status in OVER}


def publish(
    study: Study,
    scale: Scale,
    cells: Sequence[Cell],
    table: Table,
    folders: Folders,
    command: str = "",
) -> None:
    """The files of a study, from its table."""
    write_table(table, folders.out / f"{study.name}.csv")
    if study.measure is None:
        runs = table.drop_duplicates("hash", keep="last").set_index("hash")
    else:
        found = find_runs(cells, folders)
        runs = make_table([read_final(run) for run in found.values()]).set_axis(list(found))
    diverged, seconds = (runs[key].sum() if key in runs else 0 for key in ("diverged", "seconds"))
    facts = {
        "scale": scale.name,
        "command": command,
        "runs": len(runs),
        "missing": len({cell.recipe.hash for cell in cells} - {*runs.index}),
        "diverged": int(diverged),
        "seconds": round(seconds),
    }
    redraw(study, folders.out, facts)


def redraw(study: Study, out: Path, facts: dict[str, Any]) -> None:
    """Figure, claims and page, from the CSV alone. Where runs are missing, nothing is judged."""
    rows = read_table(out / f"{study.name}.csv")
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


def change_cells(cells: Sequence[Cell], settings: Sequence[str]) -> list[Cell]:
    """The same cells with these settings in every recipe."""
    for setting in settings:
        if cells and setting.strip().startswith(LABELLED):
            raise InputError(
                f"--set {setting}: a study decides its noise and seeds itself; use `bayesmooth sweep` for others"
            )
    if not settings:
        return list(cells)
    made = [replace(cell, tree=override(cell.tree, settings)) for cell in cells]
    if len({c.recipe.hash for c in made}) < len({c.recipe.hash for c in cells}):
        raise InputError(
            f"--set {' --set '.join(settings)}: makes runs equal that the study compares; use `bayesmooth sweep`"
        )
    return made
