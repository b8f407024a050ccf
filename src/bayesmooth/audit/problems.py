"""Dirt in real data: listed with its ids and left out where nothing can be learned from it; the rest is audited.

Only what would make the result wrong is an error: fewer than two classes left, or most examples unusable.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.predictions import check_labels
from bayesmooth.data import Examples
from bayesmooth.data.examples import Problem
from bayesmooth.data.labels import find_missing
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError

UNREADABLE = "unreadable_picture"
NAMED = 5  # ids or classes in a sentence
MOST_LEFT_OUT = 0.5  # share of the examples; beyond it the audit would be one of other data


def list_names(names: Sequence[str]) -> str:
    """The first few names, and that there are more.

    >>> list_names(["a", "b"]), list_names("abcdefg")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', …")
    """
    return ", ".join([*(repr(name[:80]) for name in names[:NAMED]), *["…"] * (len(names) > NAMED)])


def settle(
    examples: Examples,
    *,
    texts: bool = False,
    learned: bool = False,
    named: bool = False,
    tagged: bool = False,
) -> Examples:
    """Without the examples that cannot be audited; they are in its `problems`, with spellings that look like slips.

    `texts`: the texts are what is learned from, so empty ones are left out. `learned`: labels are learned from the
    other examples of their class, so classes with one example are left out, and no longer classes unless the user
    `named` them. `tagged`: a label is a set of tags, which may well have one example.
    """
    start = examples
    examples = _leave_out_duplicate_ids(examples)
    if texts:
        examples = _leave_out_empty_texts(examples)
    if not tagged:
        examples = replace(examples, problems=(*examples.problems, *find_spellings(examples)))
        examples = settle_classes(examples, start, learned=learned, named=named)
    check_share(len(start) - len(examples), len(start), examples.problems)
    return examples


def settle_classes(examples: Examples, before: Examples, *, learned: bool, named: bool) -> Examples:
    """The examples without classes that have only one, where labels are learned; those classes that had examples
    `before` and have none now are no longer classes. Two classes must be left."""
    names, counts = examples.class_names, _count_labels(examples)
    alone = [names[k] for k in (counts == 1).nonzero().flatten().tolist()]
    have, are = ("class has", "is") if len(alone) == 1 else ("classes have", "are")
    what = f"{have} one example and {are} left out" if learned else f"{have} one example"
    settle_them = leave_out if learned else _add_problem
    text, concerned = f"{len(alone)} {what}: {list_names(alone)}", counts[examples.labels] == 1
    examples = settle_them(examples, concerned, "single_example", text)
    if learned and not named:
        examples = _drop_classes(examples, _count_labels(before) > 0)
    check_labels(examples.labels, examples.class_names)
    return examples


def leave_out(examples: Examples, concerned: Tensor, kind: str, text: str) -> Examples:
    """The other examples; those that are left out, if any, become a problem."""
    if not bool(concerned.any()):
        return examples
    if bool(concerned.all()):
        raise InputError(f"{examples.name}: {text}; no example is left to audit")
    rest = _add_problem(examples, concerned, kind, text).subset(~concerned)
    if isinstance(examples.pictures, ImageFiles):  # so that each can still be opened by itself
        items = [v for v, out in zip(examples.pictures.items, concerned, strict=True) if not out]
        rest = replace(rest, pictures=replace(examples.pictures, items=items))
    return rest


def _add_problem(examples: Examples, concerned: Tensor, kind: str, text: str) -> Examples:
    """The same examples; those that are concerned, if any, become a problem."""
    if not bool(concerned.any()):
        return examples
    problem = Problem(kind, text, pick_ids(examples, concerned))
    return replace(examples, problems=(*examples.problems, problem))


def leave_out_missing(
    labels: np.ndarray[Any, Any],
    make: Callable[[np.ndarray[Any, Any]], Examples],
    names: Sequence[str] | None = None,
    numbered: bool = False,
) -> Examples:
    """What `make` builds from N labels, without the examples that have none."""
    missing = np.array(find_missing(labels.tolist(), names or (), numbered))
    if not missing.any() or missing.all():
        return make(labels)
    # They need some label until they are left out: the first that is there.
    present = np.flatnonzero(~missing)
    examples = make(labels[np.where(missing, present[0], np.arange(len(labels)))])
    text = f"{int(missing.sum())} of {len(missing)} rows have no label and are left out"
    return leave_out(examples, torch.from_numpy(missing), "missing_label", text)


def pick_ids(examples: Examples, concerned: Tensor) -> tuple[str, ...]:
    """The ids of some examples."""
    where = concerned.nonzero().flatten().tolist()
    return tuple(str(i) if examples.ids is None else examples.ids[i] for i in where)


def check_share(left_out: int, count: int, problems: Iterable[Problem]) -> None:
    """Refuse data of which most had to be left out."""
    if left_out > MOST_LEFT_OUT * count:
        found = "; ".join(problem.text for problem in problems)
        raise InputError(
            f"{left_out} of {count} examples cannot be audited: {found}. Mend the data, or name other columns"
        )


def find_spellings(examples: Examples) -> list[Problem]:
    """Labels that differ only in case or blanks: one problem for each group, with the examples of the rarer ones."""
    found = []
    for same, text in group_spellings(examples.class_names, _count_labels(examples)):
        rarer = torch.isin(examples.labels, torch.tensor(same[1:], dtype=torch.int64, device="cpu"))
        found.append(Problem("label_spelling", text, pick_ids(examples, rarer)))
    return found


def group_spellings(names: Sequence[str], counts: Tensor) -> Iterator[tuple[list[int], str]]:
    """Names that occur and differ only in case or blanks, the most frequent first, and a sentence about them."""
    groups = defaultdict(list)
    for k in counts.nonzero().flatten().tolist():
        groups[re.sub(r"\s+", "", names[k]).casefold()].append(k)
    for same in groups.values():
        if len(same) > 1:
            same.sort(key=lambda k: -int(counts[k]))
            shown = ", ".join([f"{names[k]!r} ({int(counts[k])})" for k in same][:NAMED])
            yield same, f"labels differ only in case or blanks: {shown}"


def find_missing_pictures(examples: Examples) -> list[Problem]:
    """Files of pictures that are only shown, and that are not there or empty."""
    pictures = examples.pictures
    if not isinstance(pictures, ImageFiles):
        return []
    gone = _as_mask(_is_missing(pictures.root, item) for item in pictures.items)
    if not bool(gone.any()):
        return []
    text = f"{int(gone.sum())} of {len(gone)} pictures to show are missing or empty"
    return [Problem("missing_picture", text, pick_ids(examples, gone))]


def _is_missing(root: Path, item: str | bytes) -> bool:
    try:
        return not (len(item) if isinstance(item, bytes) else (root / item).stat().st_size)
    except (OSError, ValueError):
        return True


def _leave_out_duplicate_ids(examples: Examples) -> Examples:
    """No decision could be applied with certainty to an id that several examples have."""
    ids = examples.ids or tuple(map(str, range(len(examples))))
    times = Counter(ids)
    concerned = _as_mask(times[name] > 1 for name in ids)
    text = (
        f"{int(concerned.sum())} examples share their id with another and are left out: "
        f"{list_names([name for name in times if times[name] > 1])}; id (--id) names another column"
    )
    return leave_out(examples, concerned, "duplicate_id", text)


def _leave_out_empty_texts(examples: Examples) -> Examples:
    empty = _as_mask(not text.strip() for text in examples.meta["text"])
    count = int(empty.sum())
    text = f"{count} {'text is' if count == 1 else 'texts are'} empty and left out"
    return leave_out(examples, empty, "empty_text", text)


def _as_mask(flags: Iterable[bool]) -> Tensor:
    return torch.tensor(list(flags), dtype=torch.bool, device="cpu")


def _drop_classes(examples: Examples, occurred: Tensor) -> Examples:
    """Without the names of classes that occurred and do so no more, so that nothing is predicted of them."""
    used, clean = _count_labels(examples) > 0, examples.clean_labels
    if clean is not None:
        used |= torch.bincount(clean, minlength=len(used)) > 0
    kept = used | ~occurred
    number = kept.cumsum(0) - 1
    return replace(
        examples,
        labels=number[examples.labels],
        clean_labels=None if clean is None else number[clean],
        class_names=tuple(n for n, k in zip(examples.class_names, kept, strict=True) if k),
    )


def _count_labels(examples: Examples) -> Tensor:
    return torch.bincount(examples.labels, minlength=examples.num_classes)
