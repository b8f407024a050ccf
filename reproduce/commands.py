"""`bayesmooth reproduce`, `studies` and `demo`: train what is missing of a study, make its table, draw, judge."""

import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.cli.sweeps import make_executor, report_failures
from bayesmooth.errors import InputError
from bayesmooth.files import check_directory, write_json
from bayesmooth.progress import format_duration
from bayesmooth.train import Recipe, Run, override, prepare, train
from bayesmooth.train.compare import format_table
from bayesmooth.train.sweep import OVER, Outcome, Processes, sweep
from reproduce import STUDIES
from reproduce.datasets import embed_data as embed_data
from reproduce.demo import summarise_demo
from reproduce.study import NOISES, SCALES, TEXTS, Cell, Finished, Scale, Study
from reproduce.style import write_page
from reproduce.table import COLUMNS, EARLY, MEASURED, Row, Table, make_table, read_final, read_table, write_table

TIMED = 10  # steps, for the expected time
FACTS = ("scale", "command", "runs", "missing", "diverged", "seconds")
Finals = Mapping[tuple[str, bool], Row]
"""The last figures of the runs, by hash; with True, those at the epoch where SGD stops early."""


@dataclass(frozen=True)
class Job:
    """A study at a scale: where its runs and figures go, and which part of it is trained now."""

    study: Study
    scale: Scale
    out: Path
    runs: Path
    settings: Sequence[str] = ()  # change every recipe
    noises: Sequence[str] = ()  # of all that the study has, these; empty: all
    seeds: int = 0  # so many; 0: all
    command: str = ""  # the line that makes these figures again
    device: str | None = None

    def cells(self, table: Table | None = None) -> list[Cell]:
        """The first cells, which follow from the scale alone, or those that follow from their table."""
        cells = self.study.cells(self.scale) if table is None else self.study.more(self.scale, table)
        if not self.settings:
            return cells
        pairs = [(Recipe.from_dict(override(cell.recipe.to_dict(), self.settings)), cell) for cell in cells]
        kept = all((new.corruption, new.train.seed) == (c.recipe.corruption, c.recipe.train.seed) for new, c in pairs)
        if not kept or len({new.hash for new, _ in pairs}) < len({cell.recipe.hash for cell in cells}):
            raise InputError(
                f"--set {' '.join(self.settings)}: changes the noise or the seeds of a study, or makes runs equal that "
                "it compares; use `bayesmooth sweep`"
            )
        return [replace(cell, recipe=new) for new, cell in pairs]

    def wanted(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of the wanted noises and seeds."""
        some = [cell for cell in cells if not self.noises or cell.noise in self.noises]
        return [cell for cell in some if not self.seeds or cell.seed < self.seeds]


def run_study(job: Job, executor: Executor) -> list[Outcome]:
    """Train what is missing, then write `name`.csv, .png and .json to `job.out`, and the page of all studies there.

    Rows that an earlier `name`.csv has for the same recipes are kept and not trained again, so that tables can be
    continued on another machine, or noise by noise.
    """
    check_directory(job.out)  # before hours of training, not after them
    cells, csv = job.cells(), job.out / f"{job.study.name}.csv"
    # The paper's network starts from ImageNet, as all on this set do.
    if any(c.recipe.data.name == "clothing1m" and not c.recipe.model.weights for c in cells):
        raise InputError(
            "clothing1m without ImageNet weights: hundreds of hours from scratch, and no result of the paper; "
            "add --set model.weights=resnet50.pth --set model.new_head=true with torchvision's resnet50 weights"
        )
    kept: Finals = {
        (row["hash"], row["method"] == EARLY): {
            name: row[name] for name in MEASURED if name in row and row[name] == row[name]
        }
        for row in (() if job.study.measure else read_table(csv).to_dict("records"))
    }
    if kept and not {key for key, _ in kept} & {cell.recipe.hash for cell in cells}:
        raise InputError(f"{csv}: its {len(kept)} runs have other settings, and would be lost; choose another --out")
    outcomes = train_missing(job, cells, kept, executor)
    table, finals = tabulate(job, cells, kept)
    if more := job.cells(table):
        cells += more
        outcomes += train_missing(job, more, kept, executor)
        table, finals = tabulate(job, cells, kept)
    if cells and table.empty:
        first = outcomes[0].message if outcomes else "there is none"
        raise InputError(f"{job.study.name}: no run has finished; the first says: {first}")
    write_table(table, csv)
    runs = {key: row for (key, _), row in finals.items()}
    missing = len({cell.recipe.hash for cell in cells} - {*runs})
    diverged, seconds = (sum(row.get(key) or 0 for row in runs.values()) for key in ("diverged", "seconds"))
    values = (job.scale.name, job.command, len(runs), missing, int(diverged), round(seconds))
    redraw(job.study, job.out, dict(zip(FACTS, values, strict=True)))
    return outcomes


def train_missing(job: Job, cells: Sequence[Cell], kept: Finals, executor: Executor) -> list[Outcome]:
    """Train the cells of the wanted noises and seeds that no row of an earlier table answers."""
    answered = {key for key, _ in kept}
    todo = [cell for cell in job.wanted(cells) if cell.recipe.hash not in answered]
    if not todo:
        return []
    # Two places may share a run; the first, which is the run as it ends, gives it its name.
    names = {cell.recipe.hash: "  ".join(map(str, cell.labels.values())) for cell in todo[::-1]}
    return sweep([cell.recipe for cell in todo], job.runs, executor, names=names, device=job.device)


def tabulate(job: Job, cells: Sequence[Cell], kept: Finals) -> tuple[Table, Finals]:
    """The table of a study, and the last figures of the runs behind it.

    It has one row per cell that has a finished run, or a row in the earlier table with the same hash.
    """
    finished, rows, used = [], [], dict[tuple[str, bool], Row]()
    for cell in cells:
        run, key = Run(job.runs / cell.recipe.title, cell.recipe), (cell.recipe.hash, cell.method == EARLY)
        if run.status in OVER:
            finished.append((cell, run))
            used[key] = read_final(run, early=key[1])
        elif key in kept:
            used[key] = kept[key]
        if key in used:
            section = cell.recipe.data
            name = Path(section.options.get("path", section.name)).stem.removesuffix("-{split}")  # of embeddings, which
            rows.append({**used[key], "data": name, **cell.labels, "hash": key[0]})
    if job.study.measure is not None:
        return job.study.measure(Finished(finished, job.device, job.scale.noise_samples)), used
    table = make_table(rows)
    return table[[name for name in COLUMNS if name in table]], used


def redraw(study: Study, out: Path, facts: Mapping[str, Any]) -> None:
    """Figure, claims and page, from the CSV alone; a part of the runs gives a verdict that is marked as such."""
    rows = read_table(out / f"{study.name}.csv")
    study.draw(rows, out / study.name)
    claims = [asdict(claim) for claim in study.claims(rows)]
    for claim in claims if facts["missing"] else ():
        claim["measured"] = f"{facts['runs']} of {facts['runs'] + facts['missing']} runs: {claim['measured']}"
        if claim["verdict"] == "reproduced":
            claim["verdict"] = "direction only"
    content = {
        "study": study.name,
        **{key: TEXTS[study.name].get(key, "") for key in ("figure", "title", "shows")},
        **facts,
        "claims": claims,
        **({"table": study.summarise(rows)} if study.summarise else {}),
    }
    write_json(out / f"{study.name}.json", content)
    write_page(out)


# ---- the commands ----


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them."""
    jobs, outcomes, failed = list_jobs(arguments), [], False
    if arguments.scale == "day":
        print(estimate(jobs, arguments.jobs), flush=True)
    with make_executor(arguments) as where:
        for job in jobs:
            name = job.study.name
            try:
                outcomes += run_study(job, where)
            except InputError as problem:
                if arguments.name != "all":
                    raise
                failed = True  # one study without its data does not stop the rest
                print(f"{name}: {problem}", file=sys.stderr)
            else:
                print(f"{name}: {job.out / name}.png .csv .json, {job.out / 'index.html'}")
    return report_failures(outcomes) or int(failed)


def estimate(jobs: Sequence[Job], at_once: int) -> str:
    """How long all runs will take here, by a few steps of each optimizer; finished ones count too."""
    recipes = {cell.recipe.hash: cell.recipe for job in jobs for cell in job.wanted(job.cells())}
    splits = prepare(next(iter(recipes.values())))
    tested = sum(len(part) for part in (splits.test, splits.validation) if part is not None)
    one_of_each = {recipe.optimizer.name: recipe for recipe in recipes.values()}
    print(f"timing a few steps of {', '.join(one_of_each)}", file=sys.stderr)
    times = {name: time_step(recipe, jobs[0].device) for name, recipe in one_of_each.items()}
    total = 0.0
    for recipe in recipes.values():
        name, epochs, evaluation = recipe.optimizer.name, recipe.train.epochs, recipe.evaluate
        looks = epochs // evaluation.every + evaluation.samples * (name == "ivon")
        # A forward pass takes a third of the time of a forward and a backward pass.
        examples = epochs * len(splits.train) + looks * tested / 3
        total += times[name] * examples / recipe.train.batch_size
    words = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in times.items())
    return (
        f"a training step here: {words}\n"
        f"{len(recipes)} runs: about {format_duration(total / at_once)} with {at_once} at a time; "
        "finished runs are skipped, and --noises and --seeds make it less"
    )


