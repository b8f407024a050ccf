"""One HTML file that opens from disk: everything inlined, nothing fetched, nothing from data run as code."""

import base64
import hashlib
import html
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from bayesmooth.audit.decisions import COLUMNS, DECISIONS
from bayesmooth.audit.multilabel import Tags
from bayesmooth.audit.review import CONSTANTS, Review
from bayesmooth.audit.table import QUADRANTS, SURE, Audit
from bayesmooth.audit.thumbnails import Thumbnails
from bayesmooth.data.features import SHEET_ROW
from bayesmooth.data.prepare import group_spellings
from bayesmooth.errors import InputError
from bayesmooth.words import format_percent

LIKELIEST = 3  # classes that are shown with their probabilities
WORST_TAGS = 5  # the same of tags
MOST_USUAL = 20_000  # classes × columns of a table of which is said what is usual
FENCE = 1.5  # interquartile ranges beyond the quartiles that are usual: Tukey's rule
SELDOM = 0.02  # of a class: categories with less are unusual
MOST_CATEGORIES = 50  # of a column: more are names
FEWEST = 8  # values of a class that it takes to say what is usual
# In this order, inside one function.
SCRIPTS = ("model.js", "review.js", "labels.js", "decisions.js", "list.js", "detail.js", "page.js")

Array = NDArray[Any]
Text = str | Mapping[str, object] | None
Usual = tuple[float, float] | list[str] | None
"""What is usual in a column: from … to, the categories, or unknown."""


def render(
    audit: Audit,
    *,
    title: str = "",
    created: str = "",
    texts: Sequence[Text] | None = None,
    thumbnails: Thumbnails | None = None,
    small: Thumbnails | None = None,
) -> str:
    """The page as one string.

    `created` is the date as it shall be printed. `texts` has a text for each example, or its table row as a mapping,
    or None where it is left out. `small` are pictures of examples that are shown beside others only.
    """
    if texts is not None and len(texts) != len(audit):
        raise InputError(f"texts: has {len(texts)} entries, must have one for each of {len(audit)}")
    pictures = [part for part in (thumbnails, small) if part is not None]
    if any(not np.isin(part.index, np.arange(len(audit))).all() for part in pictures):
        raise InputError(f"thumbnails.index: must be positions below {len(audit)}")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_part, SCRIPTS)) + "})();"
    style = _part("style.css")
    # Only these two inline blocks may act; nothing is fetched from anywhere.
    hashed = (hashlib.sha256(text.encode()).digest() for text in (script, style))
    scripts, styles = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashed)
    values = {
        "policy": f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
        "title": _to_html(title or str(audit.summary.get("source", "a data set"))),
        "headline": _to_html(audit.headline),
        "style": style,
        "script": script,
        "payload": _to_json(_payload(audit, created, texts, pictures)),
    }
    template = _part("template.html")
    size = len(template) + sum(len(value.encode()) for value in values.values())
    values["size"] = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _to_html(text: str) -> str:
    """Text that is no markup; what UTF-8 cannot carry, as in some names of files, is replaced."""
    return html.escape(text.encode("utf-8", "replace").decode())


