"""The metadata stands in pyproject.toml; only the README needs a hand.

PyPI shows it far from the repository, so there its links must be absolute.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
HOME = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Homepage"]


def absolute_links(text: str) -> str:
    """Links and pictures that lead into the repository, from anywhere."""
    raw = HOME.replace("github.com", "raw.githubusercontent.com") + "/main/"
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{raw}", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{HOME}/blob/main/", text)


if __name__ == "__main__":
    setup(
        long_description=absolute_links((HERE / "README.md").read_text("utf-8")),
        long_description_content_type="text/markdown",
    )
