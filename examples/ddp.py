"""Fair training with DDP: every rank has whole clients, and the loss is FairMean's.

torchrun --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import fairmean
from clients import leave, make, worst

dist.init_process_group("gloo")  # "nccl" with GPUs
torch.manual_seed(0)
x, y, client = make()
names = sorted(set(client))
number = torch.tensor([names.index(name) for name in client])

sampler = fairmean.ClientSampler(client)  # not DistributedSampler, which mixes the clients
loader = DataLoader(TensorDataset(x, y, number), batch_size=64, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
criterion = fairmean.FairMeanLoss(nn.CrossEntropyLoss(reduction="none"), kappa=4.0)

for epoch in range(10):
    sampler.set_epoch(epoch)
    for bx, by, bclient in loader:
        # A rank with one client needs no clients=. Here each has two.
        criterion(model(bx), by, clients=bclient).backward()
        optimizer.step()
        optimizer.zero_grad()

if dist.get_rank() == 0:
    print(f"ddp: rank 0 has {', '.join(sampler.clients)}; {worst(model.module, x, y, client)}")
leave()
