"""IVON as a plain loop over parameters, to be read beside the paper's alg:ivon and to be compared with `ivon.py`.

It is written on its own, without the rule there: the tests let both take the same steps, from the same noise.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bayesmooth.randomness import standard_normal


class ReferenceIVON:
    """The algorithm for dense parameters of float32 or float64; the arguments are IVON's."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        ess: float,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99999,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        hess_approx: str = "price",
        clip_radius: float = float("inf"),
        debias: bool = True,
        rescale_lr: bool = True,
        seed: int = 0,
    ) -> None:
        self.params = list(params)
        self.lr = lr * (hess_init + weight_decay) if rescale_lr else lr
        self.ess, self.decay, self.beta1, self.beta2 = ess, weight_decay, beta1, beta2
        self.samples, self.approx, self.radius = mc_samples, hess_approx, clip_radius
        self.debias, self.seed = debias, seed
        self.momentum = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.hess = [torch.full_like(p, hess_init, requires_grad=False) for p in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], object]) -> None:
        """One step; the closure clears the gradients and computes them at the weights it finds."""
        means = [p.clone() for p in self.params]
        sigmas = [1 / (self.ess * (h + self.decay)).sqrt() for h in self.hess]
        gradients = [torch.zeros_like(p) for p in self.params]
        curvatures = [torch.zeros_like(p) for p in self.params]
        for draw in range(self.samples):
            for i, (p, m, s) in enumerate(zip(self.params, means, sigmas, strict=True)):
                e = standard_normal(m, seed=self.seed, stream=i, step=self.steps, draw=draw)  # e ~ N(0, I)
                p.copy_(m + s * e)
            with torch.enable_grad():
                closure()
            for i, p in enumerate(self.params):
                assert p.grad is not None
                gradients[i] += p.grad / self.samples
                if self.approx == "gradsq":
                    curvatures[i] += self.ess * p.grad**2 / self.samples
                else:
                    curvatures[i] += p.grad * (p - means[i]) / sigmas[i] ** 2 / self.samples
        self.steps += 1
        for i, p in enumerate(self.params):
            g, h, ĥ = self.momentum[i], self.hess[i], curvatures[i]
            g.copy_(self.beta1 * g + (1 - self.beta1) * gradients[i])
            correction = (1 - self.beta2) ** 2 / 2 * (h - ĥ) ** 2 / (h + self.decay)
            h.copy_(self.beta2 * h + (1 - self.beta2) * ĥ + correction)
            unbiased = g / (1 - self.beta1**self.steps) if self.debias else g
            step = (unbiased + self.decay * means[i]) / (h + self.decay)
            p.copy_(means[i] - self.lr * step.clamp(-self.radius, self.radius))
