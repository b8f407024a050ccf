"""Every study once, at smoke scale."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from reproduce import STUDIES
from reproduce.figures import structured
from reproduce.reproduce import Folders, reproduce
from reproduce.scale import SMOKE


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The directory of results; studies share their runs, so it is cheapest to make them all at once."""
    home = tmp_path_factory.mktemp("studies")
    folders = Folders(home / "results", home / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structured, "STEPS", 20)
        for study in STUDIES.values():
            with ThreadPoolExecutor(1) as executor:
                reproduce(study, SMOKE, folders, executor, command="a command", quiet=True)
    return folders
