"""Where teams review: the audit as tasks of Label Studio, records of Argilla or fields of FiftyOne, and their answers.

Files only. `export` writes the suggestions, worst first; `clean` reads what the tool exports, as it reads the decisions
of the report. An example is known by its id, which every tool keeps beside it as `example`.
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

TOOLS = ("label-studio", "argilla", "fiftyone")
REMOVE = "(remove)"  # what a reviewer chooses for an example that must go
LOCAL = "/data/local-files/?d="  # where Label Studio serves files below its document root
Item = dict[str, Any]


def export(audit: Audit, folder: Path, tool: str) -> Path:
    """Write the audit for a tool: the contradicted labels, worst first; for FiftyOne all examples."""
    if tool not in TOOLS:
        raise InputError(f"{tool!r}: must be one of {', '.join(TOOLS)}")
    pictures, between = audit.examples.pictures, audit.tags and audit.tags.vocabulary.between
    content: list[Item] = []
    for i, row in zip(audit.order.tolist(), audit.top(len(audit)), strict=True):
        if not audit.contradicted[i] and tool != "fiftyone":
            continue
        columns = ", ".join(f"{name}: {column[i]}" for name, column in audit.examples.meta.items())
        kind, shown = "text", row.get("text", columns)
        if isinstance(pictures, ImageFiles) and isinstance(pictures.items[i], str):
            kind, shown = "image", pictures.items[i]
        labels = [row["suggested"]]
        facts = {"example": row["id"], "given": row["given"]}
        if between is not None:
            labels = [] if row["suggested"] == NO_TAGS else row["suggested"].split(between)
            facts["between"] = between
        facts |= {"disagreement": round(float(row["disagreement"]), 4), "quadrant": row["quadrant"]}
        score = round(float(row["suggested_probability"]), 4)
        content.append(make_item(tool, facts, kind, shown, labels, score))
    if tool == "label-studio":
        kind = "image" if content and "image" in content[0]["data"] else "text"
        choices = "".join(f'\n    <Choice value="{escape(name)}"/>' for name in (*audit.label_names, REMOVE))
        view = (
            f'<View>\n  <{kind.title()} name="{kind}" value="${kind}"/>\n  <Choices name="label" toName="{kind}" '
            f'choice="{"single" if between is None else "multiple"}">{choices}\n  </Choices>\n</View>\n'
        )
        write_atomically(folder / "label-studio.xml", view)
    whole: Any = {"samples": content} if tool == "fiftyone" else content
    path = folder / f"{tool}.json"
    write_atomically(path, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return path


def make_item(tool: str, facts: Item, kind: str, shown: str, labels: list[str], score: float) -> Item:
    """One example with its suggestion: a task with a prediction (https://labelstud.io/guide/predictions), a record with
    the question `label` (https://docs.argilla.io), or a sample with its fields (https://docs.voxel51.com), where
    `reviewed` is the reviewer's, and `remove` a tag."""
    many = "between" in facts
    if tool == "label-studio":
        value = {"type": "choices", "value": {"choices": labels}}
        result = {"from_name": "label", "to_name": kind, **value}
        prediction = {"model_version": "bayesmooth", "score": score, "result": [result]}
        where = LOCAL + shown if kind == "image" else shown
        return {"data": {**facts, kind: where}, "predictions": [prediction]}
    if tool == "argilla":
        suggestion = {"value": labels if many else labels[0], "score": score, "agent": "bayesmooth"}
        record = {"id": facts["example"], "fields": {kind: shown}, "metadata": facts, "responses": {}}
        return {**record, "suggestions": {"label": suggestion}}
    named: list[Item] = [{"_cls": "Classification", "label": label} for label in labels]
    suggested = {"_cls": "Classifications", "classifications": named} if many else {**named[0], "confidence": score}
    path = shown if kind == "image" else None
    return {"filepath": path, "between": None, **facts, "suggested": suggested, "reviewed": None, "tags": []}


def read_reviewed(path: Path) -> tuple[Decision, ...]:
    """The decisions in what Label Studio, Argilla or FiftyOne exported; whoever did not answer is left out."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON: {error}") from None
    samples = content.get("samples") if isinstance(content, dict) else content
    if not isinstance(samples, list) or not all(isinstance(item, dict) for item in samples):
        raise InputError(f"{path}: must be a JSON file of Label Studio, Argilla or FiftyOne")
    decisions = []
    for item in samples:
        facts = item.get("data") or item.get("metadata") or item
        labels = read_answer(item)
        if labels is None or "example" not in facts:
            continue
        given, text = facts["given"], (facts.get("between") or "").join(labels) or NO_TAGS
        what = "remove" if REMOVE in labels else "keep" if text == given else "relabel"
        decisions.append(Decision(facts["example"], given, what, text if what == "relabel" else ""))
    if not decisions:
        raise InputError(f"{path}: holds no answer to a task that `audit --export` wrote")
    return tuple(decisions)


def read_answer(item: Item) -> list[str] | None:
    """The labels that somebody chose for an example, the last time; None where nobody did."""
    if "annotations" in item:
        done = [one["result"] for one in item["annotations"] if not one.get("was_cancelled")]
        return done[-1][0]["value"]["choices"] if done and done[-1] else None
    if "responses" in item:
        value = (item["responses"].get("label") or [{}])[-1].get("value")
        return [value] if isinstance(value, str) else value
    if "remove" in item.get("tags", ()):
        return [REMOVE]
    labels = item.get("reviewed") and item["reviewed"].get("classifications", [item["reviewed"]])
    return labels and [label["label"] for label in labels]
