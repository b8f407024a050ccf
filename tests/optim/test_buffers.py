"""SAM's second pass is a look, not a visit: what layers and losses collect, they collect once."""

import torch
from torch import nn

from bayesmooth.losses import LOSSES
from bayesmooth.optim import SAM
from bayesmooth.optim.sam import buffers_kept


def test_an_online_loss_counts_each_example_once():
    loss, model = LOSSES["ols"](num_classes=3), nn.Linear(2, 3)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1)
    inputs = torch.eye(2).repeat(3, 1)
    labels = model(inputs).argmax(-1)  # so that each of them is counted

    def closure():
        optimizer.zero_grad()
        value = loss(model(inputs), labels)
        value.backward()
        return value

    optimizer.step(closure)
    assert float(loss.counts.sum()) == len(labels)


def test_buffers_that_are_replaced_come_back_as_the_same_tensor():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return x

    counter = Counter()
    seen = counter.seen
    with buffers_kept():
        counter(torch.zeros(1))
        assert float(counter.seen) == 1
    assert counter.seen is seen
    assert float(seen) == 0


def test_a_module_in_eval_mode_is_left_alone():
    norm = nn.BatchNorm1d(2).eval()
    with buffers_kept():
        norm(torch.randn(4, 2))
        norm.running_mean += 1
    assert bool((norm.running_mean == 1).all())
