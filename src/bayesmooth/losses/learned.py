"""Losses that learn: soft labels of a class or of every example, or the error of each label."""

from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.errors import one_of
from bayesmooth.losses.base import Loss, Reduction, dot, pick, within

LEAST = 1e-4  # of a probability, and of 1 − ⟨p, t⟩, as in the code of the authors of SOP and ELR
START = 1e-8  # of SOP's u and v; only their squares count, so they need no random sign


class OnlineLabelSmoothing(Loss):
    """L = −(1−α) log p_y − α Σ_j S_yj log p_j, so ε = α(S_y − y)  (equ: ols noise).

    Row c of S is the soft label of class c. In training mode every forward adds p of the correctly predicted examples
    to the sum of their class; `end_epoch` divides by their number and makes the result the next S. Under
    torch.distributed it joins the sums of all ranks first: call it on every rank, and save every rank's state.

    init: "ls" starts from label smoothing with rate `smoothing` on the other classes, as in the paper's comparison;
    "zeros" starts without a soft term, as in the authors' code (its first epoch is (1−α)·cross-entropy).
    empty: a class with no correct prediction gets a row of zeros ("zero": its soft term vanishes, ε = α(p − y)),
    1/K ("uniform", as in the authors' code), or keeps its row ("keep").

    References: Zhang et al., Delving Deep into Label Smoothing, IEEE TIP 2021. Their a is 1 − α.
    """

    soft: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(
        self,
        num_classes: int,
        alpha: float = 0.5,
        *,
        init: Literal["ls", "zeros"] = "ls",
        smoothing: float = 0.1,
        empty: Literal["zero", "uniform", "keep"] = "zero",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, num_classes)
        self.alpha = within("alpha", alpha, "0 is plain cross-entropy", high=1)
        self.empty = one_of("empty", empty, ("zero", "uniform", "keep"))
        within("smoothing", smoothing, "0 starts from the given labels", high=1)
        soft = torch.zeros(num_classes, num_classes, dtype=torch.float32)
        if one_of("init", init, ("ls", "zeros")) == "ls":
            soft.fill_(smoothing / (num_classes - 1)).fill_diagonal_(1 - smoothing)
        self.register_buffer("soft", soft)
        self.register_buffer("sums", torch.zeros_like(soft))
        self.register_buffer("counts", torch.zeros_like(soft[0]))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−(1−α) log p_y − α Σ_j S_yj log p_j."""
        log_probs = logits.log_softmax(1)
        if self.training:  # sum p of the correct predictions by class
            correct = (log_probs.argmax(1) == labels).to(self.sums.dtype)
            probs = log_probs.detach().exp().to(self.sums.dtype) * correct.unsqueeze(1)
            self.sums.index_add_(0, labels, probs)
            self.counts.index_add_(0, labels, correct)
        soft_label = self.soft.index_select(0, labels).to(log_probs.dtype)
        hard = F.nll_loss(log_probs, labels, reduction="none")
        return (1 - self.alpha) * hard - self.alpha * dot(soft_label, log_probs)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """S ← mean correct prediction by class, then start to count anew."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self.sums)
            dist.all_reduce(self.counts)
        seen = self.counts.unsqueeze(1) > 0
        mean = self.sums / self.counts.clamp_min(1).unsqueeze(1)
        if self.empty != "keep":
            self.soft.fill_(0.0 if self.empty == "zero" else 1 / len(self.soft))
        torch.where(seen, mean, self.soft, out=self.soft)
        self.sums.zero_()
        self.counts.zero_()


