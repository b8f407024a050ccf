import pytest
import torch
import torch.nn.functional as F

from bayesmooth.losses import SOP, CrossEntropy

Z = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]).log()
INDEX, Y = torch.tensor([2, 0]), torch.tensor([1, 1])


def grown(**rates):
    loss = SOP(3, 3, **rates)
    loss.u.copy_(torch.tensor([[0.3], [0.4], [0.5]]))
    loss.v.fill_(0.1)
    return loss


def test_golden_number_with_an_explained_label():
    """q = (.69, .45, .09), ŷ + s − y = (.99, −.75, −.01)."""
    loss = grown(reduction="none")(Z, Y, index=INDEX)
    assert loss[0].item() == pytest.approx(2.5482219, rel=1e-6)


def test_a_step_of_u_and_v_is_a_step_of_sgd_on_the_authors_loss():
    loss = grown(u_lr=2.0, v_lr=3.0)
    u, v = loss.u.clone().requires_grad_(), loss.v.clone().requires_grad_()
    y = F.one_hot(Y, 3).float()
    plus, minus = u[INDEX].square() * y, v[INDEX].square() * (1 - y)
    r = F.normalize((Z.softmax(1) + plus - minus.detach()).clamp_min(1e-4), p=1)
    guess = F.one_hot(Z.argmax(1), 3)
    total = -(y * r.log()).sum(1).mean() + (guess + plus - minus - y).square().sum() / 2
    total.backward()
    loss(Z, Y, index=INDEX)
    torch.testing.assert_close(loss.u, (u - 2 * u.grad).detach())
    torch.testing.assert_close(loss.v, (v - 3 * v.grad).detach())


def test_a_label_that_the_model_keeps_rejecting_is_explained_away():
    loss, wrong = SOP(3, 3, reduction="none"), torch.tensor([2])
    for _ in range(200):
        last = loss(Z[:1], wrong, index=torch.tensor([0]))
    assert loss.u[0] ** 2 > 0.5
    assert last < CrossEntropy()(Z[:1], wrong)
    assert loss.u[1:].max() < 1e-7


def test_in_evaluation_it_is_cross_entropy_and_nothing_moves():
    loss = grown().eval()
    before = loss.u.clone()
    torch.testing.assert_close(loss(Z, Y), CrossEntropy()(Z, Y))
    assert before.equal(loss.u)
