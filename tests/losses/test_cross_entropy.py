import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.losses import CrossEntropy


@given(st.integers(1, 8), st.integers(2, 9), st.sampled_from(["mean", "sum", "none"]))
def test_it_is_the_cross_entropy_of_torch(B, K, reduction):
    z, y = torch.randn(B, K), torch.randint(K, (B,))
    expected = F.cross_entropy(z, y, reduction=reduction)
    torch.testing.assert_close(CrossEntropy(reduction)(z, y), expected)