def _to_json(value: object) -> str:
    """JSON that cannot end its script element, and that UTF-8 can always carry."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _payload(
    audit: Audit, created: str, texts: Sequence[Text] | None, pictures: Sequence[Thumbnails]
) -> dict[str, Any]:
    """The columns as base64 of little-endian arrays, the rest as it is."""
    label = np.min_scalar_type(len(audit.class_names) - 1)
    columns = {
        "given": _pack(audit.given, label),
        "suggested": _pack(audit.suggested, label),
        "givenProbability": _pack_share(audit.given_probability),
        "suggestedProbability": _pack_share(audit.suggested_probability),
        "disagreement": _pack(audit.disagreement, np.float32),
        "ambiguity": _pack(audit.ambiguity, np.float32),
        "quadrant": _pack(audit.quadrant, np.uint8),
        "clean": None if audit.clean is None else _pack(audit.clean, label),
    }
    table = audit.examples.table
    positions = all(name == str(i) for i, name in enumerate(audit.ids))
    content = {
        "count": len(audit),
        "classes": list(audit.class_names),
        "label": _describe_label(audit, texts),
        "ids": None if positions else list(audit.ids),
        "digested": table is not None and table.names_rows,
        "rows": audit.meta.get(SHEET_ROW),
        "columns": columns,
        "texts": None if texts is None else _texts(texts),
    }
    return {
        "key": hashlib.sha256(_to_json(content).encode()).hexdigest()[:16],
        **content,
        "created": created,
        "quadrants": list(QUADRANTS),
        "sure": SURE,
        "findings": _findings(audit),
        "truth": _describe_truth(audit),
        "notes": [str(note) for note in audit.summary.get("notes", ())],
        "summary": {key: _plain(value) for key, value in audit.summary.items() if key != "notes"},
        "thumbnails": [part.payload() for part in pictures],
        "review": None if audit.review is None else _describe_review(audit.review),
        "decisions": {"names": DECISIONS, "columns": COLUMNS},
        "clean": _clean_command(audit),
        "similar": audit.similar and {k: v.tolist() for k, v in audit.similar._asdict().items()},
    }


def _describe_review(review: Review) -> dict[str, Any]:
    """The queue, how it was drawn, and all that the page needs to compute what Python does."""
    traits, count = review.traits, len(review.drawn)
    label = np.min_scalar_type(int(max(traits.given.max(), traits.rival.max())))
    return {
        "asked": review.asked,
        "queue": review.queue.tolist(),
        "drawn": review.drawn[review.queue].tolist(),
        "wrong": [[i, int(wrong)] for i, wrong in review.wrong.items()],
        "traits": {
            "score": _pack(traits.score, np.float32),
            "numbers": _pack(traits.numbers, np.float32),
            "given": _pack(traits.given, label),
            "rival": _pack(traits.rival, label),
            "places": None if traits.places is None else _pack(traits.places, np.int8),
        },
        "numbers": traits.numbers.size // count,
        "places": 0 if traits.places is None else traits.places.size // count,
        **CONSTANTS,
    }


def _describe_label(audit: Audit, texts: Sequence[Text] | None) -> dict[str, Any]:
    """What a label is, and what the page has to know to show and change one."""
    if audit.tags is not None:
        return _describe_tags(audit.tags)
    counts = np.bincount(audit.given, minlength=len(audit.class_names))
    shown: dict[str, Any] = {
        "kind": "class",
        "named": audit.examples.names_classes,
        "likeliest": None,
        "usual": find_usual(texts or (), audit.given, len(audit.class_names)),
    }
    if audit.probabilities is not None:
        each = min(LIKELIEST, len(audit.class_names))
        shares, best = torch.from_numpy(audit.probabilities).topk(each, dim=1)
        shown["likeliest"] = _pack_likeliest(best, shares)
    if audit.consensus is not None:
        shown |= {"kind": "votes", **audit.consensus.to_payload()}
    return {**shown, "spellings": _list_spellings(audit.class_names, counts)}


def _describe_tags(tags: Tags) -> dict[str, Any]:
    """The same of sets of tags."""
    names = tags.vocabulary.names
    best = torch.from_numpy(tags.scores).topk(min(WORST_TAGS, len(names)), dim=1).indices
    shares = torch.from_numpy(tags.probabilities).gather(1, best)
    return {
        "kind": "tags",
        "named": True,
        **tags.vocabulary.describe(),
        "worst": _pack(tags.worst, np.min_scalar_type(len(names) - 1)),
        "likeliest": _pack_likeliest(best, shares),
        "usual": None,
        "spellings": _list_spellings(names, tags.given.sum(0)),
    }


def _pack_likeliest(best: Tensor, shares: Tensor) -> dict[str, Any]:
    """A few positions of names per example, with their probabilities."""
    return {
        "each": best.shape[1],
        "names": _pack(best.numpy(), np.min_scalar_type(int(best.max()))),
        "shares": _pack_share(shares.numpy()),
    }


def _list_spellings(names: Sequence[str], counts: Array) -> list[list[str]]:
    """Names that differ only in their spelling, the most frequent first."""
    groups = group_spellings(names, torch.from_numpy(counts))
    return [[names[k] for k in same] for same, _ in groups]


def _clean_command(audit: Audit) -> tuple[str, str, str]:
    """Beside what to run the command that applies decisions, and its text before and after the name of their file.

    Votes, and data that lie in no file with labels, are cleaned in the table that stands beside the page.
    """
    source = audit.examples.path
    if source is None or audit.consensus is not None or source.suffix == ".npy":
        return "audit.csv", "bayesmooth clean audit.csv", "--out labels.csv"
    name = source.resolve()
    options = ["--out", f"{name.stem}-cleaned{name.suffix}"]
    for option, value in audit.summary.get("columns", {}).items():
        options += [f"--{option}", value]
    return "your data", shlex.join(["bayesmooth", "clean", name.name]), shlex.join(options)


def find_usual(rows: Sequence[Text], labels: Array, classes: int) -> list[list[Usual]] | None:
    """What is usual for each class in each column of a table, so that the page can mark what is not; None where there
    is no table, or too much to carry.

    Numbers: Q₁ − 1.5 (Q₃ − Q₁) … Q₃ + 1.5 (Q₃ − Q₁), within what occurs. Categories: those of at least 2 % of a class.

    >>> find_usual([{"age": i} for i in range(40)], np.zeros(40, int), 1)
    [[(0.0, 39.0)]]
    """
    table = [row for row in rows if isinstance(row, Mapping)]
    if len(table) < len(labels) or len(table[0]) * classes > MOST_USUAL:
        return None
    usual: list[list[Usual]] = [[] for _ in range(classes)]
    for key in table[0]:
        values = [row.get(key) for row in table]
        words = np.array([str(value) for value in values], object)
        try:
            numbers = np.array([float("nan" if v in ("", None) else v) for v in values])  # type: ignore[arg-type]
        except (TypeError, ValueError):
            numbers = None
        names = len(set(words)) > min(MOST_CATEGORIES, len(words) // 2)
        for label, told in enumerate(usual):
            some = labels == label
            if numbers is not None:
                some &= np.isfinite(numbers)
            if some.sum() < FEWEST or (numbers is None and names):
                told.append(None)
            elif numbers is not None:
                low, high = np.quantile(numbers[some], [0.25, 0.75])
                spread = FENCE * (high - low)
                lowest, highest = np.nanmin(numbers), np.nanmax(numbers)
                told.append((float(max(low - spread, lowest)), float(min(high + spread, highest))))
            else:
                frequent, counts = np.unique(words[some].astype(str), return_counts=True)
                told.append([str(word) for word in frequent[counts >= SELDOM * some.sum()]])
    return usual


def _findings(audit: Audit) -> dict[str, Any]:
    """Only the examples that are concerned, of the kinds that could be looked for."""
    found = audit.findings
    columns = {
        "duplicates": {"first": found.duplicate_of},
        "outliers": {"score": found.outlier_score},
        "leaks": {"id": found.in_other_split, "label": found.label_in_other_split},
    }
    shown: dict[str, Any] = {}
    for kind, mask in found.masks().items():
        index = np.flatnonzero(mask)
        values = columns.get(kind, {}).items()
        shown[kind] = {name: np.asarray(column)[index].tolist() for name, column in values}
        shown[kind]["index"] = index.tolist()
    problems = [one for one in found.list_problems() if not one["kind"].endswith("_spelling")]
    return {**shown, "problems": problems}


def _describe_truth(audit: Audit) -> str:
    """Where the true labels are known: how many of the flagged are wrong, and how many were missed."""
    if audit.clean is None:
        return ""
    flagged, wrong = audit.contradicted, audit.given != audit.clean
    both, all_flagged, all_wrong = (int(some.sum()) for some in (flagged & wrong, flagged, wrong))
    share = f" ({format_percent(both / all_flagged)})" if all_flagged else ""
    missed = f"{all_wrong - both:,} of {all_wrong:,} wrong labels were missed"
    if both == all_wrong:
        missed = "none was missed"
    return f"The true labels are known here: {both:,} of these {all_flagged:,} labels are wrong{share}, and {missed}."


def _pack_share(values: Array) -> dict[str, str]:
    """Shares of one in 16 bits."""
    return _pack(np.round(np.clip(np.asarray(values, np.float64), 0, 1) * 65535), np.uint16)


def _pack(values: Array, dtype: DTypeLike) -> dict[str, str]:
    """An array as {type, data}, the type by the name of JavaScript's view."""
    array = np.asarray(values).astype(np.dtype(dtype).newbyteorder("<"))
    return {"type": f"{array.dtype.name.capitalize()}Array", "data": base64.b64encode(array.tobytes()).decode()}


def _texts(texts: Sequence[Text]) -> dict[str, Any]:
    """Texts as they are; table rows as one list of keys and the values of each row."""
    keys = list(dict.fromkeys(key for row in texts if isinstance(row, Mapping) for key in row))
    rows = [[_plain(row.get(key)) for key in keys] if isinstance(row, Mapping) else row for row in texts]
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
