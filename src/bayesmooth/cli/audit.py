"""`audit` and `clean`."""

from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from bayesmooth.cli.options import LABELS_FILE, add_columns, add_reading, split_names
from bayesmooth.errors import InputError

if TYPE_CHECKING:
    from bayesmooth.audit import Audit

LOADED = ("bayesmooth.audit", "pandas", "sklearn.linear_model", "PIL.Image")


def add_audit(parser: ArgumentParser) -> None:
    """The options of `audit`; the defaults of its settings stand in `Settings`."""
    parser.usage = f"{parser.prog} SOURCE [option …]"
    parser.argument_default = SUPPRESS
    add = parser.add_argument
    kinds = "a .csv, .tsv, .parquet, .npz or .npy with labels, a folder of pictures or of Parquet files, a Hugging "
    add("source", type=Path, help=kinds + "Face data set on disk, or a run")
    add("--out", type=Path, default=Path("audit"), help="folder to write to (default: audit)")
    further = "what a report exported: decided labels are learned from and not asked again"
    add("--decisions", metavar="FILE", type=Path, default=None, help=further)
    add("--title", default="", help="title of the report")
    add_columns(parser, f"columns of 0 and 1, one per tag; or {LABELS_FILE}")
    people = "column that says who gave the label: one row per vote, --id names the example"
    add("--annotator", metavar="COLUMN", help=people)
    add("--separator", metavar="TEXT", help="between several labels in the column of labels")
    predicted = "the numbers are predicted probabilities"
    add("--probabilities", action="store_true", default=False, help=predicted)
    cache = "where embeddings are kept (default: $BAYESMOOTH_CACHE)"
    add("--cache", metavar="DIR", type=Path, help=cache)
    split = "another split; reports examples found in both"
    add("--against", metavar="FILE", type=Path, default=None, help=split)
    add("--out-of-sample", metavar="WAY", help="none (default), loo or folds")
    add("--folds", type=int, help="cross-fit with this many folds instead")
    add("--samples", type=int, help="drawn from a run's posterior (default: 16)")
    add("--cluster", choices=("ray",), help="score the examples as tasks of a cluster")
    add("--seed", type=int, help="(default: 0)")
    add("--top", type=int, default=10, help="how many to print (default: 10)")
    add("--thumbnails", type=int, default=500, help="pictures in the report (default: 500)")
    place = "where a run's data set is (default: $BAYESMOOTH_DATA)"
    add("--data-dir", type=Path, default=None, help=place)
    add("--quiet", action="store_true", help="no progress")


def audit(arguments: Namespace) -> int:
    """Find the labels that look wrong and the examples that are ambiguous.

    examples:
      bayesmooth audit photos/                              one folder per class
      bayesmooth audit reviews.csv --text review --label stars
      bayesmooth audit table.parquet --label kind --features width,height
      bayesmooth audit votes.csv --annotator worker --id photo
      bayesmooth audit photos.csv --labels beach,dog,night  several labels: columns of 0 and 1
      bayesmooth audit photos.csv --label tags --separator ";"
      bayesmooth audit embeddings.npz                       from any encoder, with labels
      bayesmooth audit embeddings.npy --labels labels.npy
      bayesmooth audit predictions.npz --probabilities
      bayesmooth audit runs/first --out runs/first/audit
      bayesmooth audit photos/ --decisions decisions.csv    another round, after a review
    """
    from bayesmooth.audit import audit as make_audit
    from bayesmooth.audit.outputs import check_source_stays
    from bayesmooth.data.opening import RUN

    settings = {"decisions": arguments.decisions, **_read_settings(arguments)}
    _check_folder(arguments.out)
    check_source_stays(arguments.out, arguments.source)
    if (arguments.source / RUN).is_file():
        from bayesmooth.train import Run  # here: whoever audits a table never loads the training

        made = Run.open(arguments.source).audit(arguments.data_dir, **settings)
    else:
        settings |= {"labels": arguments.labels, "against": arguments.against}
        if arguments.labels is not None and arguments.source.suffix != ".npy":
            settings["labels"] = split_names(arguments.labels)  # columns of tags, not a file
        settings["probabilities" if arguments.probabilities else "source"] = arguments.source
        made = make_audit(**settings)
    saved = made.save(arguments.out, thumbnails=arguments.thumbnails, title=arguments.title)
    _print(made, arguments.top)
    print(saved)
    return 0


