"""Eigenvectors also where LAPACK fails."""

import numpy as np
import pytest
import torch

from bayesmooth.theory.eigen import decompose


def test_where_lapack_gives_up_repeated_qr_finds_the_same_components(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.randn(300, 40, dtype=torch.float64) * torch.linspace(1, 3, 40, dtype=torch.float64)
    rows[:, ::2] = 0  # as many as the outputs of a ReLU may be
    gram = rows.mT @ rows / 300
    expected = torch.from_numpy(np.linalg.eigvalsh(gram.numpy()))

    def fail(_: object) -> None:
        raise np.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(np.linalg, "eigh", fail)
    power, axes = decompose(gram)
    torch.testing.assert_close(power, expected, atol=0.02, rtol=0.02)
    torch.testing.assert_close(axes.mT @ axes, torch.eye(40, dtype=torch.float64))
