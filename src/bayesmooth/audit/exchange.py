"""Where teams review: the audit as tasks of Label Studio, records of Argilla or fields of FiftyOne, and their answers.

Files only. `export` writes the suggestions, worst first; `clean` reads what the tool exports, as it reads the decisions
of the report. An example is known by its id, which every tool keeps beside it as `example`.
"""

import json
from collections.abc import Sequence
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
        columns = ", ".join(f"{name}: {column[i]}" for name, column in audit.meta.items())
        shown = {"text": row.get("text", columns)}
        if isinstance(pictures, ImageFiles) and isinstance(pictures.items[i], str):
            shown = {"image": pictures.items[i]}
        label: str | list[str] = row["suggested"]
        if between is not None:
            label = [] if label == NO_TAGS else row["suggested"].split(between)
        facts = {"example": row["id"], "given": row["given"]}
        facts |= {} if between is None else {"between": between}
        facts["disagreement"] = round(float(row["disagreement"]), 4)
        facts["quadrant"] = row["quadrant"]
        score = round(float(row["suggested_probability"]), 4)
        content.append(MAKERS[tool](facts, shown, label, score))
    if tool == "label-studio":
        names = audit.class_names if audit.tags is None else audit.tags.vocabulary.names
        kind = "image" if content and "image" in content[0]["data"] else "text"
        view = _write_interface(names, kind, "single" if audit.tags is None else "multiple")
        write_atomically(folder / "label-studio.xml", view)
    whole: Any = {"samples": content} if tool == "fiftyone" else content
    path = folder / f"{tool}.json"
    write_atomically(path, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return path


def _as_list(label: str | list[str]) -> list[str]:
    return [label] if isinstance(label, str) else label


def _make_task(facts: Item, shown: Item, label: str | list[str], score: float) -> Item:
    """https://labelstud.io/guide/predictions: the suggestion is a prediction, with its score."""
    ((kind, value),) = shown.items()
    result: Item = {"from_name": "label", "to_name": kind, "type": "choices"}
    result["value"] = {"choices": _as_list(label)}
    prediction = {"model_version": "bayesmooth", "score": score, "result": [result]}
    where = {kind: LOCAL + value if kind == "image" else value}
    return {"data": facts | where, "predictions": [prediction]}


def _write_interface(names: Sequence[str], kind: str, many: str) -> str:
    """The labelling interface that the tasks fit."""
    choices = "".join(f'\n    <Choice value="{escape(name)}"/>' for name in (*names, REMOVE))
    return (
        f'<View>\n  <{kind.title()} name="{kind}" value="${kind}"/>\n'
        f'  <Choices name="label" toName="{kind}" choice="{many}">{choices}\n  </Choices>\n</View>\n'
    )


def _make_record(facts: Item, shown: Item, label: str | list[str], score: float) -> Item:
    """https://docs.argilla.io: a record with one question, `label`."""
    suggestion = {"value": label, "score": score, "agent": "bayesmooth"}
    made = {"id": facts["example"], "fields": shown, "metadata": facts, "responses": {}}
    return made | {"suggestions": {"label": suggestion}}


def _make_sample(facts: Item, shown: Item, label: str | list[str], score: float) -> Item:
    """https://docs.voxel51.com: a sample with its fields; `reviewed` is the reviewer's, `remove` a tag."""
    tags: list[Item] = [{"_cls": "Classification", "label": tag} for tag in _as_list(label)]
    suggested: Item = {"_cls": "Classifications", "classifications": tags}
    if isinstance(label, str):
        suggested = {**tags[0], "confidence": score}
    fields: Item = {"suggested": suggested, "reviewed": None, "tags": []}
    return {"filepath": shown.get("image"), "between": None, **facts, **fields}


MAKERS = {"label-studio": _make_task, "argilla": _make_record, "fiftyone": _make_sample}


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
        labels = _read_answer(item)
        if labels is None or "example" not in facts:
            continue
        given, text = facts["given"], (facts.get("between") or "").join(labels) or NO_TAGS
        what = "remove" if REMOVE in labels else "keep" if text == given else "relabel"
        new = text if what == "relabel" else ""
        decisions.append(Decision(facts["example"], given, what, new))
    if not decisions:
        raise InputError(f"{path}: holds no answer to a task that `audit --export` wrote")
    return tuple(decisions)


def _read_answer(item: Item) -> list[str] | None:
    """The labels that somebody chose for an example, the last time; None where nobody did."""
    if "annotations" in item:
        done = [one["result"] for one in item["annotations"] if not one.get("was_cancelled")]
        return done[-1][0]["value"]["choices"] if done and done[-1] else None
    if "responses" in item:
        answers = item["responses"].get("label") or [{}]
        value = answers[-1].get("value")
        return None if value is None else _as_list(value)
    if "remove" in item.get("tags", ()):
        return [REMOVE]
    labels = item.get("reviewed") and item["reviewed"].get("classifications", [item["reviewed"]])
    return labels and [label["label"] for label in labels]
