"""Fair training by the column of a data frame, and a group whose labels are wrong.

python examples/groups_from_pandas.py
"""

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fairmean
from clients import make

torch.manual_seed(0)
x, y, client = make((300, 250, 200, 150))
frame = pd.DataFrame({"site": client, "label": y.numpy()})
wrong = frame["site"] == "Hollerton"
frame.loc[wrong, "label"] = (frame.loc[wrong, "label"] + 1) % 3  # all labels of this site are mistaken

EPOCHS, BATCH = 40, 50
criterion = fairmean.GroupRecess(frame["site"], steps=EPOCHS * len(frame) // BATCH, classes=3)
labels = torch.tensor(frame["label"].to_numpy())
data = TensorDataset(x, labels, criterion.encode(frame["site"]))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

for _ in range(EPOCHS):
    for bx, by, site in DataLoader(data, batch_size=BATCH, shuffle=True):
        logits = model(bx)
        losses = nn.functional.cross_entropy(logits, by, reduction="none")
        criterion(losses, site, logits, by).backward()
        optimizer.step()
        optimizer.zero_grad()

print("groups: trust", ", ".join(f"{name} {value:.2f}" for name, value in criterion.trust().items()))
