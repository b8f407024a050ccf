"""Where teams review: the audit as tasks of Label Studio, and the answers that it exports.

Files only. `export` writes the suggestions, worst first; `clean` reads the answers as it reads the decisions of the
report. An example is known by its id, which the tool keeps beside it as `example`.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from bayesmooth.audit.decisions import Decision
from bayesmooth.audit.table import Audit
from bayesmooth.data.labels import NO_TAGS
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError
from bayesmooth.files import write_atomically

REMOVE = "(remove)"  # what a reviewer chooses for an example that must go
LOCAL = "/data/local-files/?d="  # where Label Studio serves files below its document root


def export(audit: Audit, folder: Path) -> Path:
    """Write the contradicted labels, worst first, as tasks with a prediction (https://labelstud.io/guide/predictions),
    and the labelling interface beside them."""
    pictures, between = audit.examples.pictures, audit.tags and audit.tags.vocabulary.between
    paths = pictures.items if isinstance(pictures, ImageFiles) else ()
    kind = "image" if paths and all(isinstance(path, str) for path in paths) else "text"
    tasks: list[dict[str, Any]] = []
    for i, row in zip(audit.order.tolist(), audit.top(len(audit)), strict=True):
        if not audit.contradicted[i]:
            continue
        columns = ", ".join(f"{name}: {column[i]}" for name, column in audit.examples.meta.items())
        shown = f"{LOCAL}{paths[i]}" if kind == "image" else row.get("text", columns)
        labels, facts = [row["suggested"]], {"example": row["id"], "given": row["given"]}
        if between is not None:
            labels = [] if row["suggested"] == NO_TAGS else row["suggested"].split(between)
            facts["between"] = between
        facts |= {"disagreement": round(float(row["disagreement"]), 4), "quadrant": row["quadrant"]}
        result = {"from_name": "label", "to_name": kind, "type": "choices", "value": {"choices": labels}}
        score = round(float(row["suggested_probability"]), 4)
        prediction = {"model_version": "bayesmooth", "score": score, "result": [result]}
        tasks.append({"data": {**facts, kind: shown}, "predictions": [prediction]})
    choices = "".join(f'\n    <Choice value="{escape(name)}"/>' for name in (*audit.label_names, REMOVE))
    view = (
        f'<View>\n  <{kind.title()} name="{kind}" value="${kind}"/>\n  <Choices name="label" toName="{kind}" '
        f'choice="{"single" if between is None else "multiple"}">{choices}\n  </Choices>\n</View>\n'
    )
    write_atomically(folder / "label-studio.xml", view)
    path = folder / "label-studio.json"
    write_atomically(path, json.dumps(tasks, indent=1, ensure_ascii=False) + "\n")
    return path


def read_reviewed(path: Path) -> tuple[Decision, ...]:
    """The decisions in what Label Studio exported; whoever did not answer is left out."""
    try:
        tasks = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise InputError(f"{path}: must be a JSON export of Label Studio")
    decisions = []
    for task in tasks:
        facts = task.get("data", {})
        answers = [one["result"] for one in task.get("annotations", ()) if not one.get("was_cancelled")]
        if not answers or not answers[-1] or "example" not in facts:
            continue
        labels, given = answers[-1][0]["value"]["choices"], facts["given"]
        text = (facts.get("between") or "").join(labels) or NO_TAGS
        what = "remove" if REMOVE in labels else "keep" if text == given else "relabel"
        decisions.append(Decision(facts["example"], given, what, text if what == "relabel" else ""))
    if not decisions:
        raise InputError(f"{path}: holds no answer to a task that `audit --export` wrote")
    return tuple(decisions)
