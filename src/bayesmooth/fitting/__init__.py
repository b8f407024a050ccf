"""Training that asks the data: `fit` tries a few settings, and held-out given labels choose."""

from bayesmooth.fitting.choose import GRID, IVON_GRID, Fit, fit

__all__ = ["GRID", "IVON_GRID", "Fit", "fit"]
