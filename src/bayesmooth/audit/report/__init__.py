"""One HTML file that opens from disk: everything inlined, nothing fetched, nothing from data run as code."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.audit.files import write_atomically
from bayesmooth.audit.report.payload import Array, Content, ReportData
from bayesmooth.audit.scores import QUADRANTS

__all__ = ["QUADRANTS", "ReportData", "render", "write_report"]

# Concatenated in this order inside one function scope.
SCRIPTS = (
    "data.js",
    "content.js",
    "filter.js",
    "decisions.js",
    "scales.js",
    "list.js",
    "scatter.js",
    "pointer.js",
    "matrix.js",
    "detail.js",
    "keys.js",
    "app.js",
    "start.js",
)


def write_report(data: ReportData, path: str | Path) -> int:
    """Write the report of `data` to `path`, whole or not at all, and return its size in bytes."""
    page = render(data).encode()
    write_atomically(path, page)
    return len(page)


def render(data: ReportData) -> str:
    """The page as one string."""
    script = "(() => {\n'use strict';\n" + "\n".join(map(_part, SCRIPTS)) + "})();"
    style, payload = _part("style.css"), _to_json(_payload(data))
    values = {
        "policy": _policy(script, style),
        "title": html.escape(data.title),
        "headline": html.escape(data.headline),
        "style": style,
        "script": script,
        "payload": payload,
    }
    template = _part("template.html")
    values["size"] = _megabytes(
        len(template) + sum(len(value.encode()) for value in values.values())
    )
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Only these two inline blocks may act; nothing is fetched from anywhere."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _to_json(value: object) -> str:
    """JSON that cannot end its script element, and that UTF-8 can always carry."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _payload(data: ReportData) -> dict[str, Any]:
    """The columns as base64 of little-endian arrays, the rest as it is."""
    label = np.uint8 if len(data.class_names) <= 256 else np.uint16
    columns = {
        "given": _pack(data.given, label),
        "suggested": _pack(data.suggested, label),
        "givenProbability": _pack(np.round(_unit(data.given_probability) * 65535), np.uint16),
        "suggestedProbability": _pack(
            np.round(_unit(data.suggested_probability) * 65535), np.uint16
        ),
        "disagreement": _pack(data.disagreement, np.float32),
        "ambiguity": _pack(data.ambiguity, np.float32),
        "quadrant": _pack(data.quadrant, np.uint8),
        "clean": None if data.clean is None else _pack(data.clean, label),
    }
    audit = {
        "count": len(data),
        "classes": list(data.class_names),
        "ids": None if data.ids is None else list(data.ids),
        "columns": columns,
        "thresholds": [float(data.ambiguity_threshold), float(data.disagreement_threshold)],
        "texts": None if data.texts is None else _texts(data.texts),
    }
    return {
        "key": hashlib.sha256(_to_json(audit).encode()).hexdigest()[:16],
        **audit,
        "source": data.source,
        "created": data.created,
        "axes": list(data.axis_names),
        "quadrants": list(QUADRANTS),
        "precision": data.precision,
        "summary": _plain(data.summary),
        "thumbnails": None if data.thumbnails is None else data.thumbnails.payload(),
    }


def _unit(values: Array) -> Array:
    return np.clip(np.asarray(values, np.float64), 0, 1)


def _pack(values: Array, dtype: type[np.generic]) -> dict[str, str]:
    """An array as {type, data}, the type by the name of JavaScript's view."""
    kind = {"u": "Uint", "f": "Float"}[np.dtype(dtype).kind] + str(8 * np.dtype(dtype).itemsize)
    array = np.asarray(values).astype(np.dtype(dtype).newbyteorder("<"))
    return {"type": f"{kind}Array", "data": base64.b64encode(array.tobytes()).decode()}


def _texts(texts: Sequence[Content]) -> dict[str, Any]:
    """Texts as they are; table rows as one list of keys and the values of each row."""
    keys = list(dict.fromkeys(key for row in texts if isinstance(row, Mapping) for key in row))
    rows = [
        [_plain(row.get(key)) for key in keys] if isinstance(row, Mapping) else row for row in texts
    ]
    return {"keys": [str(key) for key in keys], "rows": rows}


def _plain(value: Any) -> Any:
    """Anything as JSON: numpy scalars become numbers, what JSON lacks becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    finite = not isinstance(value, float) or np.isfinite(value)
    return value if finite and isinstance(value, str | int | float | None) else str(value)
