"""The Gaussian over weights: sample it, predict with its average, save it. Needs no optimizer."""

from bayesmooth.posterior.basis import Basis
from bayesmooth.posterior.batchnorm import recompute_batchnorm, statistics_kept
from bayesmooth.posterior.calling import evaluating
from bayesmooth.posterior.gaussian import Posterior, name_parameters

__all__ = [
    "Basis",
    "Posterior",
    "evaluating",
    "name_parameters",
    "recompute_batchnorm",
    "statistics_kept",
]
