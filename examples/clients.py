"""Data for the examples: clients that a plain model serves unequally well."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

NAMES = ["Ambridge", "Borchester", "Felpersham", "Hollerton"]


def make(sizes: tuple[int, ...] = (400, 200, 80, 60)) -> tuple[Tensor, Tensor, list[str]]:
    """Inputs, labels, and the client of every sample; for each client the classes lie in another direction."""
    draw = torch.Generator().manual_seed(0)
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = torch.randint(0, 3, (len(client),), generator=draw)
    x = torch.randn(len(client), 8, generator=draw)
    x[torch.arange(len(y)), y] += 1.5
    x[torch.arange(len(y)), 3 + client % 5] += y - 1.0
    x[:, 7] = client
    return x, y, [NAMES[i] for i in client.tolist()]


def worst(model: torch.nn.Module, x: Tensor, y: Tensor, client: list[str]) -> str:
    """The client with the lowest accuracy, in words."""
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float()
    accuracy = {name: right[[c == name for c in client]].mean().item() for name in sorted(set(client))}
    name = min(accuracy, key=accuracy.__getitem__)
    return f"the worst client is {name} with {accuracy[name]:.0%}"


def leave() -> None:
    """The end of a program with several ranks: nobody goes while another still needs it.

    Gloo's threads are given a moment to end. Without it, PyTorch 2.13 aborts now and then on the way out.
    """
    dist.barrier()
    time.sleep(0.5)
    dist.destroy_process_group()
