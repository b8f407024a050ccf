"""EVON: IVON's rule in a basis, and what the basis is good for."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from bayesmooth.errors import InputError
from bayesmooth.labelnoise import label_noise
from bayesmooth.metrics import rank_correlation
from bayesmooth.optim import EVON, IVON, evon, fused
from bayesmooth.optim.evon import Basis, RotatedPosterior, first_basis, improve_basis
from bayesmooth.posterior import Posterior
from bayesmooth.theory.glm import fit_glm


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def orthogonal(side, seed=0):
    return torch.linalg.qr(random(side, side, seed=seed)).Q


def covariance(posterior, name="weight"):
    """Σ of a weight with one row."""
    basis = getattr(posterior, "right", {}).get(name)
    variances = posterior.std[name].reshape(-1).square()
    turn = torch.eye(len(variances)).to(variances) if basis is None else basis
    return turn @ variances.diag() @ turn.mT


STEPS = 800  # of a regression


def distance(ours, exact):
    return float((ours - exact).norm() / exact.norm())


def keep_basis(monkeypatch):
    """No basis is learned: those that are there stay."""
    monkeypatch.setattr(evon, "improve_basis", lambda gram, basis: (basis, torch.arange(len(gram))))
    monkeypatch.setattr(evon, "first_basis", lambda G: Basis())


def train(task, model, optimizer, steps):
    closure = task.closure(model, optimizer, task.x, task.y)
    return [optimizer.step(closure).item() for _ in range(steps)]


# ---- where it is IVON ----


@pytest.mark.parametrize("how", ["sides too long", "the identity"])
def test_without_a_basis_it_is_ivon_bit_for_bit_also_after_a_resume(task, monkeypatch, how):
    long = how == "sides too long"
    if not long:
        keep_basis(monkeypatch)
    ours, theirs, again = task.net(), task.net(), task.net(seed=3)
    settings = {"lr": 0.1, "ess": 500, "beta2": 0.99, "seed": 0, "fused": None if long else False}
    own = {**settings, "max_side": 2 if long else 4096}
    optimizer, other = EVON(ours.parameters(), **own), IVON(theirs.parameters(), **settings)
    losses = train(task, ours, optimizer, 50)
    again.load_state_dict(ours.state_dict())
    resumed = EVON(again.parameters(), **own)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    losses += train(task, again, resumed, 50)
    assert losses == train(task, theirs, other, 100)
    for a, b in zip(again.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(resumed.state[a]["hess"], other.state[b]["hess"])
    assert not resumed.posterior(again).right


def test_a_side_that_is_too_long_is_not_turned(task):
    model = task.net()
    optimizer = EVON(model.parameters(), 0.1, 500, max_side=5, seed=0)
    train(task, model, optimizer, 3)
    posterior = optimizer.posterior(model)
    assert {n: q.shape for n, q in posterior.left.items()} == {"2.weight": (3, 3)}
    assert {n: q.shape for n, q in posterior.right.items()} == {"0.weight": (5, 5)}


def test_a_matrix_without_entries_takes_part(task):
    model, empty = task.net(), nn.Parameter(torch.zeros(0, 4))
    optimizer = EVON([*model.parameters(), empty], 0.1, 500, seed=0)
    with optimizer.sampled_params(train=True):
        (1e-3 * model(task.x).sum() + empty.sum()).backward()
    optimizer.step()
    assert empty.shape == (0, 4)


# ---- what the basis does ----


def turned_problem(kind, left, right, state=None, steps=25):
    """A linear layer whose inputs and outputs are turned, and its optimizer after some steps."""
    x, y = (
        random(30, 5, seed=1) @ torch.linspace(0.2, 2, 5, dtype=torch.float64).diag(),
        random(30, 3, seed=2),
    )
    layer = nn.Linear(5, 3, bias=False, dtype=torch.float64)
    layer.weight.data = (
        left @ (random(3, 5, seed=3) if state is None else state["weight"]) @ right.mT
    )
    optimizer = kind(layer.parameters(), 0.1, 30, beta2=0.9, seed=0)
    if state is not None:
        saved = optimizer.state_dict()
        own = copy.deepcopy(state["optimizer"])
        for side, turn in (("left", left), ("right", right)):
            if side in own:
                own[side], own[f"{side}_basis"] = (
                    turn @ own[side] @ turn.mT,
                    turn @ own[f"{side}_basis"],
                )
        optimizer.load_state_dict({**saved, "state": {0: own}})

    def closure():
        optimizer.zero_grad()
        loss = (layer(x @ right.mT) - y @ left.mT).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return layer.weight.detach(), optimizer.state[layer.weight]


@pytest.mark.parametrize("kind", [EVON, IVON])
def test_turned_inputs_and_outputs_turn_the_weights_and_their_covariance(kind):
    """From a state that is turned too; three new bases are learned on the way. IVON goes elsewhere."""
    eyes = torch.eye(3, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    left, right = orthogonal(3), orthogonal(5, seed=1)
    weight, begun = turned_problem(kind, *eyes)
    start = {"weight": weight.clone(), "optimizer": copy.deepcopy(begun)}
    weight, state = turned_problem(kind, *eyes, start)
    turned, other = turned_problem(kind, left, right, start)
    alike = torch.allclose(turned, left @ weight @ right.mT, atol=1e-8)
    assert alike is (kind is EVON)
    if alike:
        torch.testing.assert_close(other["hess"], state["hess"])
        torch.testing.assert_close(other["right_basis"], right @ state["right_basis"])


def fit(kind, x, y, loss, steps, delta=1e-2, basis=None, **settings):
    """The posterior of a model with one output, and its weights' mean."""
    layer = nn.Linear(x.shape[1], 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    given = {"weight_decay": delta, "seed": 0, **settings}
    optimizer = kind(layer.parameters(), 0.1, len(x), beta2=1 - 5 / steps, **given)
    optimizer.posterior(layer)  # makes the state
    if basis is not None:
        optimizer.state[layer.weight]["right_basis"] = basis
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def closure():
        optimizer.zero_grad()
        value = loss(layer(x)[:, 0], y)
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(closure)
        rates.step()
    return optimizer.posterior(layer)


def correlated(examples, dim):
    return random(examples, dim) * torch.linspace(0.2, 2, dim) @ orthogonal(dim, seed=1)


def test_linear_regression_in_the_eigenbasis_has_the_exact_covariance(monkeypatch):
    """Σ = (XᵀX + λδI)⁻¹, to the noise of the samples; IVON's diagonal is far away."""
    x, delta = correlated(100, 6), 1e-2
    y = x @ random(6, seed=2) + random(100, seed=3)
    exact = torch.linalg.inv(x.mT @ x + 100 * delta * torch.eye(6, dtype=torch.float64))

    def half_square(f, y):
        return (f - y).square().mean() / 2

    learned = fit(EVON, x, y, half_square, STEPS, delta, basis_beta=0.99)
    diagonal = fit(IVON, x, y, half_square, STEPS, delta)
    keep_basis(monkeypatch)
    basis = torch.linalg.eigh(x.mT @ x).eigenvectors
    fixed = fit(EVON, x, y, half_square, STEPS, delta, basis=basis)
    far = distance(covariance(diagonal), exact)
    assert distance(covariance(fixed), exact) < 0.3
    assert distance(covariance(learned), exact) < 0.3 < 0.8 < far


def test_logistic_regression_comes_near_the_full_covariance_and_ivon_does_not():
    x, delta = correlated(150, 6), 1e-2
    y = torch.bernoulli(
        torch.sigmoid(x @ random(6, seed=2)), generator=torch.Generator().manual_seed(3)
    )
    how = {"family": "bernoulli", "covariance": "full", "bias": False}
    exact = fit_glm(x, y.long(), prior_precision=150 * delta, **how)
    posteriors = [
        fit(kind, x, y, binary_cross_entropy_with_logits, STEPS, delta, **own)
        for kind, own in ((EVON, {"basis_beta": 0.99}), (IVON, {}))
    ]
    ours, theirs = (covariance(p) for p in posteriors)
    assert distance(ours, exact.covariance) < 0.6 * distance(theirs, exact.covariance)
    spread = exact.logits(x)[1]
    ranks = [rank_correlation((x @ c * x).sum(1), spread) for c in (ours, theirs)]
    assert ranks[0] > max(ranks[1], 0.95)


# ---- the basis itself ----


def test_the_basis_stays_orthogonal_over_a_thousand_refreshes():
    gram, basis = torch.zeros(12, 12), torch.eye(12)
    for step in range(1000):
        scale = 10.0 ** (step % 13 - 6)
        G = scale * random(12, 1 + step % 4, seed=step, dtype=torch.float32)
        gram.lerp_(G @ G.mT, 0.05)
        basis, _ = improve_basis(gram, basis)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(12), rtol=0, atol=1e-5)