def _check_folder(out: Path) -> None:
    """Refuse a folder that could not be written once the work is done; it is made only then."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written ({error.strerror}); choose another place"
        ) from None


def add_clean(parser: ArgumentParser) -> None:
    """The options of `clean`."""
    add = parser.add_argument
    add("labels", type=Path, help="what was audited, or its audit.csv")
    add("decisions", type=Path, nargs="?", default=None, help="the CSV that the report exported")
    add("--out", type=Path, required=True, help="the file or folder to write")
    folder = "folder of the audit (default: that of the decisions, or audit)"
    add("--audit", metavar="DIR", type=Path, help=folder)
    add("--drop-duplicates", action="store_true", help="keep one of copies with the same label")
    add("--drop-unreadable", action="store_true", help="leave out pictures that cannot be read")
    add("--label", metavar="COLUMN", help="column of labels (default: label, or given)")
    columns = "columns of 0 and 1, one per tag"
    add("--labels", dest="tags", metavar="COLUMN,…", type=split_names, help=columns)
    add("--separator", metavar="TEXT", help="between several labels in the column of labels")
    add_reading(parser)


def clean(arguments: Namespace) -> int:
    """Apply the decisions that the report exported, and write the labels in the format they came in.

    examples:
      bayesmooth clean reviews.csv decisions.csv --out corrected.csv --label stars
      bayesmooth clean embeddings.npz decisions.csv --out corrected.npz
      bayesmooth clean photos/ decisions.csv --out corrected/
      bayesmooth clean photos/ --out fewer/ --drop-duplicates --drop-unreadable
      bayesmooth clean audit/audit.csv decisions.csv --out labels.csv
      bayesmooth clean photos.csv decisions.csv --labels beach,dog,night --out corrected.csv
    """
    from bayesmooth.audit.decisions import clean as apply_decisions

    result = apply_decisions(**vars(arguments))
    removed = f", {len(result.removed)} removed" if result.removed else ""
    print(f"{len(result.relabelled)} of {len(result.labels)} labels changed{removed}")
    print(arguments.out)
    return 0


def _read_settings(arguments: Namespace) -> dict[str, Any]:
    """The settings that were given; those that were not keep their defaults."""
    from dataclasses import fields

    from bayesmooth.audit.settings import Settings
    from bayesmooth.data import Columns

    names = [f.name for kind in (Settings, Columns) for f in fields(kind)]
    given = {name: getattr(arguments, name) for name in names if name in arguments}
    if "folds" in given:
        if given.get("out_of_sample") == "loo":
            raise InputError("--folds with --out-of-sample loo: choose one")
        given["out_of_sample"] = "folds"
    return given


def _print(made: "Audit", count: int) -> None:
    """What was learned from, the headline and the worst labels."""
    for note in made.summary["notes"]:
        print(f"note: {note}")
    print(repr(made).removeprefix("Audit(").removesuffix(")"))
    print(f"{made.summary['method']}, {made.summary['seconds']} s")
    if made.consensus is not None:
        print(made.consensus)
    if made.findings is not None:
        print(f"also found: {made.findings}")
        for problem in made.findings.problems:
            print(f"problem: {problem.text}")
    rows = made.top(count)
    width = max([len(row["id"]) for row in rows] + [2])
    for row in rows:
        change = _describe_change(row)
        sheet = f"row {row['row']:<6}" if "row" in row else ""
        text = shorten(row.get("text", ""), 60, placeholder=" …")
        line = f"  {row['rank']:>4}  {row['id']:{width}}  {sheet}{change}  {row['disagreement']:+.3f}  {text}"
        print(line.rstrip())


def _describe_change(row: dict[str, Any]) -> str:
    """The label and what it looks like; of several labels those to add and to remove."""
    if "tags_to_add" not in row:
        return f"{row['given']} → {row['suggested']}"
    signs = (("+", row["tags_to_add"]), ("−", row["tags_to_remove"]))
    return "  ".join(f"{sign}{tags}" for sign, tags in signs if tags) or row["given"]
