"""`bayesmooth reproduce`, `studies` and `demo`: train what is missing of a study, make its table, draw, judge."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.cli.sweeps import make_executor, report_failures
from bayesmooth.errors import InputError
from bayesmooth.executors import Processes
from bayesmooth.files import check_directory, write_json
from bayesmooth.train import Run, override
from bayesmooth.train.sweep import OVER, Outcome, sweep
from bayesmooth.words import format_duration
from reproduce import STUDIES
from reproduce.datasets import embed_data as embed_data
from reproduce.figures.ours import summarise_demo
from reproduce.page import write_page
from reproduce.scale import DEMO, Scale, expected_seconds, find_scale, identify_data, time_steps
from reproduce.study import NOISES, Cell, Finished, Study
from reproduce.table import COLUMNS, EARLY, MEASURED, Table, make_table, read_final, read_table, write_table

LABELLED = ("corruption", "train.seed")  # what tables and figures call the cells by
FACTS = ("scale", "command", "runs", "missing", "diverged", "seconds", "noises")


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
    device: str | None = None

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


def run_study(job: Job, executor: Executor) -> list[Outcome]:
    """Train what is missing, then write `name`.csv, .png and .json to `job.out`, and the page of all studies there.

    Rows that an earlier `name`.csv has for the same recipes are kept and not trained again, so that tables can be
    continued on another machine. On Ctrl-C it writes what there is; an earlier table never loses rows.
    """
    check_directory(job.out)  # before hours of training, not after them
    cells = job.cells()
    # The paper's network starts from ImageNet, as all on this set do.
    if any(c.recipe.data.name == "clothing1m" and not c.recipe.model.weights for c in cells):
        raise InputError(
            "clothing1m without ImageNet weights: hundreds of hours from scratch, and no result of the paper; "
            "add --set model.weights=resnet50.pth --set model.new_head=true with torchvision's resnet50 weights"
        )
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


def train_missing(job: Job, cells: Sequence[Cell], executor: Executor) -> list[Outcome]:
    """Train the cells that neither a finished run nor a row of an earlier table answers."""
    answered = set() if job.study.measure else {*read_table(job.csv)["hash"]}
    todo = [cell for cell in cells if cell.recipe.hash not in answered]
    if not todo:
        return []
    # Two places may share a run; the first, which is the run as it ends, gives it its name.
    names = {cell.recipe.hash: "  ".join(map(str, cell.labels.values())) for cell in todo[::-1]}
    recipes = [cell.recipe for cell in todo]
    return sweep(recipes, job.runs, executor, names=names, device=job.device)


def find_runs(job: Job, cells: Sequence[Cell]) -> dict[str, Run]:
    """The finished runs of the cells, by hash."""
    recipes = {cell.recipe.hash: cell.recipe for cell in cells}
    runs = {key: Run(job.runs / recipe.title, recipe) for key, recipe in recipes.items()}
    return {key: run for key, run in runs.items() if run.status in OVER}


def tabulate(job: Job, cells: Sequence[Cell]) -> Table:
    """One row per cell that has a finished run, or a row in the earlier table with the same hash."""
    runs = find_runs(job, cells)
    if job.study.measure is not None:
        return job.study.measure(Finished(cells, runs, job.device, job.scale.noise_samples))
    earlier = read_table(job.csv).to_dict("records")
    known = {(row["hash"], row["method"] == EARLY): row for row in earlier}
    table = []
    for cell in cells:
        key = (cell.recipe.hash, cell.method == EARLY)
        if (run := runs.get(cell.recipe.hash)) is not None:
            measured = read_final(run, early=key[1])
        elif key in known:
            measured = {name: known[key][name] for name in MEASURED if name in known[key]}
        else:
            continue
        facts = {"data": identify_data(cell.recipe), **cell.labels, "hash": cell.recipe.hash}
        table.append({**measured, **facts})
    found = make_table(table)
    return found[[name for name in COLUMNS if name in found]]


def publish(job: Job, cells: Sequence[Cell], table: Table) -> None:
    """The files of a study, from its table."""
    write_table(table, job.csv)
    if job.study.measure is None:
        runs = table.drop_duplicates("hash", keep="last").set_index("hash")
    else:
        found = find_runs(job, cells)
        runs = make_table([read_final(run) for run in found.values()]).set_axis(list(found))
    diverged, seconds = (runs[key].sum() if key in runs else 0 for key in ("diverged", "seconds"))
    missing = len({cell.recipe.hash for cell in cells} - {*runs.index})
    values = (job.scale.name, job.command, len(runs), missing, int(diverged), round(seconds))
    redraw(job.study, job.out, dict(zip(FACTS, (*values, list(job.noises)), strict=True)))


def redraw(study: Study, out: Path, facts: dict[str, Any]) -> None:
    """Figure, claims and page, from the CSV alone; a part of the runs gives a verdict that is marked as such."""
    rows = read_table(out / f"{study.name}.csv")
    study.draw(rows, out / study.name)
    claims = [asdict(claim) for claim in study.claims(rows)]
    total = facts["runs"] + facts["missing"]
    part = f"{facts['runs']} of {total} runs: " if facts["missing"] else ""
    if facts.get("noises"):
        part = f"{', '.join(facts['noises'])} alone: {part}"
    for claim in claims if part else ():
        claim["measured"] = part + claim["measured"]
        if claim["verdict"] == "reproduced":
            claim["verdict"] = "direction only"
    content = {
        "study": study.name,
        "figure": study.figure,
        "title": study.title,
        "shows": study.shows,
        **facts,
        "claims": claims,
        **({"table": study.summarise(rows)} if study.summarise else {}),
    }
    write_json(out / f"{study.name}.json", content)
    write_page(out)


# ---- the commands ----


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them."""
    scale = find_scale(arguments.scale)
    if arguments.seeds < 0:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1; leave it out for all of the scale")
    if arguments.seeds:
        scale = replace(scale, seeds=tuple(range(arguments.seeds)), more_seeds=())
    chosen = list(scale.studies or STUDIES) if arguments.name == "all" else [arguments.name]
    if unknown := [name for name in chosen if name not in STUDIES]:
        raise InputError(f"study {unknown[0]!r}: must be all, or one of {', '.join(STUDIES)}")
    out = arguments.out or Path("results") / scale.name
    runs = arguments.runs or Path("runs") / scale.name
    wanted = {"settings": arguments.settings, "noises": find_noises(arguments.noises)}
    wanted["device"] = arguments.device
    commands = {name: write_command(name, arguments) for name in chosen}
    jobs = [Job(STUDIES[n], scale, out, runs, command=commands[n], **wanted) for n in chosen]
    if arguments.noises or arguments.seeds:
        jobs = [job for job in jobs if has_part(job)]
    if not jobs:
        raise InputError(f"--noises {' '.join(arguments.noises)}: no run of {', '.join(chosen)} has it")
    if scale.name == "day":
        announce(jobs, arguments.jobs)
    outcomes, failed = [], False
    with make_executor(arguments) as where:
        for job in jobs:
            name = job.study.name
            try:
                outcomes += run_study(job, where)
            except InputError as problem:
                if len(chosen) == 1:
                    raise
                failed = True  # one study without its data does not stop the rest
                print(f"{name}: {problem}", file=sys.stderr)
            else:
                print(f"{name}: {out / name}.png .csv .json, {out / 'index.html'}")
    return report_failures(outcomes) or int(failed)


