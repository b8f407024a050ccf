"""For the site: examples in docstrings (`>>>`) become blocks of code, which Markdown would take for quotations, and two
arguments in one line become two, each with its own default."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to the next empty line
SECTION = re.compile(r"^(Args|Arguments|Attributes):$", re.MULTILINE)
PAIR = re.compile(r"^( +)(\w+), (\w+): ", re.MULTILINE)  # "beta1, beta2: …"


class Doctests(griffe.Extension):
    """Puts a fence around every example, and each argument on a line of its own."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each documented object."""
        if obj.docstring:
            text = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = PAIR.sub(r"\1\2: see `\3`.\n\1\3: ", text) if SECTION.search(text) else text
