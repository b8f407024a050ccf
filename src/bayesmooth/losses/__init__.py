"""Losses that soften the labels: one interface for all methods."""

from bayesmooth.losses.alasca import ALASCA
from bayesmooth.losses.base import CrossEntropy, LabelSmoothing, Loss
from bayesmooth.losses.correction import BackwardCorrection, ForwardCorrection, estimate_transition
from bayesmooth.losses.formulas import (
    ACLS,
    GCE,
    SCE,
    Bootstrapping,
    ConfidencePenalty,
    OODSmoothing,
    SelfKnowledgeSmoothing,
)
from bayesmooth.losses.learned import ELR, SOP, LowRankSmoothing, OnlineLabelSmoothing

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
