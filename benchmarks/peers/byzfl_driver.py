"""ByzFL: its Client and Server with its Average or its TrMean; a round is one DSGD step, or FedAvg's local steps.

The loops are those of its own train.py. There every client gets the new model after each FedAvg round; here only the
clients that take part do.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version

import numpy as np
from models import Loss  # type: ignore[import-not-found,unused-ignore]
from protocol import (  # type: ignore[import-not-found,unused-ignore]
    Driver,
    Task,
    loader,
    serve,
    timed,
    torchvision_without_its_library,
)
from torch import Tensor, nn

RULES = {"mean": "Average", "cwtm": "TrMean"}


class ByzFL:
    version = version("byzfl")

    def __init__(self, task: Task) -> None:
        torchvision_without_its_library()
        import byzfl  # type: ignore[import-not-found,unused-ignore]
        from byzfl.fed_framework import models  # type: ignore[import-not-found,unused-ignore]

        models.peer_model = task.build  # models are looked up by name in this module
        vars(nn)["PeerLoss"] = Loss  # and losses in torch.nn
        self.task = task
        local = {"optimizer_name": "SGD", "learning_rate": task.lr, "weight_decay": 0.0} if task.batch else {}
        local |= {"milestones": [], "learning_rate_decay": 1.0} if task.batch else {}
        self.clients = [
            byzfl.Client(
                {
                    "model_name": "peer_model",
                    "device": "cpu",
                    "loss_name": "PeerLoss",
                    "LabelFlipping": False,
                    "nb_labels": 10,
                    "momentum": 0.0,
                    # the same batches for ever
                    "training_dataloader": loader(batches, itertools.cycle(range(len(batches)))),
                    "store_per_client_metrics": False,
                    **local,
                }
            )
            for batches in map(task.batches, range(len(task.clients)))
        ]
        self.steps = [task.epochs * len(client.training_dataloader.dataset) for client in self.clients]
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
                "test_loader": loader([task.clients[0]]),
            }
        )

    def step(self) -> None:
        if self.task.batch:
            self.fedavg()
        else:
            self.dsgd()

    def fedavg(self) -> None:
        n = len(self.clients)
        chosen = np.random.choice(range(n), size=self.task.cohort or n, replace=False)
        state, weights = self.server.get_dict_parameters(), []
        for i in chosen:
            self.clients[i].set_model_state(state)
            self.clients[i].compute_model_update(self.steps[i])
            weights.append(self.clients[i].get_flat_parameters())
        self.server.update_model_with_weights(weights)
        self.took_part = [int(i) for i in chosen]

    def dsgd(self) -> None:
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
