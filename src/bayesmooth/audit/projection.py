"""The principal components of embeddings, which are what the regression sees."""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.pieces import ROWS_AT_ONCE
from bayesmooth.errors import InputError
from bayesmooth.theory.eigen import decompose

MAX_DIMS = 384  # principal components
NEGLIGIBLE = 1e-6  # of the largest variance: less is lost in products of float32


class Projection(NamedTuple):
    """Centred, turned to principal components, scaled to unit mean square norm, and a column of ones.

    The prior is isotropic, so turning changes nothing but what is cut off; and a diagonal covariance keeps what
    matters, as principal components are nearly uncorrelated in every class.
    """

    mean: Tensor
    axes: Tensor

    @classmethod
    def of(cls, rows: Tensor, name: str = "embeddings", max_dims: int = MAX_DIMS) -> "Projection":
        """The projection that suits these rows.

        An axis is kept where the rows spread along it by more than float32 can tell from rounding.
        """
        low, high = rows.amin(0), rows.amax(0)
        varies = high > low
        if not bool(varies.any()):
            raise InputError(f"{name}: all embeddings are the same; nothing to learn from")
        mean, columns = rows.mean(0), int(varies.sum())
        # Scaled first, so that no square is lost below float32's smallest number.
        scale = (high - low).max()
        gram = torch.zeros(columns, columns, dtype=torch.float64, device="cpu")
        for piece in torch.split(rows, ROWS_AT_ONCE):
            moved = (piece - mean)[:, varies] / scale
            gram += (moved.mT @ moved).double()
        power, turned = decompose(gram / len(rows))
        rounding = torch.finfo(torch.float32).eps * float(rows.abs().max() / scale)
        least = max(NEGLIGIBLE * float(power[-1]), columns * rounding**2)
        useful = max(int((power > least).sum()), 1)
        kept = turned[:, -min(max_dims, useful) :].flip(1)
        total = float(power.clamp_min(0).sum()) ** 0.5
        axes = rows.new_zeros(rows.shape[1], kept.shape[1])
        axes[varies] = (kept / (total * float(scale))).to(axes.dtype)
        return cls(mean, axes)

    def features(self, rows: Tensor) -> Tensor:
        """What the regression sees of these rows."""
        return torch.cat([(rows - self.mean) @ self.axes, rows.new_ones(len(rows), 1)], 1)