def time_step(recipe: Recipe, device: str | None) -> float:
    """Seconds of a training step: two of them warm up, then more are timed."""
    seconds = 0.0
    for steps in (2, TIMED):
        few = steps * recipe.train.batch_size
        short = [f"data.limit={few}", "data.validation=0.0", "train.epochs=1", "evaluate.every=1"]
        short += ["evaluate.samples=1", "evaluate.test_limit=2", f"evaluate.batchnorm={few}"]
        with tempfile.TemporaryDirectory() as folder:
            small = Recipe.from_dict(override(recipe.to_dict(), short))
            seconds = train(small, Path(folder) / "run", device=device, quiet=True).seconds() / steps
    return seconds


def list_jobs(arguments: Namespace) -> list[Job]:
    """The studies that are asked for, with what is wanted of them."""
    scale = SCALES[arguments.scale]
    if arguments.seeds < 0:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1; leave it out for all of the scale")
    chosen = list(scale.studies or STUDIES) if arguments.name == "all" else [arguments.name]
    if unknown := [name for name in chosen if name not in STUDIES]:
        raise InputError(f"study {unknown[0]!r}: must be all, or one of {', '.join(STUDIES)}")
    out, runs = arguments.out or Path("results") / scale.name, arguments.runs or Path("runs") / scale.name
    noises = [name for word in arguments.noises for name in find_noises(word)]
    part = arguments.settings, noises, arguments.seeds
    # The line that makes the figures again; where the data lies is a matter of the machine.
    words = ["--scale", arguments.scale, *(word for each in arguments.settings for word in ("--set", each))]
    words += ["--noises", *arguments.noises] if noises else []
    words += ["--seeds", str(arguments.seeds)] if arguments.seeds else []
    lines = {name: shlex.join(["bayesmooth", "reproduce", name, *words]) for name in chosen}
    jobs = [Job(STUDIES[n], scale, out, runs, *part, line, arguments.device) for n, line in lines.items()]
    if noises:
        jobs = [job for job in jobs if any(cell.noise in noises for cell in job.cells())]
    if not jobs:
        raise InputError(f"--noises {' '.join(arguments.noises)}: no run of {', '.join(chosen)} has it")
    return jobs


