"""Clothing1M: a million pictures from shops, with labels from the text around them (14 classes)."""

from pathlib import Path, PurePosixPath

import torch

from bayesmooth.data.examples import Examples
from bayesmooth.data.files import find, read_lines
from bayesmooth.data.images import ImageFiles
from bayesmooth.errors import InputError

FOLDERS = ("clothing1m", "Clothing1M")
LISTS = {
    "train": ("noisy_train_key_list.txt", "noisy_label_kv.txt"),
    "clean_train": ("clean_train_key_list.txt", "clean_label_kv.txt"),
    "valid": ("clean_val_key_list.txt", "clean_label_kv.txt"),
    "test": ("clean_test_key_list.txt", "clean_label_kv.txt"),
}
NAMES = "category_names_eng.txt"


def clothing1m(split: str, root: Path, size: int = 256, crop: int | None = None) -> Examples:
    """The noisy `train`, or the clean `clean_train`, `valid`, `test`; pictures stay on disk.

    The train splits come as size × size, for augmentation to cut 224 out of 256; the others as
    their middle 7/8.
    """
    keys_file, labels_file = LISTS[split]
    names = tuple(line.strip() for line in read_lines(_find(root, NAMES)) if line.strip())
    path = _find(root, labels_file)
    labels = parse_labels(read_lines(path), str(path), len(names))
    path = _find(root, keys_file)
    keys = parse_keys(read_lines(path), str(path))
    chosen = []
    for line, key in keys:
        if key not in labels:
            raise InputError(f"{path}, line {line}: {key!r} has no label in {labels_file}")
        chosen.append(labels[key])
    files = tuple(key for _, key in keys)
    crop = crop or (size if split.endswith("train") else size * 7 // 8)
    return Examples(
        ImageFiles(find(root, FOLDERS), files, size, crop),
        torch.tensor(chosen, dtype=torch.int64),
        names,
        ids=files,
        name=f"clothing1m/{split}",
        mean=(0.6959, 0.6537, 0.6371),
        std=(0.3113, 0.3192, 0.3214),
    )


def _find(root: Path, file: str) -> Path:
    return find(root, [f"{top}/{sub}{file}" for top in FOLDERS for sub in ("", "annotations/")])


def parse_keys(lines: list[str], name: str) -> list[tuple[int, str]]:
    """(line number, path) of every line that is not empty; paths must stay inside the folder.

    >>> parse_keys(["images/0/00/1.jpg", ""], "keys.txt")
    [(1, 'images/0/00/1.jpg')]
    """
    keys = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not keys:
        raise InputError(f"{name}: no paths in it")
    for number, key in keys:
        path = PurePosixPath(key)
        if path.is_absolute() or ".." in path.parts or "\\" in key or "\0" in key:
            raise InputError(f"{name}, line {number}: {key[:80]!r} leads out of the set's folder")
    return keys


def parse_labels(lines: list[str], name: str, classes: int) -> dict[str, int]:
    """Lines `path label`.

    >>> parse_labels(["images/0/00/1.jpg 3"], "kv.txt", classes=14)
    {'images/0/00/1.jpg': 3}
    """
    labels = {}
    for number, line in enumerate(lines, 1):
        key, _, label = line.strip().rpartition(" ")
        if not key and not label:
            continue
        if not (
            label.isascii() and label.isdigit() and len(label) < 9 and int(label) < classes and key
        ):
            raise InputError(
                f"{name}, line {number}: {line[:80]!r}: must be `path label`, "
                f"the label from 0 to {classes - 1}"
            )
        labels[key.strip()] = int(label)
    return labels
