"""Fair training with gradient accumulation, in one process and, under torchrun, with DDP.

python examples/accumulation.py
torchrun --nproc-per-node 2 examples/accumulation.py
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import fairmean
from clients import leave, make, worst

PARTS = 4  # micro-batches for each step of the optimizer
torch.manual_seed(0)
x, y, client = make((300, 100))
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)

if "RANK" not in os.environ:  # One process: clients are groups. Directions of micro-batches simply add up.
    criterion = fairmean.GroupFairMean(client, kappa=4.0)
    data = TensorDataset(x, y, criterion.encode(client))
    for _ in range(20):
        for i, (bx, by, group) in enumerate(DataLoader(data, batch_size=25, shuffle=True)):
            losses = nn.functional.cross_entropy(net(bx), by, reduction="none")
            (criterion(losses, group) / PARTS).backward()
            if i % PARTS == PARTS - 1:
                optimizer.step()
                optimizer.zero_grad()
    print(f"accumulation: {worst(net, x, y, client)}")

else:  # Ranks as clients: the hook knows the loss of all micro-batches when the last one is backpropagated.
    dist.init_process_group("gloo")
    sampler = fairmean.ClientSampler(client)
    loader = DataLoader(TensorDataset(x, y), batch_size=25, sampler=sampler)
    model = DistributedDataParallel(net)
    fair = fairmean.ddp_hook(model, kappa=4.0)
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for i, (bx, by) in enumerate(loader):
            last = i % PARTS == PARTS - 1
            with contextlib.nullcontext() if last else model.no_sync():
                fair.add(nn.functional.cross_entropy(model(bx), by) / PARTS).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"accumulation under DDP: {worst(net, x, y, client)}")
    leave()
