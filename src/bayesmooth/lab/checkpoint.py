"""Checkpoints that are found whole or found out: a digest at the end of each, and the one before kept beside it."""

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from bayesmooth.errors import InputError
from bayesmooth.files import write_atomically

Checkpoint = dict[str, Any]

DIGEST = hashlib.sha256().digest_size


def save(path: Path, state: Checkpoint) -> None:
    """Write `state`, with the SHA-256 of it as the last 32 bytes; `torch.load` does not mind those."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    write_atomically(path, buffer.getvalue())


def load(path: Path) -> Checkpoint:
    """Read what `save` wrote; a file that was cut or changed is an `InputError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    body, digest = content[:-DIGEST], content[-DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise InputError(f"{path}: damaged ({len(content)} bytes, the digest does not match)")
    try:
        state: Checkpoint = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: not a checkpoint: {error}") from None
    return state


def save_last(directory: Path, state: Checkpoint) -> None:
    """Make `state` the last checkpoint, and the one that was last the previous."""
    save(directory / "next.pt", state)
    if (directory / "last.pt").exists():
        os.replace(directory / "last.pt", directory / "previous.pt")
    os.replace(directory / "next.pt", directory / "last.pt")


def load_last(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint (None where none was written yet), and what was wrong with those passed over."""
    wrong: list[str] = []
    # `next.pt` is whole: it stands alone only when a crash came between the two renames of `save_last`.
    found = [directory / f"{name}.pt" for name in ("next", "last", "previous")]
    for path in filter(Path.exists, found):
        try:
            return load(path), wrong
        except InputError as damage:
            wrong.append(str(damage))
    if wrong:
        raise InputError(
            f"{directory}: no whole checkpoint is left: {'; '.join(wrong)}; start again"
        )
    return None, wrong
