"""Every study once, at smoke scale."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bayesmooth.progress import silence
from reproduce import STUDIES
from reproduce.commands import Job, run_study
from reproduce.study import SCALES


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """A job of smoke scale; studies share their runs, so it is cheapest to make them all at once."""
    home = tmp_path_factory.mktemp("studies")
    for study in STUDIES.values():
        job = Job(study, SCALES["smoke"], home / "results", home / "runs", command="a command")
        with ThreadPoolExecutor(1) as executor, silence():
            run_study(job, executor)
    return job
