"""The recipes that come with the package, by name."""

from importlib.resources import files
from pathlib import Path

from bayesmooth.lab.options import unknown


def shipped() -> dict[str, Path]:
    """Name → file: `digits-ivon`, …"""
    directory = Path(str(files("bayesmooth.lab") / "recipes"))
    return {path.stem: path for path in sorted(directory.glob("*.toml"))}


def find(name: str) -> Path:
    """A recipe file: a path that exists, or the name of a shipped one."""
    if Path(name).is_file():
        return Path(name)
    known = shipped()
    if name not in known:
        raise unknown(name, "recipe (no such file, and none of that name is shipped)", known, name)
    return known[name]


def about(path: Path) -> str:
    """The comment in the first line of a recipe."""
    return path.read_text("utf-8").partition("\n")[0].lstrip("# ")
