"""`audit` and `clean`."""

import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import shorten
from typing import TYPE_CHECKING

from bayesmooth.cli import LABELS_FILE, add_columns, add_reading, split_names
from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean

if TYPE_CHECKING:
    from bayesmooth.audit import Audit

OWN = {"source", "out", "title", "probabilities", "top", "thumbnails", "data_dir", "quiet"}
OWN |= {"export", "fail_above", "fail_on", "json", "summary"}
OF_RUNS = ("decisions", "budget", "leave_out", "samples", "seed")
LOADED = ("bayesmooth.audit", "pandas", "sklearn.linear_model", "PIL.Image")


def add_audit(parser: ArgumentParser) -> None:
    """The options of `audit`; those that are not given keep the defaults of `bayesmooth.audit`."""
    parser.usage = f"{parser.prog} SOURCE [option …]"
    parser.argument_default = SUPPRESS
    add = parser.add_argument
    kinds = (
        "a file with labels (.csv, .tsv, .json, .jsonl, .ndjson, or one of these with .gz; .xlsx, .parquet, .pq, .npz, "
        ".npy), a folder of pictures or of Parquet files, a Hugging Face data set on disk, or a run"
    )
    add("source", type=Path, help=kinds)
    add("--out", type=Path, default=Path("audit"), help="folder to write to (default: audit)")
    add("--budget", metavar="N", type=int, help="how many labels to ask about (default: 100)")
    top = "share of these that rank first; the others are drawn (default: a third): 50%% or 0.5"
    add("--from-top", metavar="SHARE", type=read_share, help=top)
    further = "decisions that a report exported; the ranking and the error rate learn from them"
    add("--decisions", metavar="FILE", type=Path, help=further)
    add("--title", default="", help="title of the report")
    add_columns(parser, LABELS_FILE)
    tags = "columns of 0 and 1 for several labels, one per tag"
    add("--tags", metavar="COLUMN,…", type=split_names, help=tags)
    add("--separator", metavar="TEXT", help="between several labels in the column of labels")
    people = "column that says who gave the label: one row per vote, --id names the example"
    add("--annotator", metavar="COLUMN", help=people)
    models = "annotators that are models, to compare with people"
    add("--machines", metavar="NAME,…", type=split_names, help=models)
    sure = "column of the confidence in each label, such as an LLM's own probability"
    add("--confidence", metavar="COLUMN", help=sure)
    predicted = "the numbers are predicted probabilities"
    add("--probabilities", action="store_true", default=False, help=predicted)
    other = "probabilities by a model that saw none of the labels"
    add("--predicted", metavar="COLUMN,…", type=split_names, help=other)
    shot = "let a CLIP --encoder predict by the names of classes"
    add("--zero-shot", action="store_true", help=shot)
    cache = "where embeddings are kept (default: $BAYESMOOTH_CACHE)"
    add("--cache", metavar="DIR", type=Path, help=cache)
    add("--device", help="of the encoder: cpu, cuda or cuda:N (default: a GPU if there is one)")
    split = "another split; reports examples found in both"
    add("--against", metavar="FILE", type=Path, help=split)
    left_out = "judge each label by a posterior without its example"
    add("--leave-out", action="store_true", help=left_out)
    add("--samples", type=int, help="how many to draw from a run's posterior (default: 16)")
    add("--seed", type=int, help="of these samples (default: 0)")
    add("--cluster", choices=("ray",), help="score the examples as tasks of a cluster")
    add("--top", type=int, default=10, help="how many to print (default: 10)")
    add("--thumbnails", type=int, default=500, help="pictures in the report (default: 500)")
    place = "where a run's data set is (default: $BAYESMOOTH_DATA)"
    add("--data-dir", type=Path, help=place)
    add("--quiet", action="store_true", help="no progress")
    tools = "also write files for label-studio, argilla, fiftyone"
    add("--export", metavar="TOOL,…", type=split_names, default=[], help=tools)
    most = "exit with 1 if at least so many labels are wrong: 5%% or 0.05"
    add("--fail-above", metavar="SHARE", type=read_share, default=None, help=most)
    kinds = "exit with 1 if any occur: duplicates, conflicts, leaks, outliers, rare"
    add("--fail-on", metavar="KIND,…", type=split_names, default=[], help=kinds)
    add("--json", action="store_true", default=False, help="print audit.json and nothing else")
    page = "append a summary in Markdown, such as to $GITHUB_STEP_SUMMARY"
    add("--summary", metavar="FILE", type=Path, default=None, help=page)


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
    from bayesmooth.audit.exchange import TOOLS
    from bayesmooth.audit.findings import FINDINGS
    from bayesmooth.audit.outputs import check_source_stays, find_failures, to_markdown
    from bayesmooth.data.opening import RUN

    for tool in arguments.export:
        if tool not in TOOLS:
            raise InputError(f"--export {tool}: {did_you_mean(tool, TOOLS)}")
    for kind in arguments.fail_on:
        if kind not in FINDINGS:
            raise InputError(f"--fail-on {kind}: {did_you_mean(kind, FINDINGS)}")
    if "leaks" in arguments.fail_on and "against" not in arguments:
        raise InputError("--fail-on leaks: name the other split with --against")
    _check_folder(arguments.out)
    check_source_stays(arguments.out, arguments.source)
    options = {k: v for k, v in vars(arguments).items() if k not in OWN and v is not None}
    if "," in str(options.get("encoder")):
        options["encoder"] = split_names(options["encoder"])
    if (arguments.source / RUN).is_file():
        from bayesmooth.train import Run  # here: whoever audits a table never loads the training

        if foreign := [name for name in options if name not in OF_RUNS]:
            option = foreign[0].replace("_", "-")
            raise InputError(f"--{option}: not for a run, whose recipe says it")
        made = Run.open(arguments.source).audit(**options)
    else:
        verb = audit_probabilities if arguments.probabilities else audit_data
        made = verb(arguments.source, **options)
    saved = made.save(arguments.out, thumbnails=arguments.thumbnails, title=arguments.title)
    for tool in arguments.export:
        print(made.export(arguments.out, tool), file=sys.stderr)
    failures = find_failures(made, arguments.fail_above, arguments.fail_on)
    if arguments.summary is not None:
        with arguments.summary.open("a", encoding="utf-8") as page:
            page.write(to_markdown(made, failures))
    if arguments.json:
        print(saved.with_suffix(".json").read_text(encoding="utf-8"), end="")
    else:
        _print(made, arguments.top)
        print(saved)
    if failures:
        print(f"bayesmooth: failed: {'; '.join(failures)}", file=sys.stderr)
    return int(bool(failures))


