"""Fair training with Lightning on two ranks: the loss needs no strategy of its own.

python examples/lightning_example.py
"""

import warnings

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fairmean
from clients import make, worst

x, y, client = make((300, 100))


class Model(lightning.LightningModule):
    """A small classifier; each rank has one client."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        self.criterion = fairmean.FairMeanLoss(nn.CrossEntropyLoss(reduction="none"), kappa=4.0)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss: Tensor = self.criterion(self.net(batch[0]), batch[1])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        # Made here, when the ranks have started: the sampler asks which one it is on.
        return DataLoader(TensorDataset(x, y), batch_size=50, sampler=fairmean.ClientSampler(client))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=10,
        use_distributed_sampler=False,  # ours has dealt; else each rank would get every other sample of its client
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model)
    if trainer.is_global_zero:
        print(f"lightning: {worst(model.net, x, y, client)}")
