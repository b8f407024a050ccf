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
    wanted = audit.contradicted | (tool == "fiftyone")
    rows = zip(audit.order.tolist(), audit.top(len(audit)), strict=True)
    items = [_describe(audit, i, row) for i, row in rows if wanted[i]]
    content: Any
    if tool == "label-studio":
        content = [_make_task(item) for item in items]
        shown = "image" if items and "image" in items[0] else "text"
        write_atomically(folder / "label-studio.xml", _write_interface(audit, shown))
    elif tool == "argilla":
        content = [_make_record(item) for item in items]
    else:
        content = {"samples": [_make_sample(item) for item in items]}
    path = folder / f"{tool}.json"
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _describe(audit: Audit, i: int, row: Item) -> Item:
    """What every tool is told of an example; several labels are lists of tags."""
    pictures, between = audit.examples.pictures, audit.tags and audit.tags.vocabulary.between
    columns = ", ".join(f"{name}: {column[i]}" for name, column in audit.meta.items())
    shown = {"text": row.get("text", columns)}
    if isinstance(pictures, ImageFiles) and isinstance(pictures.items[i], str):
        shown = {"image": pictures.items[i]}
    suggested: str | list[str] = row["suggested"]
    if between is not None:
        suggested = [] if suggested == NO_TAGS else row["suggested"].split(between)
    return {
        "example": row["id"],
        "given": row["given"],
        "suggested": suggested,
        "between": between,
        "score": round(float(row["suggested_probability"]), 4),
        "disagreement": round(float(row["disagreement"]), 4),
        "quadrant": row["quadrant"],
        **shown,
    }


def _as_list(label: str | list[str]) -> list[str]:
    return [label] if isinstance(label, str) else label


def _make_task(item: Item) -> Item:
    """https://labelstud.io/guide/predictions: the suggestion is a prediction, with its score."""
    kept = ("example", "given", "between", "disagreement", "quadrant", "text")
    data = {key: item[key] for key in kept if item.get(key) is not None}
    shown = "text"
    if "image" in item:
        shown, data["image"] = "image", LOCAL + item["image"]
    result: Item = {"from_name": "label", "to_name": shown, "type": "choices"}
    result["value"] = {"choices": _as_list(item["suggested"])}
    prediction = {"model_version": "bayesmooth", "score": item["score"], "result": [result]}
    return {"data": data, "predictions": [prediction]}


def _write_interface(audit: Audit, shown: str) -> str:
    """The labelling interface that the tasks fit."""
    names = audit.class_names if audit.tags is None else audit.tags.vocabulary.names
    choices = "".join(f'\n    <Choice value="{escape(name)}"/>' for name in (*names, REMOVE))
    many = "single" if audit.tags is None else "multiple"
    return (
        f'<View>\n  <{shown.title()} name="{shown}" value="${shown}"/>\n'
        f'  <Choices name="label" toName="{shown}" choice="{many}">{choices}\n  </Choices>\n</View>\n'
    )


def _make_record(item: Item) -> Item:
    """https://docs.argilla.io: a record with one question, `label`."""
    kept = ("example", "given", "between", "disagreement", "quadrant")
    fields = {key: item[key] for key in ("text", "image") if key in item}
    suggestion = {"value": item["suggested"], "score": item["score"], "agent": "bayesmooth"}
    return {
        "id": item["example"],
        "fields": fields,
        "metadata": {key: item[key] for key in kept if item[key] is not None},
        "suggestions": {"label": suggestion},
        "responses": {},
    }


def _make_sample(item: Item) -> Item:
    """https://docs.voxel51.com: a sample with its fields; `reviewed` is the reviewer's, `remove` a tag."""
    kept = ("example", "given", "between", "disagreement", "quadrant")
    tags = [{"_cls": "Classification", "label": tag} for tag in _as_list(item["suggested"])]
    suggested = {**tags[0], "confidence": item["score"]} if item["between"] is None else None
    many = {"_cls": "Classifications", "classifications": tags}
    fields: Item = {"suggested": suggested or many, "reviewed": None, "tags": []}
    return {"filepath": item.get("image"), **{key: item[key] for key in kept}, **fields}


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
