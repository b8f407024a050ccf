"""EVON: IVON in the eigenbasis of SOAP's preconditioner, so that the Gaussian over a matrix is not diagonal.

For a weight matrix M (a convolution is read as out × in·k·k), with orthogonal Q_L and Q_R:

    1  Ĝ ← ∇ℓ(θ),  θ = M + Q_L (σ ∘ e) Q_Rᵀ,  e ~ N(0, I)     gradient at a sample
    2  ĝ ← Q_Lᵀ Ĝ Q_R,  ĥ ← ĝ·(σ ∘ e)/σ²                      the same in the basis
    3  g, h, ḡ, σ as in alg:ivon
    4  M ← M − α Q_L [(ḡ + δ Q_LᵀMQ_R)/(h + δ)] Q_Rᵀ
    5  L ← β L + (1 − β) Ĝ Ĝᵀ,   R ← β R + (1 − β) ĜᵀĜ
    6  every few steps  Q_L ← qr(L Q_L),  Q_R ← qr(R Q_R)      a step of power iteration

The first Q_L and Q_R, after the first step, are the singular vectors of its Ĝ. Σ is (Q_R ⊗ Q_L) diag(σ²) (Q_R ⊗ Q_L)ᵀ;
the prior is isotropic, so δ is the same in every basis. Vectors and sides longer than `max_side` stay as in IVON.

References: Minut et al., "SOAP-Bubbles: Structured Weight Uncertainty for Neural Networks", arXiv 2606.23357 (2026);
Vyas et al., "SOAP", arXiv 2409.11321 (2024).
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.optim.fused import Torch, unflatten
from bayesmooth.optim.groups import name_all
from bayesmooth.optim.ivon import IVON, RULE
from bayesmooth.optim.samples import Weight
from bayesmooth.posterior import Posterior, name_parameters
from bayesmooth.theory.eigen import decompose

ORTHOGONAL = 1e-3  # how far a column of a basis may be from orthogonal
KEPT = 1e-3  # of the norm of L or R, added to its diagonal
SIDES = ("left", "right")  # L and R; their bases are `left_basis` and `right_basis`


class EVON(IVON):
    """A drop-in for IVON with a richer posterior: the same arguments, and three for the basis.

    Arguments beyond IVON's:
        basis_every: steps from one basis to the next. The first one comes after the first step.
        basis_beta: momentum of L and R.
        max_side: the longest side that gets a basis. Where neither side does, it is IVON, bit for bit.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        ess: float,
        *args: Any,
        basis_every: int = 10,
        basis_beta: float = 0.95,
        max_side: int = 4096,
        **settings: Any,
    ) -> None:
        self._own = {"basis_every": basis_every, "basis_beta": basis_beta, "max_side": max_side}
        super().__init__(params, lr, ess, *args, **settings)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        for name, param in name_all(group):
            if hasattr(param, "to_local"):
                raise InputError(
                    f"parameter {name}: sharded, and EVON needs whole matrices; use EVON with DDP, or IVON here"
                )

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the names in `model` (or those that the constructor was given)."""
        plain, names = super().posterior(model), name_parameters(self.param_groups, model)
        kept = {n: read_basis(self.state[p]) for p, n in names.items() if n in plain.std}
        bases = {n: basis.to(plain.std[n]) for n, basis in kept.items()}
        left, right = (
            {n: turn for n, basis in bases.items() if (turn := basis[axis]) is not None}
            for axis in (0, 1)
        )
        return RotatedPosterior(plain.mean, plain.std, left, right)

    def _choose_backend(self, w: Weight) -> Torch:
        """Matrices with a side that is not too long have a basis."""
        matrix = w.local.ndim > 1 and w.local.numel() > 0
        rotated = matrix and min(matrix_shape(w.local)) <= w.group["max_side"]
        return ROTATED if rotated else super()._choose_backend(w)


_ours, _own = (inspect.signature(kind.__init__).parameters.values() for kind in (IVON, EVON))
EVON.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*_ours, *(p for p in _own if p.kind is p.KEYWORD_ONLY)]
)


class Rotated(Torch):
    """IVON's lines, each matrix in its own basis; autocast would round the products with it."""

    def compute_samples(self, chunk: list[Weight], e: Tensor, λ: float, δ: float) -> None:
        """θ = M + Q_L (σ ∘ e) Q_Rᵀ."""
        noises = unflatten(e, [w.momentum for w in chunk])
        with torch.autocast(e.device.type, enabled=False):
            for w, noise in zip(chunk, noises, strict=True):
                basis = read_basis(w.state)
                if basis.is_identity:
                    w.sample.copy_(self.rule.sample(w.mean, w.hess, noise, λ, δ))
                else:
                    w.sample.copy_(w.mean + basis.leave(w.std() * noise))

    def add_up(self, chunk: list[Weight]) -> None:
        """Pending gradients into the sums of Ĝ, and of ĝ·(σ ∘ e) or ĝ² in the basis."""
        for w in chunk:
            assert w.sums is not None
            w.sums[0].add_(w.gradient())
            w.sums[1].add_(self._enter(w, w.gradient())[1])

    def compare(self, now: Tensor, before: Tensor) -> Tensor:
        """By how much a gradient has been changed: one factor, as the elements of ĥ are those of the basis."""
        factor: Tensor = now.norm() / before.norm().clamp_min(torch.finfo(before.dtype).tiny)
        return factor

    def update(
        self, chunk: list[Weight], rates: list[float], samples: int, scale: float, **numbers: Any
    ) -> None:
        """Lines 2 to 6; gradients are multiplied by `scale`."""
        factor, α = scale / samples, numbers["α"]
        for w, rate in zip(chunk, rates, strict=True):
            Ĝ = (w.gradient() if w.sums is None else w.sums[0]).to(w.mean) * factor
            ĝ, ĝΔ = self._enter(w, Ĝ)
            if w.sums is not None:
                ĝΔ = w.sums[1] * (factor * scale if numbers["squared"] else factor)
            with torch.autocast(Ĝ.device.type, enabled=False):
                basis = read_basis(w.state)
                m = basis.enter(w.mean)
                numbers["α"] = α * rate
                new, g, h = self.rule.update(m, w.momentum, w.hess, ĝ, ĝΔ, **numbers)
                # A turned mean would lose digits at every step; its change may.
                mean = new if basis.is_identity else w.mean + basis.leave(new - m)
                g, h = learn_basis(w, Ĝ, g, h)
            w.momentum.copy_(g)
            w.hess.copy_(h)
            (w.local if w.wide is None else w.wide).copy_(mean)
            w.local.copy_(mean)
            w.held = False

    def _enter(self, w: Weight, grad: Tensor) -> tuple[Tensor, Tensor]:
        """ĝ and ĝ·(σ ∘ e), or ĝ²."""
        basis, squared = read_basis(w.state), w.group["hess_approx"] == "gradsq"
        with torch.autocast(grad.device.type, enabled=False):
            ĝ, Δ = (basis.enter(x) for x in (grad.to(w.mean), w.sample - w.mean))
            return ĝ, self.rule.product(ĝ, Δ, torch.zeros_like(Δ), squared)

    def limit(self, device: torch.device) -> float:
        """One call for all."""
        return math.inf


