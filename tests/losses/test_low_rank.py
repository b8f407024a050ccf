import pytest
import torch

from bayesmooth.losses import LowRankSmoothing


def batch(K=5, B=7):
    generator = torch.Generator().manual_seed(K)
    z = torch.randn(B, K, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (B,), generator=generator)


def test_the_embedding_starts_where_the_learned_label_is_uniform():
    loss = LowRankSmoothing(5, beta=1.0, eta=0.0, dropout=0.0, reduction="none")
    z, y = batch()
    log_p = z.log_softmax(1)
    torch.testing.assert_close(loss(z, y), -log_p[torch.arange(7), y] - log_p.mean(1))


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


def test_dropout_keeps_the_mean_of_the_embedding():
    loss = LowRankSmoothing(200, rank=100, dropout=0.4)
    kept = loss._dropped()
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert kept.mean().item() == pytest.approx(1.0, abs=0.02)


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
