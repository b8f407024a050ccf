"""A study from its recipes to its files: train what is missing, make the table, draw, judge."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_atomically
from bayesmooth.train import Run, override
from bayesmooth.train.sweep import OVER, Outcome, sweep
from reproduce.methods import Cell
from reproduce.page import write_page
from reproduce.rows import Table, make_table, read_final, read_table, tabulate_runs, write_table
from reproduce.scale import Scale
from reproduce.study import Finished, Study

LABELLED = ("corruption", "train.seed")  # what tables and figures call the cells by


@dataclass(frozen=True)
class Job:
    """A study at a scale: where its runs and figures go, and which part of it is wanted."""

    study: Study
    scale: Scale
    out: Path
    runs: Path
    settings: Sequence[str] = ()  # change every recipe
    noises: Sequence[str] = ()  # of all that the study has, these; empty: all
    command: str = ""  # the line that makes these figures again
    how: dict[str, Any] = field(default_factory=dict)  # for `sweep`: device and threads

    @property
    def csv(self) -> Path:
        """The table of the study."""
        return self.out / f"{self.study.name}.csv"

    def cells(self) -> list[Cell]:
        """The first cells, which follow from the scale alone."""
        return self.change(self.study.cells(self.scale))

    def change(self, cells: Sequence[Cell]) -> list[Cell]:
        """The wanted ones of these cells, with the settings in every recipe."""
        if self.noises:
            cells = [cell for cell in cells if cell.noise in self.noises]
        for setting in self.settings:
            if cells and setting.strip().startswith(LABELLED):
                raise InputError(
                    f"--set {setting}: a study decides its noise and seeds itself; use `bayesmooth sweep` for others"
                )
        if not self.settings:
            return list(cells)
        made = [replace(cell, tree=override(cell.tree, self.settings)) for cell in cells]
        if len({c.recipe.hash for c in made}) < len({c.recipe.hash for c in cells}):
            raise InputError(
                f"--set {' --set '.join(self.settings)}: makes runs equal that the study compares; "
                "use `bayesmooth sweep`"
            )
        return made


def reproduce(job: Job, executor: Executor) -> list[Outcome]:
    """Train what is missing, then write `name`.csv, .png and .json to `job.out`, and the page of all studies there.

    Rows that an earlier `name`.csv has for the same recipes are kept and not trained again, so that tables can be
    continued on another machine. On Ctrl-C it writes what there is; an earlier table never loses rows.
    """
    check_directory(job.out)  # before hours of training, not after them
    cells = job.cells()
    check_weights(cells)
    try:
        outcomes = train_missing(job, cells, executor)
        table = tabulate(job, cells)
        if more := job.change(job.study.more(job.scale, table)):
            cells += more
            outcomes += train_missing(job, more, executor)
            table = tabulate(job, cells)
    except KeyboardInterrupt:
        # Label noise takes too long to measure now, and an earlier table must not lose rows.
        table = make_table([]) if job.study.measure else tabulate(job, cells)
        if len(table) and {*read_table(job.csv)["hash"]} <= {*table["hash"]}:
            publish(job, cells, table)
        raise
    if cells and table.empty:
        first = outcomes[0].message if outcomes else "there is none"
        raise InputError(f"{job.study.name}: no run has finished; the first says: {first}")
    publish(job, cells, table)
    return outcomes


def check_weights(cells: Sequence[Cell]) -> None:
    """Refuse Clothing1M from scratch: the paper's network starts from ImageNet, as all on this set do."""
    if any(c.recipe.data.name == "clothing1m" and not c.recipe.model.weights for c in cells):
        raise InputError(
            "clothing1m without ImageNet weights: hundreds of hours from scratch, and no result of the paper; "
            "add --set model.weights=resnet50.pth --set model.new_head=true with torchvision's resnet50 weights"
        )


def train_missing(job: Job, cells: Sequence[Cell], executor: Executor) -> list[Outcome]:
    """Train the cells that neither a finished run nor a row of an earlier table answers."""
    answered = set() if job.study.measure else {*read_table(job.csv)["hash"]}
    todo = [cell for cell in cells if cell.recipe.hash not in answered]
    if not todo:
        return []
    # Two places may share a run; the first, which is the run as it ends, gives it its name.
    names = {cell.recipe.hash: "  ".join(map(str, cell.labels.values())) for cell in todo[::-1]}
    recipes = [cell.recipe for cell in todo]
    return sweep(recipes, job.runs, executor, names=names, **job.how)


def tabulate(job: Job, cells: Sequence[Cell]) -> Table:
    """The rows of all cells that have an answer: a finished run, or a row of the earlier table."""
    runs = find_runs(job, cells)
    if job.study.measure is None:
        return tabulate_runs(cells, runs, read_table(job.csv))
    return job.study.measure(Finished(cells, runs, job.how.get("device"), job.scale.noise_samples))


def find_runs(job: Job, cells: Sequence[Cell]) -> dict[str, Run]:
    """The finished runs of the cells, by hash."""
    recipes = {cell.recipe.hash: cell.recipe for cell in cells}
    runs = {key: Run(job.runs / recipe.title, recipe) for key, recipe in recipes.items()}
    return {key: run for key, run in runs.items() if run.status in OVER}


def publish(job: Job, cells: Sequence[Cell], table: Table) -> None:
    """The files of a study, from its table."""
    write_table(table, job.csv)
    if job.study.measure is None:
        runs = table.drop_duplicates("hash", keep="last").set_index("hash")
    else:
        found = find_runs(job, cells)
        runs = make_table([read_final(run) for run in found.values()]).set_axis(list(found))
    diverged, seconds = (runs[key].sum() if key in runs else 0 for key in ("diverged", "seconds"))
    facts = {
        "scale": job.scale.name,
        "command": job.command,
        "runs": len(runs),
        "missing": len({cell.recipe.hash for cell in cells} - {*runs.index}),
        "diverged": int(diverged),
        "seconds": round(seconds),
        "noises": list(job.noises),
    }
    redraw(job.study, job.out, facts)


def redraw(study: Study, out: Path, facts: dict[str, Any]) -> None:
    """Figure, claims and page, from the CSV alone; a part of the runs gives a verdict that is marked as such."""
    rows = read_table(out / f"{study.name}.csv")
    study.draw(rows, out / study.name)
    claims = study.claims(rows)
    total = facts["runs"] + facts["missing"]
    part = f"{facts['runs']} of {total} runs: " if facts["missing"] else ""
    if facts.get("noises"):
        part = f"{', '.join(facts['noises'])} alone: {part}"
    if part:
        claims = [
            replace(c, measured=part + c.measured)
            if c.verdict != "reproduced"
            else replace(c, measured=part + c.measured, verdict="direction only")
            for c in claims
        ]
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
    write_page(out)
