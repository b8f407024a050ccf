"""One HTML file that opens from disk: everything inlined, nothing fetched, nothing from data run as code."""

import base64
import datetime
import hashlib
import html
import io
import json
import re
import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesmooth.audit import review as model
from bayesmooth.audit.decisions import COLUMNS, DECISIONS
from bayesmooth.audit.table import QUADRANTS, SURE, Audit
from bayesmooth.data.features import SHEET_ROW
from bayesmooth.data.pictures import ImageFiles, as_bytes, as_rgb
from bayesmooth.data.source import Inputs
from bayesmooth.errors import InputError, require
from bayesmooth.progress import format_percent

LIKELIEST, WORST_TAGS = 3, 5  # classes, or tags, that are shown with their probabilities
TEXTS = 16_000_000  # characters of text in a report: it stays a file that opens at once
HEIGHT = 900  # pixels of the report inline
SIZE, SMALL = 320, 112  # pixels of a picture to judge, and of one beside it
BUDGET = 8_000_000  # bytes of pictures in a report: it can still be mailed
CRISP = 64  # pixels up to which pictures keep every pixel as it is
BLANK = 8  # pixels of the square that stands for a picture that cannot be read
SCRIPTS = ("model.js", "review.js", "labels.js", "decisions.js", "list.js", "detail.js", "page.js")
"""In this order, inside one function."""

Array = NDArray[Any]