ROTATED = Rotated(RULE)


@dataclass(frozen=True)
class RotatedPosterior(Posterior):
    """A Gaussian whose draws are mean + Q_L (std ∘ e) Q_Rᵀ: `std` is that in the bases `left` and `right`."""

    left: Mapping[str, Tensor] = field(default_factory=dict)
    right: Mapping[str, Tensor] = field(default_factory=dict)

    FORMAT = "bayesmooth.posterior.rotated.1"
    PARTS = ("mean", "std", "left", "right")

    def __post_init__(self) -> None:
        super().__post_init__()
        turns = [(axis, *item) for axis in (0, 1) for item in (self.left, self.right)[axis].items()]
        for axis, name, turn in turns:
            mean = self.mean.get(name)
            side = 0 if mean is None or mean.ndim < 2 else matrix_shape(mean)[axis]
            if tuple(turn.shape) != (side, side):
                raise InputError(
                    f"{name}: a basis of shape {tuple(turn.shape)}; must be {side} × {side}, as a side of a matrix"
                )
            unit = torch.eye(side, dtype=turn.dtype, device=turn.device)
            if not float((turn.mT @ turn - unit).abs().sum()) < ORTHOGONAL * side:
                raise InputError(f"{name}: its basis is not orthogonal; write it with save()")

    def deviations(
        self, model: nn.Module, index: int = 0, *, seed: int = 0, sign: float = 1.0
    ) -> dict[str, Tensor]:
        """Q_L (σ ∘ e) Q_Rᵀ of draw number `index`."""
        inside = super().deviations(model, index, seed=seed, sign=sign)
        with torch.autocast(next(iter(inside.values())).device.type, enabled=False):
            return {
                name: Basis(self.left.get(name), self.right.get(name)).to(e).leave(e)
                for name, e in inside.items()
            }


