"""Train with labels that are partly wrong, and find the wrong ones.

Variational learning as adaptive label smoothing, after Yang, Liu, Marconi and Khan (arXiv 2502.07273). The public names
load their modules when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesmooth import data as data
    from bayesmooth import losses as losses
    from bayesmooth import metrics as metrics
    from bayesmooth import models as models
    from bayesmooth import theory as theory
    from bayesmooth.audit import Audit as Audit
    from bayesmooth.audit import audit as audit
    from bayesmooth.audit import audit_network as audit_network
    from bayesmooth.audit import audit_probabilities as audit_probabilities
    from bayesmooth.audit import audit_votes as audit_votes
    from bayesmooth.calling import recompute_batchnorm as recompute_batchnorm
    from bayesmooth.data import Labels as Labels
    from bayesmooth.data import Source as Source
    from bayesmooth.data import open_source as open_source
    from bayesmooth.errors import InputError as InputError
    from bayesmooth.fitting import fit as fit
    from bayesmooth.labelnoise import LabelNoise as LabelNoise
    from bayesmooth.labelnoise import label_noise as label_noise
    from bayesmooth.optim import BSAM as BSAM
    from bayesmooth.optim import IVON as IVON
    from bayesmooth.optim import SAM as SAM
    from bayesmooth.posterior import Posterior as Posterior
    from bayesmooth.theory.noise import effective_labels as effective_labels

__version__ = "0.1.0"

# module → its public names; of the last ones the module itself is public
PUBLIC = {
    "audit": ("Audit", "audit", "audit_network", "audit_probabilities", "audit_votes"),
    "calling": ("recompute_batchnorm",),
    "data": ("Labels", "Source", "open_source"),
    "errors": ("InputError",),
    "labelnoise": ("LabelNoise", "label_noise"),
    "optim": ("BSAM", "IVON", "SAM"),
    "posterior": ("Posterior",),
    "theory.noise": ("effective_labels",),
    "fitting": ("fit",),
    "": ("data", "losses", "metrics", "models", "theory"),
}
HOMES = {name: module for module, names in PUBLIC.items() for name in names}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'bayesmooth' has no attribute {name!r}")
    home = import_module(f"bayesmooth.{HOMES[name] or name}")
    value = getattr(home, name) if HOMES[name] else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """`bayesmooth.audit` is the function, also after somebody has imported a module of the package of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "audit" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
