"""Fair training with FSDP2, whose parameters are spread over the ranks: the same loss, and nothing else.

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import fairmean
from clients import leave, make

dist.init_process_group("gloo")  # "nccl" with GPUs
torch.manual_seed(0)
x, y, client = make((300, 100))  # two clients, one for each rank

sampler = fairmean.ClientSampler(client)
loader = DataLoader(TensorDataset(x, y), batch_size=50, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
criterion = fairmean.FairMeanLoss(nn.CrossEntropyLoss(reduction="none"), kappa=4.0)

for epoch in range(10):
    sampler.set_epoch(epoch)
    for bx, by in loader:
        loss = criterion(model(bx), by)
        loss.backward()  # this rank is one client: its mean loss is transformed
        optimizer.step()
        optimizer.zero_grad()

print(f"fsdp2: rank {dist.get_rank()} has {sampler.clients[0]}, the last loss is {loss.item():.3f}")
leave()
