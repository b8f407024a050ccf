"""Eigenvectors of any finite symmetric matrix."""

import numpy as np
import torch
from torch import Tensor

QR_STEPS = 100


def decompose(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix that has none below zero.

    LAPACK's iteration may fail to converge: torch's does in float32 where many columns are nearly constant, on some
    processors. Repeated QR decompositions Q ← qr(GQ) have nothing that can fail; they take longer.
    """
    try:
        power, turned = map(torch.from_numpy, np.linalg.eigh(gram.numpy(force=True)))
        power, turned = power.to(gram), turned.to(gram)
    except np.linalg.LinAlgError:
        turned = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        for _ in range(QR_STEPS):
            turned = torch.linalg.qr(gram @ turned).Q
        power, order = (turned * (gram @ turned)).sum(0).sort()
        turned = turned[:, order]
    return power, turned
