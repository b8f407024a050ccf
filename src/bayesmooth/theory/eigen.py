"""The principal axes of rows."""

import numpy as np
import torch
from torch import Tensor

ROWS_AT_ONCE = 1 << 13


def decompose_rows(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squares of N centred rows along their principal axes, ascending, and the axes (D, min(N, D)), in float64.

    RᵀR (D × D) and RRᵀ (N × N) have the same eigenvalues, so the smaller one is decomposed. An axis with no spread
    along it is arbitrary.

    >>> decompose_rows(torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))[0].round()
    tensor([0., 4.], dtype=torch.float64)
    """
    count, columns = centred.shape
    wide, side = columns > count, min(count, columns)
    gram = torch.zeros(side, side, dtype=torch.float64, device=centred.device)
    for piece in torch.split(centred.mT if wide else centred, ROWS_AT_ONCE):
        gram += (piece.mT @ piece).double()
    # in numpy: torch's own may fail to converge where many columns are nearly constant
    power, turned = (torch.from_numpy(part).to(gram) for part in np.linalg.eigh((gram / count).numpy(force=True)))
    if wide:
        tiny = torch.finfo(torch.float64).tiny
        turned = centred.mT.double() @ (turned / (count * power).clamp_min(tiny).sqrt())
    return power, turned
