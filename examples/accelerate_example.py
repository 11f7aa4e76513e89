"""Fair training with Accelerate on two ranks: the loss needs no hook, which Accelerate could not take.

torchrun --nproc-per-node 2 examples/accelerate_example.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fairmean
from clients import make, worst

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x, y, client = make((300, 100))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
sampler = fairmean.ClientSampler(client)
loader = DataLoader(TensorDataset(x, y), batch_size=50, sampler=sampler)
model, optimizer = accelerator.prepare(
    model, optimizer
)  # not the loader, of which each rank would get every other batch
criterion = fairmean.FairMeanLoss(nn.CrossEntropyLoss(reduction="none"), kappa=4.0)

for epoch in range(10):
    sampler.set_epoch(epoch)
    for bx, by in loader:
        accelerator.backward(criterion(model(bx), by))
        optimizer.step()
        optimizer.zero_grad()

if accelerator.is_main_process:
    print(f"accelerate on {accelerator.num_processes} ranks: {worst(accelerator.unwrap_model(model), x, y, client)}")
accelerator.end_training()
