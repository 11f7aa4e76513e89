"""ByzFL: its Client and Server, one DSGD step a round, with its Average or its TrMean."""

from __future__ import annotations

import itertools
from importlib.metadata import version

from protocol import (  # type: ignore[import-not-found,unused-ignore]
    Driver,
    Task,
    serve,
    timed,
    torchvision_without_its_library,
    whole,
)
from torch import Tensor

RULES = {"mean": "Average", "cwtm": "TrMean"}


class ByzFL:
    version = version("byzfl")

    def __init__(self, task: Task) -> None:
        torchvision_without_its_library()
        import byzfl  # type: ignore[import-not-found,unused-ignore]
        from byzfl.fed_framework import models  # type: ignore[import-not-found,unused-ignore]

        models.peer_model = task.build  # models are looked up by name in this module
        self.clients = [
            byzfl.Client(
                {
                    "model_name": "peer_model",
                    "device": "cpu",
                    "loss_name": "CrossEntropyLoss",
                    "LabelFlipping": False,
                    "nb_labels": 10,
                    "momentum": 0.0,
                    "training_dataloader": whole(client, itertools.repeat(0)),  # one batch for ever
                    "store_per_client_metrics": False,
                }
            )
            for client in task.clients
        ]
        self.server = byzfl.Server(
            {
                "model_name": "peer_model",
                "device": "cpu",
                "optimizer_name": "SGD",
                "learning_rate": task.lr,
                "weight_decay": 0.0,
                "milestones": [],
                "learning_rate_decay": 1.0,
                "aggregator_info": {"name": RULES[task.rule], "parameters": {"f": task.f}},
                "pre_agg_list": [],
                "test_loader": whole(task.clients[0]),
            }
        )

    def step(self) -> None:
        state = self.server.get_dict_parameters()
        for client in self.clients:
            client.set_model_state(state)
        for client in self.clients:
            client.compute_gradients()
        self.server.update_model_with_gradients([client.get_flat_gradients() for client in self.clients])

    def rounds(self, count: int) -> list[float]:
        seconds: list[float] = timed(self.step, count)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.server.model.parameters())


def start(task: Task, threads: int, path: str) -> Driver:
    return ByzFL(task)


if __name__ == "__main__":
    serve(start)