def find_noises(word: str) -> list[str]:
    """The noises that a word names: the whole name, κ alone, or without the per cent.

    >>> find_noises("0.4"), find_noises("symmetric 40")
    (['κ = 0.4'], ['symmetric 40 %'])
    """
    named = [name for name in NOISES if word in (name, name.removesuffix(" %"), name[4:])]
    if not named:
        raise InputError(f"--noises {word}: must be κ (0.4) or one of {', '.join(NOISES)}")
    return named


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, and how many runs it needs."""
    scale = SCALES[arguments.scale]
    print(f"{scale.name}: {scale.about}\n")
    seen = set[str]()
    for study in (STUDIES[name] for name in scale.studies or STUDIES):
        runs, texts = {cell.recipe.hash for cell in study.cells(scale)}, TEXTS[study.name]
        shared = f" and {len(runs & seen)} of studies above" if runs & seen else ""
        print(f"{study.name:16} {texts['title']}: {texts['shows']}")
        print(f"{'':16} {texts.get('figure', 'not in the paper')} · {len(runs - seen)} runs{shared}")
        seen |= runs
    print(f"\nall: {len(seen)} runs")
    return 0


def demo(arguments: Namespace) -> int:
    """See it work on digits of which 30 % have a wrong label."""
    if arguments.seeds < 1:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1")
    scale, out = replace(SCALES["demo"], seeds=tuple(range(arguments.seeds))), arguments.out
    with Processes(arguments.jobs) as executor:
        for name in scale.studies:
            run_study(Job(STUDIES[name], scale, out, out / "runs", command="bayesmooth demo"), executor)
    head, *rows = summarise_demo(read_table(out / "demo.csv"))
    print(format_table([dict(zip(head, row, strict=True)) for row in rows]))
    print(f"\n{out / 'index.html'}")
    return 0