def test_it_finds_the_eigenvectors_in_the_order_of_their_eigenvalues():
    turn = orthogonal(5)
    gram = turn @ torch.tensor([1.0, 16, 256, 4, 64]).double().diag() @ turn.mT
    basis = torch.eye(5, dtype=torch.float64)
    for _ in range(10):
        basis, _ = improve_basis(gram, basis)
    torch.testing.assert_close((basis.mT @ turn).abs().argmax(1), torch.tensor([2, 4, 1, 3, 0]))
    torch.testing.assert_close(
        basis.mT @ gram @ basis,
        torch.tensor([256.0, 64, 16, 4, 1]).double().diag(),
        atol=0.3,
        rtol=0,
    )


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_the_first_basis_has_the_singular_vectors_and_is_whole(shape, scale):
    U, V = orthogonal(shape[0])[:, :3], orthogonal(shape[1], seed=1)[:, :3]
    size = torch.tensor([5.0, 2.0, 1.0], dtype=torch.float64)
    basis = first_basis((scale * U * size @ V.mT).float())
    for Q, own in zip(basis, (U, V), strict=True):
        torch.testing.assert_close(Q.mT @ Q, torch.eye(len(Q)), rtol=0, atol=1e-5)
        seen = (Q[:, :3].mT.double() @ own).abs()
        torch.testing.assert_close(seen, torch.eye(3).double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_gradients_that_vanish_or_overflow_leave_the_basis(value):
    assert first_basis(torch.full((3, 2), value)).is_identity
    before = torch.eye(3)
    after, order = improve_basis(torch.full((3, 3), value), before)
    assert after is before
    assert order.tolist() == [0, 1, 2]


def test_gradients_of_zero_and_of_rank_one_train_on(task):
    model = nn.Linear(4, 3)
    optimizer = EVON(model.parameters(), 0.1, 100, basis_every=1, seed=0)
    for scale in [0.0] * 3 + [1.0] * 20 + [0.0] * 20 + [1e-25] * 20:

        def closure(scale=scale):
            optimizer.zero_grad()
            loss = scale * model(torch.ones(1, 4)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    made = optimizer.posterior(model)  # refuses a basis that is not orthogonal
    assert all(part.isfinite().all() for part in (*made.mean.values(), *made.std.values()))


# ---- what holds for IVON ----


@pytest.mark.parametrize("approx", ["price", "gradsq"])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_two_contexts_are_averaged_like_two_samples_of_a_closure(task, approx, scale):
    ours, theirs = task.net(torch.float64), task.net(torch.float64)
    settings = {"lr": 0.1, "ess": 500, "beta2": 0.9, "hess_approx": approx, "seed": 0}
    optimizer, other = (
        EVON(ours.parameters(), **settings),
        EVON(theirs.parameters(), **settings, mc_samples=2),
    )
    for _ in range(3):
        for _ in range(2):
            with optimizer.sampled_params(train=True):
                optimizer.zero_grad()
                (scale * cross_entropy(ours(task.x.double()), task.y)).backward()
        optimizer.grad_scale = torch.tensor(scale)
        optimizer.step()
    train(task, theirs, other, 3)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_one_sample_twice_equals_one_sample(task):
    """The sums in the basis say what a single gradient says."""
    ours, theirs = task.net(torch.float64), task.net(torch.float64)
    optimizer, other = (
        EVON(net.parameters(), 0.1, 500, beta2=0.9, seed=0) for net in (ours, theirs)
    )
    for _ in range(3):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            cross_entropy(ours(task.x.double()), task.y).backward()
        optimizer.zero_grad()
        optimizer.step()
    train(task, theirs, other, 3)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_contexts_give_draws_of_the_posterior_and_the_mean_back(task):
    model = task.net()
    optimizer = EVON(model.parameters(), 0.1, 50, beta2=0.9, seed=0)
    train(task, model, optimizer, 20)
    weight, posterior = model[2].weight, optimizer.posterior(model)
    mean = weight.detach().clone()
    moved = []
    for _ in range(2000):
        with optimizer.sampled_params():
            moved.append((weight - mean).detach().mT.reshape(-1))
    assert torch.equal(weight, mean)
    left, right, std = (
        part["2.weight"] for part in (posterior.left, posterior.right, posterior.std)
    )
    turn = torch.kron(right, left)  # Q_R ⊗ Q_L, on columns one below the other
    exact = turn @ std.mT.reshape(-1).square().diag() @ turn.mT
    found = torch.stack(moved).mT.cov()
    assert distance(found, exact) < 0.25
    assert distance(found, exact) < 0.7 * distance(exact.diagonal().diag(), exact) + 0.1


def test_weights_of_16_bits_have_state_of_32(task):
    model = task.net(torch.bfloat16)
    optimizer = EVON(model.parameters(), 0.1, 500, seed=0)
    losses = train(task, model, optimizer, 30)
    assert losses[-1] < losses[0]
    state = optimizer.state[model[0].weight]
    assert {v.dtype for v in state.values() if isinstance(v, torch.Tensor)} == {torch.float32}
    twin = task.net(torch.bfloat16)
    twin.load_state_dict(model.state_dict())
    other = EVON(twin.parameters(), 0.1, 500, seed=0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[twin[0].weight]["left_basis"].dtype == torch.float32
    assert train(task, model, optimizer, 12) == train(task, twin, other, 12)


def test_a_convolution_in_channels_last_takes_the_same_path(monkeypatch):
    """Given the same noise: its own follows the memory."""

    def draw(chunk, noise):
        named = [random(*w.momentum.shape, seed=10 * w.state["step"] + w.stream) for w in chunk]
        return torch.cat([e.flatten() for e in named])

    def run(layout):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)
        net = nn.Sequential(*layers).double().to(memory_format=layout)
        optimizer = EVON(net.parameters(), 0.1, 100, beta2=0.9, seed=0)
        inputs = random(8, 3, 4, 4).to(memory_format=layout)

        def closure():
            optimizer.zero_grad()
            loss = net(inputs).square().mean()
            loss.backward()
            return loss

        for _ in range(12):
            optimizer.step(closure)
        return optimizer.posterior(net)

    monkeypatch.setattr(fused, "draw_noise", draw)
    plain, last = run(torch.contiguous_format), run(torch.channels_last)
    assert plain.right["0.weight"].shape == (27, 27)
    torch.testing.assert_close((plain.mean, plain.std), (last.mean, last.std))


@pytest.mark.parametrize(
    ("setting", "value"), [("basis_every", 0), ("basis_beta", 1.0), ("max_side", -1)]
)
def test_settings_of_the_basis_are_checked(task, setting, value):
    with pytest.raises(InputError, match=rf"{setting}={value}: must be"):
        EVON(task.net().parameters(), 0.1, 100, **{setting: value})


def test_the_state_of_another_model_is_refused(task):
    model = task.net()
    optimizer = EVON(model.parameters(), 0.1, 500, seed=0)
    train(task, model, optimizer, 1)
    saved = optimizer.state_dict()
    saved["state"][0] = {**saved["state"][0], "left_basis": torch.eye(3)}
    with pytest.raises(InputError, match=r"parameter #0: left_basis of shape \(3, 3\)"):
        EVON(task.net().parameters(), 0.1, 500).load_state_dict(saved)


# ---- its posterior ----


def single(*shape, seed=0):
    return random(*shape, seed=seed, dtype=torch.float32)


@pytest.fixture
def posterior(model):
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    std = {name: 0.3 * single(*p.shape, seed=1).abs() for name, p in mean.items()}
    return RotatedPosterior(
        mean, std, {"weight": orthogonal(3).float()}, {"weight": orthogonal(4).float()}
    )


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
@pytest.mark.parametrize(("left", "right"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_entering_undoes_leaving(shape, left, right):
    basis = Basis(orthogonal(3).float() if left else None, orthogonal(4).float() if right else None)
    weight = single(*shape)
    assert basis.is_identity is (not left and not right)
    torch.testing.assert_close(basis.enter(basis.leave(weight)), weight)
    torch.testing.assert_close(basis.leave(weight).norm(), weight.norm())


def test_label_noise_has_the_variance_of_the_turned_gaussian(model, posterior):
    """Var f_k = Σ over the basis of (Q_Lₖᵢ σᵢⱼ (Q_Rᵀφ)ⱼ)², and the bias's."""
    x = single(20, 4, seed=2)
    found = label_noise(model, posterior, x, samples=2000, quiet=True).logit_variance
    left, right = posterior.left["weight"], posterior.right["weight"]
    inside = (x @ right).square() @ posterior.std["weight"].square().mT
    exact = inside @ left.square().mT + posterior.std["bias"].square()
    torch.testing.assert_close(found, exact, rtol=0.2, atol=0)
    plain = Posterior(posterior.mean, posterior.std)
    diagonal = label_noise(model, plain, x, samples=2000, quiet=True).logit_variance
    assert (diagonal - exact).abs().max() > 0.5 * exact.max()


def test_a_process_that_knows_no_evon_reads_its_posterior(posterior, tmp_path):
    posterior.save(tmp_path / "q.safetensors")
    code = (
        "import sys; from bayesmooth.posterior import Posterior; assert 'bayesmooth.optim' not in sys.modules;"
        f"print(type(Posterior.load({str(tmp_path / 'q.safetensors')!r})).__name__)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "RotatedPosterior"


def test_a_file_brings_back_every_basis(model, posterior, tmp_path):
    posterior = replace(posterior, left={})
    posterior.save(tmp_path / "q.safetensors")
    loaded = Posterior.load(tmp_path / "q.safetensors")
    assert loaded.left == {}
    assert torch.equal(loaded.right["weight"], posterior.right["weight"])
    x = single(5, 4)
    assert torch.equal(loaded.predict(model, x, 4), posterior.predict(model, x, 4))


@pytest.mark.parametrize(
    ("side", "name", "turn", "message"),
    [
        ("left", "bias", torch.eye(3), r"bias: a basis of shape \(3, 3\)"),
        ("left", "other", torch.eye(3), r"other: a basis of shape \(3, 3\)"),
        ("left", "weight", torch.eye(4), r"weight: a basis of shape \(4, 4\)"),
        ("right", "weight", 2 * torch.eye(4), "weight: its basis is not orthogonal"),
        (
            "right",
            "weight",
            torch.full((4, 4), float("nan")),
            "weight: its basis is not orthogonal",
        ),
    ],
)
def test_a_basis_that_cannot_be_one_is_refused(posterior, side, name, turn, message):
    with pytest.raises(InputError, match=message):
        replace(posterior, **{side: {name: turn}})
