"""What every test shares."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("house")


@pytest.fixture(scope="session")
def data_dir():
    """Where the public data sets are, if this machine has them."""
    place = os.environ.get("BAYESMOOTH_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("BAYESMOOTH_DATA names no folder: the real data sets are not on this machine")
    return Path(place)