class LowRankSmoothing(Loss):
    """L = −log p_y + β[−Σ_j V_j log p_j − ηH(V)] with V = softmax(E_y Eᵀ), so ε = β(V − p).

    E (K, rank) starts at ones, where V is uniform, and is trained beside the model; in training mode it is seen through
    dropout, drawn from `seed` and the number of draws so far.

    References: Ghoshal et al., Learning Better Structured Representations Using Low-Rank Adaptive Label Smoothing,
    ICLR 2021.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rank: int = 20,
        beta: float = 0.1,
        eta: float = 0.1,
        dropout: float = 0.4,
        seed: int = 0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, num_classes)
        within("rank", rank, "the method's own is 20", low=1)
        self.beta = within("beta", beta, "0 is plain cross-entropy")
        self.eta = within("eta", eta, "0 leaves the entropy of V free")
        self.dropout = within("dropout", dropout, "0 is no dropout", high=0.99)
        self.seed = seed
        self.embedding = nn.Parameter(torch.ones(num_classes, rank, dtype=torch.float32))
        self.draws = 0

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and β times that with the learned label V, less ηH(V)."""
        embedding = self._dropped() if self.training and self.dropout else self.embedding
        embedding = embedding.to(logits.dtype)
        log_probs = logits.log_softmax(1)
        with torch.autocast(logits.device.type, enabled=False):
            log_soft = F.linear(embedding.index_select(0, labels), embedding).log_softmax(1)
        learned = dot(log_soft.exp(), self.eta * log_soft - log_probs)
        return self.beta * learned - pick(log_probs, labels)

    def _dropped(self) -> Tensor:
        shape, device = self.embedding.shape, self.embedding.device
        # torch's CPU generator reads 32 bits of its seed; the golden ratio keeps the draws of two seeds far apart
        name = (self.seed * 0x9E3779B1 + self.draws) % 2**32
        generator = torch.Generator().manual_seed(name)
        self.draws += 1
        uniform = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
        keep = uniform.ge_(self.dropout).div_(1 - self.dropout)
        return self.embedding * keep.to(device, non_blocking=True)

    def get_extra_state(self) -> dict[str, int]:
        """The number of draws, which `state_dict` keeps."""
        return {"draws": self.draws}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Go on with the draws of the saved loss."""
        self.draws = state["draws"]


class ELR(Loss):
    """L = −log p_y + λ log(1 − ⟨p, t⟩), so ε_i = λ p_i (t_i − ⟨p, t⟩)/(1 − ⟨p, t⟩).

    t is the moving average of the example's own predictions, t ← βt + (1−β)p from 0, made anew by every forward in
    training mode; it carries no gradient. In evaluation mode the loss is cross-entropy. Forward needs `index` (B,), the
    examples' positions in the training set. The averages take 4·N·K bytes. On CIFAR-100 the authors use β = .9, λ = 7.

    References: Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, NeurIPS 2020.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"index"})
    averages: Tensor

    def __init__(
        self,
        num_examples: int,
        num_classes: int,
        *,
        weight: float = 3.0,
        beta: float = 0.7,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, num_classes, num_examples)
        self.weight = within("weight", weight, "0 is plain cross-entropy")
        self.beta = within("beta", beta, "0 keeps no average", high=1)
        self.register_buffer("averages", torch.zeros(num_examples, num_classes, dtype=torch.float32))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y + λ log(1 − ⟨p, t⟩)."""
        hard = F.cross_entropy(logits, labels, reduction="none")
        if not self.training:
            return hard
        index, probs = extra["index"], logits.softmax(1)
        average = self.averages.index_select(0, index)
        average = average.lerp(probs.detach().to(average.dtype), 1 - self.beta)
        self.averages.index_copy_(0, index, average)
        agreement = dot(probs, average.to(probs.dtype))
        return hard + self.weight * (1 - agreement).clamp_min(LEAST).log()


class SOP(Loss):
    """L = −log r_y + ‖ŷ + s − y‖², where r is p + s with its entries ≥ 10⁻⁴, normalised, and s is the example's own.

    s = u² on the label and −v_j² on each other class j, none above 1, and ŷ is the predicted class. Where no bound
    is met, ε = (1 − p_y/(p_y + u²))(p − y): the network need not learn the part that u explains.

    u and v follow their own gradients: every forward in training mode takes a step with the rates `u_lr` and `v_lr`, as
    the authors' second optimizer does (their −log r_y moves u only). So they are buffers, and any optimizer trains the
    network. In evaluation mode the loss is cross-entropy. Forward needs `index` (B,), the examples' positions in the
    training set; the buffers take 4·N·(K + 1) bytes. SOP+, with its consistency and balance terms, is not here.

    References: Liu et al., Robust Training under Label Noise by Over-parameterization, ICML 2022.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"index"})
    u: Tensor
    v: Tensor

    def __init__(
        self,
        num_examples: int,
        num_classes: int,
        *,
        u_lr: float = 10.0,
        v_lr: float = 10.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, num_classes, num_examples)
        self.u_lr = within("u_lr", u_lr, "0 is cross-entropy but for a constant")
        self.v_lr = within("v_lr", v_lr, "0 leaves v at its start")
        self.register_buffer("u", torch.full((num_examples, 1), START, dtype=torch.float32))
        self.register_buffer("v", torch.full((num_examples, num_classes), START, dtype=torch.float32))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log r_y + ‖ŷ + s − y‖², and a step of u and v.

        u ← u − (u_lr/B)·2u(1/Σ_j q_j − 1/q_y + 2 res_y), v_j ← v_j + (v_lr/B)·4 v_j res_j for j ≠ y, q = p + s.
        """
        if not self.training:
            return F.cross_entropy(logits, labels, reduction="none")
        index, classes = extra["index"], logits.shape[1]
        label = F.one_hot(labels, classes).to(logits.dtype)
        u, v = self.u.index_select(0, index), self.v.index_select(0, index)
        shift = label * u.square().clamp_max(1) - (1 - label) * v.square().clamp_max(1)
        guess = F.one_hot(logits.argmax(1), classes).to(logits.dtype)
        residual = guess + shift - label
        corrected = (logits.softmax(1) + shift).clamp_min(LEAST)
        total, given = corrected.sum(1), pick(corrected, labels)
        with torch.no_grad():
            share = 1 / len(labels)
            slope = 2 * u[:, 0] * (1 / total - 1 / given + 2 * pick(residual, labels))
            growth = (4 * v * residual).scatter(1, labels.unsqueeze(1), 0.0)
            self.u.index_copy_(0, index, (u - self.u_lr * share * slope.unsqueeze(1)).to(u.dtype))
            self.v.index_copy_(0, index, (v + self.v_lr * share * growth).to(v.dtype))
        return residual.square().sum(1) - (given / total).clamp_min(LEAST).log()
