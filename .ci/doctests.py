"""For the site: examples in docstrings (`>>>`) become blocks of code, which Markdown would take for quotations."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to the next empty line


class Doctests(griffe.Extension):
    """Puts a fence around every example."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each documented object."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
