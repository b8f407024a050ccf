"""Trains with SAM, bSAM and IVON on a part of the batch: `python two_ranks.py RANK RENDEZVOUS OUT`."""

import sys
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from bayesmooth import randomness
from bayesmooth.optim import BSAM, IVON, SAM

RANKS = 2


class BSAMWithTorchsNoise(BSAM):
    """As on an accelerator, or where there was no compiler."""

    def step(self, closure=None):
        with mock.patch.object(randomness, "KERNELS", False):
            return super().step(closure)


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).to(dtype)


OPTIMIZERS = {
    "sam": lambda p, seed: SAM(p, torch.optim.SGD, rho=0.2, lr=0.3, momentum=0.9),
    "bsam": lambda p, seed: BSAM(p, lr=0.3, ess=200, rho=0.1, seed=seed),
    "bsam, torch's noise": lambda p, seed: BSAMWithTorchsNoise(p, lr=0.3, ess=200, seed=seed),
    "ivon": lambda p, seed: IVON(p, 0.1, 200, beta2=0.9, seed=seed),
    "ivon, two samples": lambda p, seed: IVON(p, 0.1, 200, beta2=0.9, mc_samples=2, seed=seed),
    "ivon, two squares": lambda p, seed: IVON(p, 0.1, 200, beta2=0.9, mc_samples=2, hess_approx="gradsq", seed=seed),
    "ivon, relative": lambda p, seed: IVON(p, 0.02, 200, beta2=0.9, noise=0.5, seed=seed),
}


def train(model, optimizer, rows=slice(None)):
    """Four steps on these rows of the batch; the weights afterwards."""
    rng = torch.Generator().manual_seed(7)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(16, 6, generator=rng, dtype=torch.float64).to(dtype)
    labels = torch.randint(4, (16,), generator=rng)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [p.detach().clone() for p in whole]


def wrapped(kind, model):
    if kind == "columns":
        return split_by_columns(model)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model)
    return DistributedDataParallel(model, gradient_as_bucket_view=kind == "ddp, bucket views")


def split_by_columns(model):
    """Shards that are not one piece of their matrix, as tensor parallelism makes them; every rank sees all rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    plan = {name: RowwiseParallel(input_layouts=Replicate()) for name in ("0", "2")}
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)


def cases():
    """Every wrapper × optimizer in float64; IVON in float32 too, where its kernels work; SAM on 16-bit shards."""
    kinds = ("ddp", "ddp, bucket views", "fsdp2")
    yield from ((kind, name, torch.float64) for kind in kinds for name in OPTIMIZERS)
    yield from ((kind, "ivon", torch.float32) for kind in ("ddp", "fsdp2"))
    yield "columns", "ivon", torch.float64
    yield "columns", "ivon, relative", torch.float64
    yield "columns", "bsam", torch.float64
    yield "fsdp2", "sam", torch.bfloat16


def main(rank, rendezvous, out):
    dist.init_process_group("gloo", f"file://{rendezvous}", timedelta(seconds=60), world_size=RANKS, rank=rank)
    rows = slice(rank, None, RANKS)
    results = {}
    for kind, name, dtype in cases():
        model = wrapped(kind, network(dtype))
        seed = 5 + 100 * rank  # ranks that disagree must come to agree
        optimizer = OPTIMIZERS[name](model.parameters(), seed)
        part = slice(None) if kind == "columns" else rows
        results[f"{name} in {kind}, {dtype}"] = train(model, optimizer, part)
    torch.save(results, f"{out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
