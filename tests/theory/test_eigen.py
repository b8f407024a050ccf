"""Eigenvectors also where LAPACK fails."""

import numpy as np
import pytest
import torch

from bayesmooth.theory.eigen import decompose, decompose_rows


def test_where_lapack_gives_up_repeated_qr_finds_the_same_components(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("shape", [(30, 200), (200, 30)])
def test_principal_axes_come_from_the_smaller_side_and_are_those_of_the_larger(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    rows = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows -= rows.mean(0)
    largest = np.linalg.eigvalsh((rows.mT @ rows / len(rows)).numpy())[-25:]
    sides, eigh = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda gram: sides.append(len(gram)) or eigh(gram))
    power, axes = (part[..., -25:] for part in decompose_rows(rows))
    assert sides == [30]
    torch.testing.assert_close(power, torch.from_numpy(largest))
    torch.testing.assert_close((rows @ axes).square().mean(0), power)
    torch.testing.assert_close(axes.mT @ axes, torch.eye(25, dtype=torch.float64))
