"""`audit` and `clean`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bayesmooth.audit.api import WAYS
from bayesmooth.audit.api import audit as make_audit
from bayesmooth.audit.decisions import clean as apply_decisions
from bayesmooth.audit.scores import SCORES
from bayesmooth.audit.sources import open_path
from bayesmooth.audit.table import Audit
from bayesmooth.errors import InputError


def audit(arguments: Namespace) -> int:
    """Find the labels that look wrong and the examples that are ambiguous.

    examples:
      bayesmooth audit embeddings.npz                 from any encoder, with labels; .csv and .parquet too
      bayesmooth audit runs/first --out runs/first/audit
      bayesmooth audit predictions.npz --probabilities
    """
    if arguments.folds is not None and arguments.out_of_sample == "loo":
        raise InputError("--folds with --out-of-sample loo: choose one")
    if arguments.source.is_dir():
        made = _audit_run(arguments)
    else:
        columns = {"label": arguments.label, "clean_label": arguments.clean_label}
        source = open_path(arguments.source, **columns)
        made = make_audit(**_what(source, arguments), **_how(arguments))
    _print(made, arguments.top)
    print(made.save(arguments.out, thumbnails=arguments.thumbnails, title=arguments.title))
    return 0


def audit_arguments(parser: ArgumentParser) -> None:
    """The options of `audit`."""
    add = parser.add_argument
    add("source", type=Path, help="a .npz, .npy, .csv or .parquet with labels, or a run's folder")
    add("--out", type=Path, default=Path("audit"), help="folder to write to (default: audit)")
    add("--title", default="", help="of the report")
    add("--probabilities", action="store_true", help="the numbers are predicted probabilities")
    add("--label", help="column of the labels in a table (default: label)")
    add("--clean-label", help="column of the true labels, if known (default: clean_label)")
    add("--out-of-sample", choices=WAYS, default="none", help="default: none")
    add("--folds", type=int, help="cross-fit with so many folds instead")
    add("--score", choices=list(SCORES), default="root_margin", help="default: root_margin")
    add("--samples", type=int, default=16, help="of a run's posterior (default: 16)")
    add("--seed", type=int, default=0, help="(default: 0)")
    add("--top", type=int, default=10, help="how many to print (default: 10)")
    add("--thumbnails", type=int, default=500, help="pictures in the report (default: 500)")
    add("--data-dir", type=Path, help="where data sets are (default: $BAYESMOOTH_DATA, ./data)")
    add("--quiet", action="store_true", help="no progress")


def _audit_run(arguments: Namespace) -> Audit:
    from bayesmooth.lab import Run  # here: whoever audits a table never loads the lab

    run = Run.open(arguments.source)
    return run.audit(arguments.data_dir, **_how(arguments))


def clean(arguments: Namespace) -> int:
    """Apply the decisions that the report exported to a file of labels.

    example:
      bayesmooth clean audit/audit.csv decisions.csv --out corrected.csv
    """
    result = apply_decisions(
        arguments.labels,
        arguments.decisions,
        arguments.out,
        drop_ambiguous=arguments.drop_ambiguous,
    )
    dropped = f", {len(result.ambiguous)} dropped" if arguments.drop_ambiguous else ""
    print(f"{len(result.relabelled)} of {len(result.labels)} labels changed{dropped}")
    print(arguments.out)
    return 0


def clean_arguments(parser: ArgumentParser) -> None:
    """The options of `clean`."""
    parser.add_argument("labels", type=Path, help="a CSV with a column label or given, and ids")
    parser.add_argument("decisions", type=Path, help="the CSV that the report exported")
    parser.add_argument("--out", type=Path, required=True, help="the CSV to write")
    parser.add_argument(
        "--drop-ambiguous", action="store_true", help="leave out what was judged ambiguous"
    )


def _what(source: Any, arguments: Namespace) -> dict[str, Any]:
    return {"probabilities" if arguments.probabilities else "source": source}


def _how(arguments: Namespace) -> dict[str, Any]:
    way = "folds" if arguments.folds is not None else arguments.out_of_sample
    settings = {name: getattr(arguments, name) for name in ("score", "samples", "seed", "quiet")}
    folds = {} if arguments.folds is None else {"folds": arguments.folds}
    return {"out_of_sample": way, **folds, **settings}


def _print(made: Audit, count: int) -> None:
    """The headline and the worst labels."""
    print(repr(made).removeprefix("Audit(").removesuffix(")"))
    print(f"{made.summary['method']}, {made.summary['seconds']} s")
    rows = made.top(count)
    width = max([len(row["id"]) for row in rows] + [2])
    for row in rows:
        change = f"{row['given']} → {row['suggested']}"
        print(f"  {row['rank']:>4}  {row['id']:{width}}  {change}  {row['disagreement']:+.3f}")
