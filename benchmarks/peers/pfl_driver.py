"""pfl: FederatedAveraging on the SimulatedBackend, one full-batch local SGD step or local epochs."""

from __future__ import annotations

from importlib.metadata import version

import torch
from models import Loss  # type: ignore[import-not-found,unused-ignore]
from protocol import ByIndex, Driver, Task, serve, timed  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor, nn


class Model(nn.Module):
    """What pfl asks of a torch model: a loss, and metrics (none)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.of = net, Loss()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.of(self.net(x), y)  # type: ignore[no-any-return]

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        return {}


class Pfl:
    version = version("pfl")

    def __init__(self, task: Task) -> None:
        from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found,unused-ignore]
        from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found,unused-ignore]
        from pfl.algorithm.federated_averaging import (  # type: ignore[import-not-found,unused-ignore]
            FederatedAveraging,
        )
        from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found,unused-ignore]
        from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found,unused-ignore]
        from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found,unused-ignore]
        from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import-not-found,unused-ignore]
        from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found,unused-ignore]

        task.only_mean()
        n, self.asked = len(task.clients), list[int]()
        made = [] if isinstance(task.clients, ByIndex) else list(task.clients)
        users = [PyTorchTensorDataset(client, user_id=str(i)) for i, client in enumerate(made)]

        def user(i: int) -> PyTorchTensorDataset:
            self.asked.append(i)
            return users[i] if users else PyTorchTensorDataset(task.clients[i], user_id=str(i))

        in_turn = get_user_sampler("minimize_reuse", list(range(n)))
        self.backend = SimulatedBackend(FederatedDataset(user, in_turn), None)
        net = Model(task.build())
        self.model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
        self.training = NNTrainHyperParams(
            local_batch_size=task.batch or None, local_num_epochs=task.epochs, local_learning_rate=task.lr
        )
        self.algorithm, self.settings, self.done = FederatedAveraging(), NNAlgorithmParams, 0
        self.users = task.cohort or n

    def step(self) -> None:
        """The algorithm's own loop, told to stop one iteration further on; a run resumes where the last one ended."""
        self.done += 1
        self.asked.clear()
        settings = self.settings(
            central_num_iterations=self.done,
            evaluation_frequency=10**9,
            train_cohort_size=self.users,
            val_cohort_size=None,
        )
        self.algorithm.run(settings, self.backend, self.model, self.training, send_metrics_to_platform=False)

    @property
    def took_part(self) -> list[int]:
        return list(self.asked)

    def rounds(self, count: int) -> list[float]:
        seconds: list[float] = timed(self.step, count)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.model.pytorch_model.parameters())


def start(task: Task, threads: int, path: str) -> Driver:
    return Pfl(task)


if __name__ == "__main__":
    serve(start)