def render(audit: Audit, *, title: str = "", thumbnails: int = 500, created: str | None = None) -> str:
    """The page as one string, with so many pictures of the worst labels; `created` is the date (default: now)."""
    read = {name: (files(__package__) / name).read_text("utf-8") for name in (*SCRIPTS, "style.css", "template.html")}
    script = "(() => {\n'use strict';\n" + "\n".join(read[name] for name in SCRIPTS) + "})();"
    style, template = read["style.css"], read["template.html"]
    # Only these two inline blocks may act; nothing is fetched from anywhere.
    hashed = (hashlib.sha256(text.encode()).digest() for text in (script, style))
    scripts, styles = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashed)
    name = title or str(audit.summary.get("source", "a data set"))
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    payload = {**make_payload(audit), "created": created or now, "thumbnails": choose_pictures(audit, thumbnails)}
    values = {
        "policy": f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "title": html.escape(name.encode("utf-8", "replace").decode()),
        "headline": html.escape(audit.headline),
        "style": style,
        "script": script,
        "payload": to_json(payload),
    }
    size = len(template) + sum(len(value.encode()) for value in values.values())
    values["size"] = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def to_json(value: object) -> str:
    """JSON that cannot end its script element, and that UTF-8 can always carry."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def pack(values: Array | None) -> dict[str, str] | None:
    """An array as {type, data}, the type by the name of JavaScript's view: one or two bytes as they are, else floats of
    four and the smallest whole numbers."""
    if values is None:
        return None
    small = {"f": np.dtype("<f4"), "i": np.min_scalar_type(int(values.max()))}
    kind = values.dtype if values.dtype.itemsize <= 2 else small[values.dtype.kind].newbyteorder("<")
    data = base64.b64encode(values.astype(kind).tobytes()).decode()
    return {"type": f"{kind.name.capitalize()}Array", "data": data}


def pack_share(values: Array) -> dict[str, str] | None:
    """Shares of one in 16 bits."""
    return pack(np.round(np.clip(values.astype(np.float64), 0, 1) * 65535).astype("<u2"))


def make_payload(audit: Audit) -> dict[str, Any]:
    """The data of the page but its pictures: columns as base64 of little-endian arrays, the rest as it is."""
    source, findings, review = audit.examples, audit.findings, audit.review
    names = ("given", "suggested", "disagreement", "ambiguity", "quadrant", "clean")
    columns = {name: pack(getattr(audit, name)) for name in names}
    columns["givenProbability"] = pack_share(audit.given_probability)
    columns["suggestedProbability"] = pack_share(audit.suggested_probability)
    hidden = {SHEET_ROW} if audit.consensus is None else {SHEET_ROW, "votes"}  # on every card
    shown = {name: column for name, column in source.meta.items() if name not in hidden}
    content = {
        "count": len(audit),
        "classes": list(audit.class_names),
        "label": describe_label(audit),
        "ids": None if all(name == str(i) for i, name in enumerate(audit.ids)) else list(audit.ids),
        "digested": source.table is not None and source.table.names_rows,
        "rows": source.meta.get(SHEET_ROW),
        "columns": columns,
        "texts": choose_texts(audit, shown) if shown else None,
    }
    of_kinds: dict[str, dict[str, Any]] = {
        "duplicates": {"first": findings.duplicate_of},
        "outliers": {"score": findings.outlier_score},
        "leaks": {"id": findings.in_other_split, "label": findings.label_in_other_split},
    }
    kinds = {
        kind: {k: column[mask].tolist() for k, column in of_kinds.get(kind, {}).items()}
        | {"index": np.flatnonzero(mask).tolist()}
        for kind, mask in findings.masks().items()
    }
    reviewed = None
    if review is not None:
        reviewed = {
            "asked": review.asked,
            "queue": review.queue.tolist(),
            "drawn": review.drawn[review.queue].tolist(),
            "decided": [[i, row.given, row.decision] for i, row in review.decisions.items()],
            "traits": {name: pack(column) for name, column in review.traits._asdict().items()},
            **{name: getattr(model, name) for name in model.OF_THE_PAGE},
        }
    return {
        "key": hashlib.sha256(to_json(content).encode()).hexdigest()[:16],
        **content,
        "quadrants": list(QUADRANTS),
        "sure": SURE,
        "findings": {**kinds, "problems": [asdict(problem) for problem in findings.problems]},
        "truth": "" if audit.clean is None else describe_truth(audit.contradicted, audit.given != audit.clean),
        "summary": {"notes": [], **audit.summary},
        "review": reviewed,
        "decisions": {"names": DECISIONS, "columns": COLUMNS},
        "clean": write_clean_command(audit),
        "similar": audit.similar and {k: v.tolist() for k, v in audit.similar._asdict().items()},
    }


def describe_label(audit: Audit) -> dict[str, Any]:
    """The kind of the labels, and the data that the page needs to show and change one."""
    label: dict[str, Any] = {"kind": "class", "named": audit.examples.names_classes, "likeliest": None}
    ranked, shares, most = audit.probabilities, audit.probabilities, LIKELIEST
    if audit.tags is not None:
        ranked, shares, most = audit.tags.scores, audit.tags.probabilities, WORST_TAGS
        label |= {"kind": "tags", "named": True, "worst": pack(audit.tags.worst), **audit.tags.vocabulary.describe()}
    if audit.consensus is not None:
        label |= {"kind": "votes", **audit.consensus.to_payload()}
    if ranked is not None and shares is not None:
        best = torch.from_numpy(ranked).topk(min(most, ranked.shape[1]), dim=1).indices.numpy()
        likely = np.take_along_axis(shares, best, 1)
        label["likeliest"] = {"each": best.shape[1], "names": pack(best), "shares": pack_share(likely)}
    return label


def choose_texts(audit: Audit, columns: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The text or table row of every example, as far as TEXTS allows, the most contradicted labels first."""
    keys = [] if [*columns] == ["text"] else list(columns)
    rows: list[Any] = [list(row) for row in zip(*columns.values(), strict=True)] if keys else list(columns["text"])
    sizes = np.array([len(str(row)) for row in rows])
    fits = {*audit.order[np.cumsum(sizes[audit.order]) <= TEXTS].tolist()}
    return {"keys": keys, "rows": [row if i in fits else None for i, row in enumerate(rows)]}


def describe_truth(flagged: Array, wrong: Array) -> str:
    """A sentence where the true labels are known: the numbers of flagged labels that are wrong, and of missed ones."""
    both, all_flagged, all_wrong = (int(some.sum()) for some in (flagged & wrong, flagged, wrong))
    share = f" ({format_percent(both / all_flagged)})" if all_flagged else ""
    missed = f"{all_wrong - both:,} of {all_wrong:,} wrong labels were missed"
    if both == all_wrong:
        missed = "none was missed"
    return f"The true labels are known here: {both:,} of these {all_flagged:,} labels are wrong{share}, and {missed}."


