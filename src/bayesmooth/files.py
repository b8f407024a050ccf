"""Files that are whole or not there: a crash at any moment leaves the old content or the new one."""

import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from bayesmooth.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write under. At the end it takes the place of `path`; on an error it is deleted."""
    beside = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        if path.is_file():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)  # if it is a folder
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def write_atomically(path: Path, content: bytes | str | Callable[[Path], object]) -> None:
    """Write all of a file, or leave it as it was; a function as its content writes to the path that it is given."""
    with replacing(path) as beside:
        if not callable(content):
            beside.write_bytes(content.encode() if isinstance(content, str) else content)
            return
        beside.touch()
        mode = beside.stat().st_mode  # as the umask says; some writers make their files private
        content(beside)
        beside.chmod(mode)


def save_checkpoint(path: Path, state: Any) -> None:
    """Write tensors and plain containers, through memory: torch's own writer hides that a disk is full."""
    import torch  # here, as the command line writes other files without it

    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def write_together(directory: Path, contents: Mapping[str, bytes | str]) -> None:
    """Write several files of a directory: all new, or all as they were."""
    with ExitStack() as every:
        for name, content in contents.items():
            beside = every.enter_context(replacing(directory / name))
            beside.write_bytes(content.encode() if isinstance(content, str) else content)


def make_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a folder: all of it is there afterwards, or nothing. Only an empty one is replaced."""
    with replacing(path) as beside:
        beside.mkdir()
        fill(beside)
        if path.is_dir():
            path.rmdir()  # refuses one that is not empty


def copy_files(source: Path, out: Path, place: Callable[[Path], Path | None]) -> None:
    """Copy a folder's files to their `place` (None: leave it out), count them, and refuse to lose one."""
    wanted = set()
    for file in walk(source):
        to = place(file)
        if to is None:
            continue
        if to in wanted:
            raise InputError(f"{source / file}: another file goes to {to}, too; rename one")
        wanted.add(to)
        (out / to).parent.mkdir(parents=True, exist_ok=True)
        if (source / file).is_file():
            shutil.copy2(source / file, out / to)
        else:  # a link that leads nowhere, or to another folder, stays one
            (out / to).symlink_to(os.readlink(source / file))
    if wanted != set(walk(out, follow=0)):
        raise InputError(f"{source}: not all of its {len(wanted)} files arrived; is another program at work there?")


def walk(top: Path, inside: Path = Path(), follow: int = 2) -> Iterator[Path]:
    """All files below a folder. Links to folders are followed as deep as classes lie, unless they lead up."""
    with name_errors(top / inside, "folder"):
        names = sorted(os.listdir(top / inside))
    for name in names:
        path, file = inside / name, top / inside / name
        link = file.is_symlink() and (len(path.parts) > follow or leads_up(file))
        if file.is_dir() and not link:
            yield from walk(top, path, follow)
        else:
            yield path


def leads_up(path: Path) -> bool:
    """Whether a path is a link to a folder that holds the link: following it would never end."""
    link = path.is_symlink() and path.is_dir()
    return link and path.parent.resolve().is_relative_to(path.resolve())


def is_file_name(name: Any) -> bool:
    """Whether it names something in a folder, and nothing outside of it."""
    plain = isinstance(name, str) and not re.search(r"[/\\\0]", name)
    return plain and name not in ("", ".", "..")


def append_line(path: Path, line: str) -> None:
    """Add a line; a crash may leave a torn last line, which `records` drops."""
    try:
        with open(path, "ab") as file:
            file.write(line.encode() + b"\n")
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> InputError:
    """The error when the disk is full, or the directory read-only."""
    return InputError(
        f"{path}: cannot be written: {error.strerror or error}; "
        "what was saved before is intact: make room or choose another place, then start again"
    )


def records(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file as JSON objects; none where there is no file."""
    lines = path.read_text("utf-8", "replace").split("\n")[:-1] if path.exists() else []
    return [read_json(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people and programs: indented, in the order given."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(place: Path | str, text: str | None = None) -> dict[str, Any]:
    """The JSON object of a file, or the one that `text` of it holds."""
    with name_errors(place, "JSON object", "; put the file back, or delete it"):
        content = json.loads(Path(place).read_text("utf-8") if text is None else text)
        if not isinstance(content, dict):
            raise InputError(f"holds a {type(content).__name__}, not a JSON object")
        return content


@contextmanager
def name_errors(name: Path | str, what: str = "", way_out: str = "") -> Iterator[None]:
    """An InputError inside names the file or the place that it is about.

    With `what` the file is, every error inside becomes one: a damaged file makes decoders raise anything.
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}{way_out}") from None
    except Exception as error:
        if not what:
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        problem = f"not a {what} that can be read ({reason})"
        if isinstance(error, OSError) and error.strerror:
            problem = f"cannot be read ({error.strerror})"
        raise InputError(f"{name}: {problem}{way_out}") from None


def check_output(path: Path | None, kinds: Sequence[str] = ()) -> None:
    """Refuse a file that could not be written once the work is done; `kinds` are the endings it may have."""
    if path is None:
        return
    if kinds and path.suffix.lower() not in kinds:
        raise InputError(f"{path}: must end in {', '.join(kinds)}; choose one of those")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a directory or a device; choose another place")
    check_directory(path.parent)


def check_directory(path: Path) -> None:
    """Refuse a directory that could not take results once the work is done; it is made when they are written."""
    folder = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