def read_share(text: str) -> float:
    """A share of one, written as 5% or 0.05."""
    share = float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    if not 0 <= share <= 1:
        raise ArgumentTypeError(f"{text}: must be a share such as 5% or 0.05")
    return share


def _check_folder(out: Path) -> None:
    """Refuse a folder that could not be written once the work is done; it is made only then."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); choose another place") from None


def add_clean(parser: ArgumentParser) -> None:
    """The options of `clean`."""
    add = parser.add_argument
    add("labels", type=Path, help="what was audited, or its audit.csv")
    given = "the CSV that the report exported, or a JSON file of the tool that --export wrote for"
    add("decisions", type=Path, nargs="?", default=None, help=given)
    add("--out", type=Path, required=True, help="the file or folder to write")
    folder = "folder of the audit (default: that of the decisions, or audit)"
    add("--audit", metavar="DIR", type=Path, help=folder)
    add("--drop-duplicates", action="store_true", help="keep one of copies with the same label")
    add("--drop-unreadable", action="store_true", help="leave out pictures that cannot be read")
    add("--label", metavar="COLUMN", help="column of labels (default: label, or given)")
    columns = "columns of 0 and 1, one per tag"
    add("--tags", metavar="COLUMN,…", type=split_names, help=columns)
    add("--separator", metavar="TEXT", help="between several labels in the column of labels")
    add_reading(parser)


def clean(arguments: Namespace) -> int:
    """Apply the decisions that the report exported, and write the labels in the format they came in.

    examples:
      bayesmooth clean reviews.csv decisions.csv --out corrected.csv --label stars
      bayesmooth clean embeddings.npz decisions.csv --out corrected.npz
      bayesmooth clean photos/ decisions.csv --out corrected/
      bayesmooth clean photos/ label-studio-export.json --out corrected/
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


def _print(made: "Audit", count: int) -> None:
    """What was learned from, the headline and the worst labels."""
    for note in made.summary["notes"]:
        print(f"note: {note}")
    print(repr(made).removeprefix("Audit(").removesuffix(")"))
    print(f"{made.summary['method']}, {made.summary['seconds']} s")
    if made.consensus is not None:
        print(made.consensus)
    print(f"also found: {made.findings}")
    for problem in made.findings.problems:
        print(f"problem: {problem.text}")
    rows = made.top(count)
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
