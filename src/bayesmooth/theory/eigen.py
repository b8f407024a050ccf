"""Eigenvectors of any finite symmetric matrix, and the principal axes of rows."""

import numpy as np
import torch
from torch import Tensor

QR_STEPS = 100
ROWS_AT_ONCE = 1 << 13


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


def decompose_rows(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squares of N centred rows along their principal axes, ascending, and the axes (D, min(N, D)), in float64.

    RᵀR (D × D) and RRᵀ (N × N) have the same eigenvalues, so the smaller one is decomposed. An axis with no spread
    along it is arbitrary.

    >>> decompose_rows(torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))[0].round()
    tensor([0., 4.], dtype=torch.float64)
    """
    count, columns = centred.shape
    wide = columns > count
    side = min(count, columns)
    gram = torch.zeros(side, side, dtype=torch.float64, device=centred.device)
    for piece in torch.split(centred.mT if wide else centred, ROWS_AT_ONCE):
        gram += (piece.mT @ piece).double()
    power, turned = decompose(gram / count)
    if wide:
        tiny = torch.finfo(torch.float64).tiny
        turned = centred.mT.double() @ (turned / (count * power).clamp_min(tiny).sqrt())
    return power, turned
