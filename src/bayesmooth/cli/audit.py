"""`audit` and `clean`."""

import sys
from argparse import ArgumentTypeError, Namespace
from math import nan
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from bayesmooth.cli import COLUMNS, DEVICE, READING, command, option, split_names
from bayesmooth.errors import InputError, did_you_mean
from bayesmooth.files import append_line, check_directory
from bayesmooth.progress import format_percent

if TYPE_CHECKING:
    from bayesmooth.audit import Audit

OWN = {"source", "out", "title", "probabilities", "top", "data_dir", "quiet"}
OWN |= {"fail_above", "fail_on", "json", "summary"}
OF_RUNS = ("decisions", "budget", "leave_out", "device")
KINDS = (
    "a file with labels (.csv, .tsv, .json, .jsonl, .ndjson, or one of these with .gz; .xlsx, .parquet, .pq, .npz, "
    ".npy), a folder of pictures, a Hugging Face data set on disk, or a run"
)
FOUND = "duplicates, conflicts, leaks, outliers, rare"
TAGS = option("--tags", metavar="COLUMN,…", type=split_names, help="columns of 0 and 1, one per tag (several labels)")
SEPARATOR = option("--separator", metavar="TEXT", help="what separates several labels in the column of labels")


def read_share(text: str) -> float:
    """A share of one, written as 5% or 0.05."""
    try:
        share = float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = nan
    if not 0 <= share <= 1:
        raise ArgumentTypeError(f"{text}: must be a share such as 5% or 0.05")
    return share


@command(
    option("source", type=Path, metavar="SOURCE", help=KINDS),
    option("--out", type=Path, default=Path("audit"), help="folder to write to (default: audit)"),
    option("--budget", metavar="N", type=int, help="labels in the sample to review (default: 100)"),
    option("--decisions", metavar="FILE", type=Path, help="learn from these decisions, which a report exported"),
    option("--title", default="", help="title of the report"),
    *COLUMNS,
    TAGS,
    SEPARATOR,
    option("--annotator", metavar="COLUMN", help="column of annotators: one row per vote, and --id names the example"),
    option("--probabilities", action="store_true", help="the data are predicted probabilities of the classes"),
    option("--predicted", metavar="COLUMN,…", type=split_names, help="probabilities by a model that saw no labels"),
    option("--cache", metavar="DIR", type=Path, help="of embeddings (default: $BAYESMOOTH_CACHE, ~/.cache/bayesmooth)"),
    option("--against", metavar="FILE", type=Path, help="another split: report examples that are in both"),
    option("--leave-out", action="store_const", const=True, help="judge each label by a posterior without its example"),
    option("--top", type=int, default=10, help="labels to print (default: 10)"),
    *DEVICE,
    option("--fail-above", metavar="SHARE", type=read_share, help="exit with 1 if surely more are wrong: 5%% or 0.05"),
    option("--fail-on", metavar="KIND,…", type=split_names, default=[], help=f"exit with 1 if any is found: {FOUND}"),
    option("--json", action="store_true", help="print audit.json and nothing else"),
    option("--summary", metavar="FILE", type=Path, help="append a summary in Markdown to this file"),
)
def audit(arguments: Namespace) -> int:
    """Find the labels that look wrong and the examples that are ambiguous.

    examples:
      bayesmooth audit photos/                              one folder per class
      bayesmooth audit reviews.csv --text review --label stars
      bayesmooth audit table.parquet --label kind --features width,height
      bayesmooth audit votes.csv --annotator worker --id photo
      bayesmooth audit photos.csv --tags beach,dog,night    several labels: columns of 0 and 1
      bayesmooth audit embeddings.npz                       from any encoder, with labels
      bayesmooth audit predictions.npz --probabilities
      bayesmooth audit photos/ --decisions decisions.csv    another round, after a review
      bayesmooth audit train/ --against test/ --fail-above 5% --fail-on leaks,conflicts
    """
    from bayesmooth.audit import audit as audit_data
    from bayesmooth.audit import audit_probabilities
    from bayesmooth.audit.findings import FINDINGS
    from bayesmooth.audit.table import check_source_stays
    from bayesmooth.data.opening import RUN

    for kind in arguments.fail_on:
        if kind not in FINDINGS:
            raise InputError(f"--fail-on {kind}: {did_you_mean(kind, FINDINGS)}")
    if "leaks" in arguments.fail_on and arguments.against is None:
        raise InputError("--fail-on leaks: name the other split with --against")
    check_directory(arguments.out)
    check_source_stays(arguments.out, arguments.source)
    options = {k: v for k, v in vars(arguments).items() if k not in OWN and v is not None}
    if "," in str(options.get("encoder")):
        options["encoder"] = split_names(options["encoder"])
    if (arguments.source / RUN).is_file():
        from bayesmooth.train import Run  # here: the audit of a table never loads the training

        if foreign := [name for name in options if name not in OF_RUNS]:
            raise InputError(f"--{foreign[0].replace('_', '-')}: not for a run, whose recipe says it")
        result = Run.open(arguments.source).audit(**options)
    else:
        verb = audit_probabilities if arguments.probabilities else audit_data
        result = verb(arguments.source, **options)
    saved = result.save(arguments.out, title=arguments.title)
    failures = result.find_failures(arguments.fail_above, arguments.fail_on)
    if arguments.summary is not None:
        append_line(arguments.summary, result.to_markdown(failures))
    if arguments.json:
        print(saved.with_suffix(".json").read_text(encoding="utf-8"), end="")
    else:
        _print(result, arguments.top)
        print(saved)
    if failures:
        print(f"bayesmooth: failed: {'; '.join(failures)}", file=sys.stderr)
    return int(bool(failures))


