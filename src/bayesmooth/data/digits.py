"""The handwritten digits that scikit-learn carries: real data without a download."""

from pathlib import Path

import numpy as np
import torch

from bayesmooth.data.examples import Examples
from bayesmooth.optional import require


def digits(split: str, root: Path) -> Examples:
    """1,797 digits of 8 × 8; every fifth is for the test, so both parts have all the writers."""
    bunch = require("sklearn.datasets", extra="data").load_digits()
    position = np.arange(len(bunch.target))
    chosen = position[(position % 5 == 4) == (split == "test")]
    return Examples(
        torch.from_numpy(bunch.images[chosen] / 16).float().unsqueeze(1),
        torch.from_numpy(bunch.target[chosen]),
        tuple("0123456789"),
        ids=tuple(map(str, chosen)),
        name=f"digits/{split}",
        mean=(0.3053,),
        std=(0.3764,),
    )
