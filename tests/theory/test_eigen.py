import numpy as np
import pytest
import torch

from bayesmooth.theory.eigen import decompose_rows


@pytest.mark.parametrize("shape", [(30, 200), (200, 30)])
def test_principal_axes_come_from_the_smaller_side_and_are_those_of_the_larger(monkeypatch, shape):
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