@command(
    option("labels", type=Path, help="what was audited, or its audit.csv"),
    option("decisions", type=Path, nargs="?", help="the CSV that the report exported; may be left out"),
    option("--out", type=Path, required=True, help="the file or folder to write (required)"),
    option("--audit", metavar="DIR", type=Path, help="folder of the audit (default: beside an input, or audit)"),
    option("--drop-duplicates", action="store_true", help="keep one of several copies that have the same label"),
    option("--drop-unreadable", action="store_true", help="leave out pictures that cannot be read"),
    option("--label", metavar="COLUMN", help="column of labels (default: label, or given)"),
    TAGS,
    SEPARATOR,
    *READING,
)
def clean(arguments: Namespace) -> int:
    """Apply the decisions of a review, and write the data with the new labels in the format of the input.

    examples:
      bayesmooth clean reviews.csv decisions.csv --out corrected.csv --label stars
      bayesmooth clean embeddings.npz decisions.csv --out corrected.npz
      bayesmooth clean photos/ decisions.csv --out corrected/
      bayesmooth clean photos/ --out fewer/ --drop-duplicates --drop-unreadable
      bayesmooth clean audit/audit.csv decisions.csv --out labels.csv
      bayesmooth clean photos.csv decisions.csv --tags beach,dog,night --out corrected.csv
    """
    from bayesmooth.audit.decisions import clean as apply_decisions

    result = apply_decisions(**vars(arguments))
    removed = f", {len(result.removed)} removed" if result.removed else ""
    print(f"{len(result.relabelled)} of {len(result.labels)} labels changed{removed}")
    print(arguments.out)
    return 0


def _print(result: "Audit", count: int) -> None:
    """Print the notes, the headline, the findings and the worst of the labels that look wrong."""
    for note in result.summary["notes"]:
        print(f"note: {note}")
    print(repr(result).removeprefix("Audit(").removesuffix(")"))
    print(result.headline)
    print(f"{result.summary['method']}, {result.summary['seconds']} s")
    if people := result.summary.get("annotators"):
        ends = (f"{one['annotator']} in {format_percent(one['quality'])}" for one in (people[0], people[-1]))
        print(f"{len(people)} annotators, right {' to '.join(ends)} of their votes")
    print(f"also found: {result.findings}")
    for problem in result.findings.problems:
        print(f"problem: {problem.text}")
    worst, columns = result.order[result.contradicted[result.order]], result.columns()
    rows = [{name: column[i] for name, column in columns.items()} for i in worst[:count]]
    width = max([len(row["id"]) for row in rows] + [2])
    for row in rows:
        change = f"{row['given']} → {row['suggested']}"
        if "tags_to_add" in row:
            signs = (("+", row["tags_to_add"]), ("−", row["tags_to_remove"]))
            change = "  ".join(f"{sign}{tags}" for sign, tags in signs if tags) or row["given"]
        sheet = f"row {row['row']:<6}" if "row" in row else ""
        text = shorten(row.get("text", ""), 60, placeholder=" …")
        line = f"  {row['rank']:>4}  {row['id']:{width}}  {sheet}{change}  {row['disagreement']:+.3f}  {text}"
        print(line.rstrip())
