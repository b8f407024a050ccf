"""Who softens the labels: one file per method, one interface for all."""

from bayesmooth.losses.acls import ACLS
from bayesmooth.losses.alasca import ALASCA
from bayesmooth.losses.base import Loss
from bayesmooth.losses.bootstrapping import Bootstrapping
from bayesmooth.losses.confidence_penalty import ConfidencePenalty
from bayesmooth.losses.correction import BackwardCorrection, ForwardCorrection, estimate_transition
from bayesmooth.losses.cross_entropy import CrossEntropy
from bayesmooth.losses.elr import ELR
from bayesmooth.losses.gce import GCE
from bayesmooth.losses.label_smoothing import LabelSmoothing
from bayesmooth.losses.low_rank import LowRankSmoothing
from bayesmooth.losses.online import OnlineLabelSmoothing
from bayesmooth.losses.ood import OODSmoothing
from bayesmooth.losses.sce import SCE
from bayesmooth.losses.self_knowledge import SelfKnowledgeSmoothing
from bayesmooth.losses.sop import SOP

LOSSES: dict[str, type[Loss]] = {
    "ce": CrossEntropy,
    "ls": LabelSmoothing,
    "ols": OnlineLabelSmoothing,
    "acls": ACLS,
    "self_knowledge": SelfKnowledgeSmoothing,
    "alasca": ALASCA,
    "loras": LowRankSmoothing,
    "als": OODSmoothing,
    "confidence_penalty": ConfidencePenalty,
    "forward_correction": ForwardCorrection,
    "backward_correction": BackwardCorrection,
    "gce": GCE,
    "sce": SCE,
    "bootstrapping": Bootstrapping,
    "elr": ELR,
    "sop": SOP,
}

__all__ = [
    "ACLS",
    "ALASCA",
    "ELR",
    "GCE",
    "LOSSES",
    "SCE",
    "SOP",
    "BackwardCorrection",
    "Bootstrapping",
    "ConfidencePenalty",
    "CrossEntropy",
    "ForwardCorrection",
    "LabelSmoothing",
    "Loss",
    "LowRankSmoothing",
    "OODSmoothing",
    "OnlineLabelSmoothing",
    "SelfKnowledgeSmoothing",
    "estimate_transition",
]
