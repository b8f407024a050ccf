import torch

from bayesmooth.losses import GCE, CrossEntropy

Z, Y = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, -1.0]], dtype=torch.float64), torch.tensor([0, 2])


def test_the_limits_are_cross_entropy_and_the_absolute_error():
    small = GCE(1e-3)(Z, Y)
    torch.testing.assert_close(small, CrossEntropy()(Z, Y), rtol=5e-3, atol=0)
    absolute = (Z.softmax(1) - torch.eye(3, dtype=Z.dtype)[Y]).abs().sum(1).mean()
    torch.testing.assert_close(GCE(1.0)(Z, Y), absolute / 2)
