"""Online and low-rank smoothing, ELR and SOP: what they learn beside the weights."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from bayesmooth.losses import ELR, SOP, CrossEntropy, LowRankSmoothing, OnlineLabelSmoothing

# ---- online ----

Y = torch.tensor([1, 0, 0, 1])
P = torch.tensor([[0.3, 0.6, 0.1], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.2, 0.7, 0.1]])


def after_an_epoch(**options):
    loss = OnlineLabelSmoothing(3, **options)
    loss(P.log(), Y)
    loss.end_epoch()
    return loss


def test_only_correct_predictions_are_summed_by_class():
    loss = OnlineLabelSmoothing(3)
    loss(P[:2].log(), Y[:2])
    loss(P[2:].log(), Y[2:])
    torch.testing.assert_close(loss.sums, torch.tensor([[0.7, 0.2, 0.1], [0.5, 1.3, 0.2], [0.0, 0.0, 0.0]]))
    assert loss.counts.tolist() == [1, 2, 0]


def test_soft_labels_wait_for_the_end_of_the_epoch():
    loss = OnlineLabelSmoothing(3)
    before = loss.soft.clone()
    loss(P.log(), Y)
    assert loss.soft.equal(before)
    loss.end_epoch()
    torch.testing.assert_close(loss.soft, torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.65, 0.1], [0.0, 0.0, 0.0]]))
    assert not loss.sums.any()
    assert not loss.counts.any()


@pytest.mark.parametrize(("empty", "row"), [("zero", [0, 0, 0]), ("uniform", [1 / 3] * 3), ("keep", [0.05, 0.05, 0.9])])
def test_a_class_without_correct_predictions(empty, row):
    torch.testing.assert_close(after_an_epoch(empty=empty).soft[2], torch.tensor(row).float())


RANK = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
from bayesmooth.losses import OnlineLabelSmoothing
rank, out = int(sys.argv[1]), sys.argv[2]
how = {"init_method": f"file://{out}/store", "timeout": timedelta(seconds=60)}
dist.init_process_group("gloo", rank=rank, world_size=2, **how)
p, y = torch.load(f"{out}/batch.pt")
loss = OnlineLabelSmoothing(3)
loss(p[rank::2].log(), y[rank::2])
loss.end_epoch()
torch.save(loss.state_dict(), f"{out}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch built without distributed")
def test_two_processes_join_their_statistics(tmp_path):
    """Each of two ranks sees half the batch; both end with the soft labels of the whole."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.save((P, Y), tmp_path / "batch.pt")
    command = [sys.executable, "-c", RANK]
    ranks = [subprocess.Popen([*command, rank, tmp_path], env=environment) for rank in "01"]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    expected = after_an_epoch().state_dict()
    for rank in range(2):
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(state, expected)


# ---- ELR ----

FIRST, SECOND = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.1, 0.3, 0.6]]).log()
HERE, TWO = torch.tensor([1]), torch.tensor([2])


def test_the_average_is_that_of_the_examples_own_predictions():
    loss = ELR(2, 3, beta=0.6)
    loss(FIRST, TWO, index=HERE)
    loss(SECOND, TWO, index=HERE)
    expected = 0.6 * 0.4 * FIRST.exp() + 0.4 * SECOND.exp()
    torch.testing.assert_close(loss.averages, torch.cat([torch.zeros(1, 3), expected]))


# ---- SOP ----

GIVEN = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]).log()
INDEX, BOTH = torch.tensor([2, 0]), torch.tensor([1, 1])


def grown(**rates):
    loss = SOP(3, 3, **rates)
    loss.u.copy_(torch.tensor([[0.3], [0.4], [0.5]]))
    loss.v.fill_(0.1)
    return loss


def test_golden_number_with_an_explained_label():
    """q = (.69, .45, .09), ŷ + s − y = (.99, −.75, −.01)."""
    loss = grown(reduction="none")(GIVEN, BOTH, index=INDEX)
    assert loss[0].item() == pytest.approx(2.5482219, rel=1e-6)


def test_a_step_of_u_and_v_is_a_step_of_sgd_on_the_authors_loss():
    loss = grown(u_lr=2.0, v_lr=3.0)
    u, v = loss.u.clone().requires_grad_(), loss.v.clone().requires_grad_()
    y = F.one_hot(BOTH, 3).float()
    plus, minus = u[INDEX].square() * y, v[INDEX].square() * (1 - y)
    r = F.normalize((GIVEN.softmax(1) + plus - minus.detach()).clamp_min(1e-4), p=1)
    guess = F.one_hot(GIVEN.argmax(1), 3)
    total = -(y * r.log()).sum(1).mean() + (guess + plus - minus - y).square().sum() / 2
    total.backward()
    loss(GIVEN, BOTH, index=INDEX)
    torch.testing.assert_close(loss.u, (u - 2 * u.grad).detach())
    torch.testing.assert_close(loss.v, (v - 3 * v.grad).detach())


def test_a_label_that_the_model_keeps_rejecting_is_explained_away():
    loss, wrong = SOP(3, 3, reduction="none"), torch.tensor([2])
    for _ in range(200):
        last = loss(GIVEN[:1], wrong, index=torch.tensor([0]))
    assert loss.u[0] ** 2 > 0.5
    assert last < CrossEntropy()(GIVEN[:1], wrong)
    assert loss.u[1:].max() < 1e-7


def test_in_evaluation_it_is_cross_entropy_and_nothing_moves():
    loss = grown().eval()
    before = loss.u.clone()
    torch.testing.assert_close(loss(GIVEN, BOTH), CrossEntropy()(GIVEN, BOTH))
    assert before.equal(loss.u)


# ---- low rank ----


def batch(K=5, B=7):
    generator = torch.Generator().manual_seed(K)
    z = torch.randn(B, K, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (B,), generator=generator)


def test_dropout_follows_its_seed_and_not_the_global_one():
    z, y = batch()
    first, second, other = LowRankSmoothing(5), LowRankSmoothing(5), LowRankSmoothing(5, seed=1)
    torch.manual_seed(0)
    values = [first(z, y).item() for _ in range(3)]
    torch.manual_seed(1)
    assert [second(z, y).item() for _ in range(3)] == values
    assert len(set(values)) == 3
    assert other(z, y).item() != values[0]


def test_a_loaded_state_goes_on_with_the_next_draw():
    z, y = batch()
    loss, resumed = LowRankSmoothing(5), LowRankSmoothing(5)
    loss(z, y)
    resumed.load_state_dict(loss.state_dict())
    assert resumed(z, y).item() == loss(z, y).item()


def test_training_learns_which_classes_share_mass():
    """Classes 0 and 1 are indistinguishable, 2 is not: V_0 then prefers 1 to 2."""
    y = torch.tensor([0, 1, 2] * 20)
    z = torch.tensor([[2.0, 2.0, -2.0], [2.0, 2.0, -2.0], [-2.0, -2.0, 4.0]]).repeat(20, 1)
    loss = LowRankSmoothing(3, rank=4, dropout=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    for _ in range(50):
        optimizer.zero_grad()
        loss(z, y).backward()
        optimizer.step()
    V = (loss.embedding @ loss.embedding.t()).softmax(1)
    assert V[0, 1] > 0.3 > 10 * V[0, 2]
