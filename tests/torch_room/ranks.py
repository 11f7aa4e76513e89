"""What the ranks of test_ranks.py do; each scenario returns the gradients that rank 0 has, by name."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fairmean.errors import UserError
from fairmean.torch.ddp_hook import ddp_hook
from fairmean.torch.loss import FairMeanLoss

KAPPA, TAU = 3.0, 0.5
SIZES = [20, 36, 9, 14, 25]  # samples of five clients, of which two are used where each rank is one
CE = partial(F.cross_entropy, reduction="none")


def data():
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(sum(SIZES), 6, generator=draw)
    y = torch.randint(0, 4, (sum(SIZES),), generator=draw)
    client = torch.repeat_interleave(torch.arange(5), torch.tensor(SIZES))
    return x * (1 + client[:, None]), y, client


def net(dtype=torch.float32):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def gradients(model):
    full = (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters())
    return torch.cat([g.detach().flatten().clone() for g in full])


def formula(model, clients, autocast=False):
    """(1/n) Σ a(f_i) ∇f_i, client after client; autocast rounds on the way back, so there a(f_i) is in the loss."""
    x, y, client = data()
    total = 0
    for i in clients:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x[client == i]), y[client == i])
        a = 1 + KAPPA * loss.item() / (loss.item() + TAU)
        (a * loss if autocast else loss).backward()
        total = total + (1 if autocast else a) * gradients(model)
    model.zero_grad()
    return total / len(clients)


def of(clients):
    x, y, client = data()
    mine = torch.isin(client, torch.tensor(clients))
    return x[mine], y[mine], client[mine]


def one_client_a_rank(rank, wrap, autocast=False):
    x, y, _ = of([rank])
    model = wrap(net())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = FairMeanLoss(CE, KAPPA, TAU)(model(x), y)
    loss.backward()
    return gradients(model)


def unequal(rank, wrap):
    """One client here, four there, and one of them on both."""
    x, y, client = of([0] if rank == 0 else [1, 2, 3, 4])
    if rank == 0:
        more = of([4])
        x, y, client = torch.cat([x, more[0][:5]]), torch.cat([y, more[1][:5]]), torch.cat([client, more[2][:5]])
    else:
        keep = torch.cat([torch.arange(len(x) - SIZES[4]), torch.arange(len(x) - SIZES[4] + 5, len(x))])
        x, y, client = x[keep], y[keep], client[keep]
    model = wrap(net())
    FairMeanLoss(CE, KAPPA, TAU)(model(x), y, clients=[f"site {i}" for i in client.tolist()]).backward()
    return gradients(model)


def accumulated(rank, hook=None, hook_state=None, autocast=False, **options):
    """Three steps of SGD, each of four micro-batches of this rank's client; the gradients before the last step."""
    x, y, _ = of([rank])
    model = DistributedDataParallel(net(), **options)
    fair = ddp_hook(model, KAPPA, TAU, hook=hook, hook_state=hook_state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
    for step in range(3):
        for i, (bx, by) in enumerate(parts):
            with contextlib.nullcontext() if i == len(parts) - 1 else model.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(bx), by) * len(bx) / len(x)
                fair.add(loss).backward()
        if step < 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(step))
    return gradients(model)


def after_two_steps(autocast=False):
    """The gradients that ``accumulated`` must have."""
    model = net()
    for _ in range(2):
        step = formula_in_parts(model, autocast)
        with torch.no_grad():
            offset = 0
            for p in model.parameters():
                p -= 0.1 * step[offset : offset + p.numel()].view_as(p)
                offset += p.numel()
    return formula_in_parts(model, autocast)


def formula_in_parts(model, autocast):
    if not autocast:
        return formula(model, [0, 1])
    x, y, client = data()
    total = 0
    for i in (0, 1):
        mine, f = client == i, 0.0
        model.zero_grad()
        for bx, by in zip(x[mine].chunk(4), y[mine].chunk(4), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(bx), by) * len(bx) / int(mine.sum())
            loss.backward()
            f += loss.item()
        total = total + (1 + KAPPA * f / (f + TAU)) * gradients(model)
    model.zero_grad()
    return total / 2


def two_passes(rank):
    """Accumulation under FSDP2: the losses first, then every micro-batch with the weight of all."""
    x, y, _ = of([rank])
    model = fsdp(net())
    parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
    with torch.no_grad():
        f = sum(CE(model(bx), by).sum() for bx, by in parts) / len(x)
    for bx, by in parts:
        ((1 + KAPPA * f / (f + TAU)) * CE(model(bx), by).sum() / len(x)).backward()
    return gradients(model)


def fsdp(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def said(action):
    """The one line of the error that ``action`` ends in."""
    try:
        action()
    except UserError as error:
        return str(error)
    return "nothing"


def mistakes(rank):
    """What is refused, and in which words."""
    x, y, _ = of([rank])

    def without_no_sync():
        model = DistributedDataParallel(net())
        fair = ddp_hook(model)
        for bx, by in zip(x.chunk(2), y.chunk(2), strict=True):
            fair.add(F.cross_entropy(model(bx), by) / 2).backward()

    def without_add():
        model = DistributedDataParallel(net())
        ddp_hook(model)
        F.cross_entropy(model(x), y).backward()

    def twice():
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        ddp_hook(model)

    def no_ddp():
        ddp_hook(net())

    def vector():
        ddp_hook(DistributedDataParallel(net())).add(torch.ones(3))

    return [said(action) for action in (without_no_sync, without_add, twice, no_ddp, vector)]


CALLS: list[str] = []


def counting(state, bucket):
    CALLS.append(state)
    return default_hooks.allreduce_hook(None, bucket)


def scenarios(rank):
    ddp = DistributedDataParallel
    results = {
        "ddp": one_client_a_rank(rank, ddp),
        "fsdp2": one_client_a_rank(rank, fsdp),
        "ddp, autocast": one_client_a_rank(rank, ddp, autocast=True),
        "fsdp2, autocast": one_client_a_rank(rank, fsdp, autocast=True),
        "ddp, unequal": unequal(rank, ddp),
        "fsdp2, unequal": unequal(rank, fsdp),
        "fsdp2, two passes": two_passes(rank),
        "hook": accumulated(rank),
        "hook, small buckets": accumulated(rank, bucket_cap_mb=0.0002),
        "hook, views": accumulated(rank, gradient_as_bucket_view=True, find_unused_parameters=True),
        "hook, autocast": accumulated(rank, autocast=True),
        "hook, fp16": accumulated(rank, hook=default_hooks.fp16_compress_hook),
        "hook, wrapped": accumulated(rank, hook=counting, hook_state="mine"),
    }
    assert CALLS
    assert set(CALLS) == {"mine"}
    return results, mistakes(rank)


def work(rank, place):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
    results = scenarios(rank)
    if rank == 0:
        torch.save(results, Path(place) / "results.pt")
    dist.barrier()
    time.sleep(0.5)  # gloo's threads end; without it, PyTorch 2.13 aborts now and then on the way out
    dist.destroy_process_group()