class Basis(NamedTuple):
    """Q_L and Q_R, each None where it is the identity; a convolution is read as out × in·k·k."""

    left: Tensor | None = None
    right: Tensor | None = None

    @property
    def is_identity(self) -> bool:
        """Whether neither side is turned."""
        return self.left is None and self.right is None

    def leave(self, weight: Tensor) -> Tensor:
        """Q_L W Q_Rᵀ."""
        matrix = weight if self.is_identity else weight.reshape(len(weight), -1)
        matrix = matrix if self.left is None else self.left @ matrix
        return (matrix if self.right is None else matrix @ self.right.mT).reshape(weight.shape)

    def enter(self, weight: Tensor) -> Tensor:
        """Q_Lᵀ W Q_R."""
        return Basis(*(None if q is None else q.mT for q in self)).leave(weight)

    def to(self, like: Tensor) -> "Basis":
        """A copy in the dtype and on the device of a tensor, row by row as a file has it: strides change last bits."""
        plain = torch.contiguous_format
        return Basis(
            *(q if q is None else q.to(like, copy=True, memory_format=plain) for q in self)
        )


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """(m, n) of a weight that is read as a matrix."""
    return weight.shape[0], weight.numel() // max(weight.shape[0], 1)


def read_basis(state: dict[str, Any]) -> Basis:
    """Q_L and Q_R: the identity before the first gradient, and on sides that are too long."""
    return Basis(*(state.get(f"{side}_basis") for side in SIDES))


def learn_basis(w: Weight, Ĝ: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Lines 5 and 6, before the step is counted; g and h in the new basis: h goes with its columns."""
    G, state, group = Ĝ.reshape(matrix_shape(Ĝ)), w.state, w.group
    for side, matrix in zip(SIDES, (G, G.mT), strict=True):
        if len(matrix) <= group["max_side"]:
            start = torch.zeros(len(matrix), len(matrix), dtype=G.dtype, device=G.device)
            state.setdefault(side, start).lerp_(matrix @ matrix.mT, 1 - group["basis_beta"])
    basis = read_basis(state)
    if not basis.is_identity and (state["step"] + 1) % group["basis_every"]:
        return g, h
    g, columns = basis.leave(g), h.reshape(matrix_shape(h))
    known = {axis: side for axis, side in enumerate(SIDES) if side in state}
    new = Basis() if all(basis[axis] is not None for axis in known) else first_basis(G)
    for axis, side in known.items():
        turned, last = new[axis], basis[axis]
        if last is not None:
            turned, order = improve_basis(state[side], last)
            columns = columns.index_select(axis, order)
        if turned is not None:
            state[f"{side}_basis"] = turned
    return read_basis(state).enter(g), columns.reshape(h.shape)


def first_basis(G: Tensor) -> Basis:
    """The singular vectors of a matrix, largest first; none where it vanishes or is not finite.

    The vectors of the longer side follow from the shorter's. Small ones are directions near axes, not rounding.
    """
    largest = G.abs().max()
    if not bool((largest > 0) & largest.isfinite()):
        return Basis()
    tall = G.shape[0] > G.shape[1]
    wide = (G.mT if tall else G) / largest
    power, turned = decompose(wide @ wide.mT)
    short = turned[:, power > KEPT * power.norm()].flip(1)
    short *= short.gather(0, short.abs().argmax(0, keepdim=True)).sign()  # LAPACK's choice is free
    bases = orthogonalise(short), orthogonalise(wide.mT @ short)
    return Basis(*(reversed(bases) if tall else bases))


def improve_basis(gram: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The next basis, and how the columns of the last one were ordered for it.

    They are ordered by the powers of two in their Rayleigh quotients, as finer differences may be rounding. A share of
    the identity keeps directions without gradients; gradients that all vanish, or are not finite, keep the whole basis.
    """
    largest = gram.abs().max()
    if not bool((largest > 0) & largest.isfinite()):
        gram.nan_to_num_(0.0, 0.0, 0.0)
        return basis, torch.arange(len(gram), device=gram.device, dtype=torch.int64)
    scaled = gram / largest  # whose squares can be summed
    scaled /= scaled.norm()  # which is the same in every basis
    scaled.diagonal().add_(KEPT)
    image = scaled @ basis
    order = (basis * image).sum(0).log2().floor().argsort(descending=True, stable=True)
    return orthogonalise(image[:, order]), order


def orthogonalise(matrix: Tensor) -> Tensor:
    """The only Q whose R has a positive diagonal, with columns for the directions that are missing."""
    Q, R = torch.linalg.qr(matrix, mode="complete")
    Q[:, : matrix.shape[1]] *= R.diagonal().sign()
    return Q.contiguous()  # type: ignore[no-any-return]
