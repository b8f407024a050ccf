"""Weights that share memory are found."""

import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError


def test_weights_that_share_memory_are_refused(gaussian):
    memory = torch.arange(12.0)
    net = nn.ParameterDict({"a": nn.Parameter(memory[:8]), "b": nn.Parameter(memory[4:])})
    with pytest.raises(InputError, match="a and b: share memory"), gaussian(net).sample(net):
        pass
    wide = nn.ParameterDict({"a": nn.Parameter(torch.zeros(1).expand(3))})
    with pytest.raises(InputError, match="a: share memory"), gaussian(wide).at_mean(wide):
        pass
    apart = nn.ParameterDict({"a": nn.Parameter(memory[0::2]), "b": nn.Parameter(memory[1::2])})
    with gaussian(apart).sample(apart):
        assert not torch.equal(memory, torch.arange(12.0))
    assert torch.equal(memory, torch.arange(12.0))
