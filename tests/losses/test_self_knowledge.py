import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.losses import CrossEntropy, SelfKnowledgeSmoothing
from bayesmooth.losses.self_knowledge import smoothing_rate

Z, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def test_rate_has_its_golden_number():
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    assert smoothing_rate(p.log()).item() == pytest.approx(0.2701533, abs=5e-8)


def test_without_a_past_self_it_is_cross_entropy():
    torch.testing.assert_close(SelfKnowledgeSmoothing()(Z, Y), CrossEntropy()(Z, Y))


def test_a_uniform_prediction_is_not_smoothed_and_a_certain_one_learns_from_the_past():
    past = torch.tensor([[0.2, 0.3, 0.5]])
    z = torch.tensor([[0.0, 0.0, 0.0]], requires_grad=True)
    SelfKnowledgeSmoothing()(z, Y[:1], past=past).backward()
    torch.testing.assert_close(z.softmax(1) - z.grad, torch.tensor([[1.0, 0.0, 0.0]]))
    z = torch.tensor([[60.0, 0.0, 0.0]], requires_grad=True)
    SelfKnowledgeSmoothing()(z, Y[:1], past=past).backward()
    torch.testing.assert_close(z.softmax(1) - z.grad, past)


def test_the_past_self_is_not_trained():
    past = Z.softmax(1).requires_grad_()
    z = Z.clone().requires_grad_()
    SelfKnowledgeSmoothing()(z, Y, past=past).backward()
    assert past.grad is None


def test_wrong_pasts_are_refused():
    loss = SelfKnowledgeSmoothing()
    with pytest.raises(
        InputError, match=r"past of shape \(2, 3\) for logits of shape \(4, 3\): must"
    ):
        loss(Z, Y, past=Z[:2].softmax(1))
    with pytest.raises(
        InputError, match=r"past has rows that sum to .* must be probabilities; pass"
    ):
        loss(Z, Y, past=Z)