def find_noises(wanted: Sequence[str]) -> list[str]:
    """The noises whose names end with these words, or have them without the per cent.

    >>> find_noises(["0.4", "symmetric 40"])
    ['κ = 0.4', 'symmetric 40 %']
    """
    found = []
    for word in wanted:
        match = [name for name in NOISES if word in (name, name.removesuffix(" %"), name[4:])]
        if not match:
            raise InputError(f"--noises {word}: must be κ (0.4) or one of {', '.join(NOISES)}")
        found += match
    return found


def has_part(job: Job) -> bool:
    """Whether a study has runs of the wanted noises; a table that holds more than these is not replaced."""
    cells, earlier = job.cells(), read_table(job.csv)
    for column in ("noise", "seed"):
        kept = {getattr(cell, column) for cell in cells}
        there = earlier[column].dropna().unique() if column in earlier else ()
        if cells and (lost := [value for value in there if value not in kept]):
            raise InputError(f"{job.csv}: has rows of {column} {lost[0]}, which would be lost; choose another --out")
    return bool(cells) or not job.noises


def announce(jobs: Sequence[Job], at_once: int) -> None:
    """Train a few steps of each method here, and say how long all runs will take."""
    recipes = {cell.recipe.hash: cell.recipe for job in jobs for cell in job.cells()}
    times = time_steps(recipes.values(), jobs[0].device)
    total = sum(seconds * steps for seconds, steps in times.values())
    words = (f"{name} {1000 * seconds:.0f} ms" for name, (seconds, _) in times.items())
    print(f"a training step here: {', '.join(words)}")
    print(
        f"{len(recipes)} runs: about {format_duration(total / at_once)} of training with {at_once} at a time; finished "
        "runs are skipped, and --noises and --seeds make it less",
        flush=True,
    )


def write_command(name: str, arguments: Namespace) -> str:
    """The line that makes these figures again; where the data lies is a matter of the machine."""
    words = ["bayesmooth", "reproduce", name, "--scale", arguments.scale]
    words += [word for each in arguments.settings for word in ("--set", each)]
    words += ["--noises", *arguments.noises] if arguments.noises else []
    return shlex.join(words + (["--seeds", str(arguments.seeds)] if arguments.seeds else []))


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, how many runs it needs, how long that takes."""
    scale = find_scale(arguments.scale)
    print(f"{scale.name}: {scale.about}\n")
    seen, total = set[str](), 0.0
    for study in (STUDIES[name] for name in scale.studies or STUDIES):
        recipes = study.recipes(scale)
        new = [recipe for recipe in recipes if recipe.hash not in seen]
        seen |= {recipe.hash for recipe in new}
        seconds = expected_seconds(new, scale, noise=study.measures_noise)
        total += seconds
        shared = len(recipes) - len(new)
        runs = f"{len(new)} runs" + (f" and {shared} of studies above" if shared else "")
        facts = [study.figure or "not in the paper", runs, format_duration(seconds)]
        print(f"{study.name:16} {study.title}: {study.shows}\n{'':16} {' · '.join(facts)}")
    at_once = f"expected with {scale.processes} at a time"
    print(f"\nall: {len(seen)} runs, {format_duration(total)} {at_once}")
    return 0


def demo(arguments: Namespace) -> int:
    """See it work on digits of which 30 % have a wrong label."""
    if arguments.seeds < 1:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1")
    scale, out = replace(DEMO, seeds=tuple(range(arguments.seeds))), arguments.out
    for name in scale.studies:
        job = Job(STUDIES[name], scale, out, out / "runs", command="bayesmooth demo")
        with Processes(arguments.jobs) as executor:
            run_study(job, executor)
    rows = summarise_demo(read_table(out / "demo.csv"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(f"\n{out / 'index.html'}")
    return 0