def write_clean_command(audit: Audit) -> tuple[str, str, str]:
    """The file beside which to run the command that applies decisions, and its text before and after their file's name.

    Votes, and data that lie in no file with labels, are cleaned in the table that stands beside the page.
    """
    source = audit.examples.path
    if source is None or audit.consensus is not None or source.suffix == ".npy":
        return "audit.csv", "bayesmooth clean audit.csv", "--out labels.csv"
    name = source.resolve()
    end = "".join(name.suffixes[-2:]) if name.suffix == ".gz" else name.suffix
    options = ["--out", f"{name.name.removesuffix(end)}-cleaned{end}"]
    for option, value in audit.summary.get("columns", {}).items():
        options += [f"--{option.replace('_', '-')}", value if isinstance(value, str) else ",".join(value)]
    return "your data", shlex.join(["bayesmooth", "clean", name.name]), shlex.join(options)


def choose_pictures(audit: Audit, count: int) -> list[list[tuple[int, int, int, str]]]:
    """Pictures of the sample to review, of the worst labels and of the findings; then small ones of their neighbours.

    None where the data has no pictures, or Pillow is not there to make them.
    """
    shape, pictures, findings = audit.examples.input_shape, audit.examples.pictures, audit.findings
    if pictures is None and len(shape) == 3 and shape[0] in (1, 3):
        pictures = audit.examples.inputs
    if pictures is None or count < 1 or not find_spec("PIL"):
        return []
    masks, score = findings.masks(), findings.outlier_score
    odd = [np.flatnonzero(masks[kind]) for kind in ("conflicts", "leaks", "duplicates") if kind in masks]
    odd += [] if score is None else [np.argsort(-score, kind="stable")[: masks["outliers"].sum()]]
    first = list(dict.fromkeys(np.concatenate([*odd, []]).astype(int).tolist()))[: count // 2]
    queue = [] if audit.review is None else audit.review.queue.tolist()
    large = encode_pictures(pictures, list(dict.fromkeys([*queue, *audit.order[:count].tolist(), *first])))
    if audit.similar is None:
        return [large]
    drawn = [picture[0] for picture in large]
    shown = np.isin(audit.similar.examples, drawn)
    near = np.concatenate([audit.similar.given[shown], audit.similar.suggested[shown]], axis=1).ravel()
    small = list(dict.fromkeys(near[(near >= 0) & ~np.isin(near, drawn)].tolist()))
    return [large, encode_pictures(pictures, small, SMALL, BUDGET // 4)]


def encode_pictures(
    pictures: Inputs, index: Sequence[int], size: int = SIZE, budget: int = BUDGET
) -> list[tuple[int, int, int, str]]:
    """Position, width, height and WebP file of these pictures, in grey or colours, at most `size` pixels wide and high.

    They are whole, not cut to a square, and none is enlarged. The list ends before it would exceed `budget` bytes;
    there is always one. A picture that cannot be read is among the problems, and blank here.
    """
    module = require("PIL.Image", extra="data")
    encoded, total = list[tuple[int, int, int, str]](), 0
    for i in index:
        try:
            if isinstance(pictures, ImageFiles):
                with pictures.open(i) as opened:
                    opened.draft("RGB", (SIZE, SIZE))  # a JPEG is decoded at a fraction of its size
                    picture = as_rgb(opened)
            else:
                (one,) = pictures[torch.tensor([i], dtype=torch.int64, device="cpu")]
                pixels = as_bytes(one.cpu().numpy()).transpose(1, 2, 0)
                picture = module.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        except InputError:
            picture = module.new("L", (BLANK, BLANK))
        picture.thumbnail((size, size))
        picture.save(file := io.BytesIO(), "WEBP", quality=82, lossless=max(picture.size) <= CRISP)
        total += file.tell()
        if encoded and total > budget:
            break
        encoded.append((int(i), *picture.size, base64.b64encode(file.getvalue()).decode()))
    return encoded


def show(audit: Audit) -> None:
    """The report below the cell of a notebook; elsewhere in the browser."""
    page = render(audit)
    if "ipykernel" in sys.modules:  # a kernel of Jupyter or Colab runs this
        display = sys.modules["IPython"].display  # loaded, as a notebook is running
        display.display(display.HTML(f'<iframe srcdoc="{html.escape(page)}" width="100%" height="{HEIGHT}"></iframe>'))
    else:
        file = Path(tempfile.mkdtemp(prefix="audit-")) / "audit.html"
        file.write_text(page, encoding="utf-8")
        webbrowser.open(file.as_uri())
