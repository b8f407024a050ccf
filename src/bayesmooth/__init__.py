"""Train with labels that are partly wrong, and find the wrong ones.

Variational learning as adaptive label smoothing, after Yang, Liu, Marconi and Khan (arXiv 2502.07273).
"""

from bayesmooth import data, losses, metrics, models, theory
from bayesmooth.audit import Audit, audit
from bayesmooth.calling import recompute_batchnorm
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.optim import BSAM, EVON, IVON, SAM
from bayesmooth.posterior import Posterior
from bayesmooth.theory.noise import effective_labels

__version__ = "0.1.0"

__all__ = [
    "BSAM",
    "EVON",
    "IVON",
    "SAM",
    "Audit",
    "Examples",
    "InputError",
    "LabelNoise",
    "Posterior",
    "audit",
    "data",
    "effective_labels",
    "label_noise",
    "losses",
    "metrics",
    "models",
    "recompute_batchnorm",
    "theory",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
