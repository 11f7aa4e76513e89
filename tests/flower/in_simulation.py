"""Federations in Flower's own simulation, in a process of its own: python -m tests.flower.in_simulation KIND."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from fairmean.flower.environment import need_flower

need_flower()

from flwr.app import ArrayRecord  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from fairmean.flower import FairStrategy, client_app  # noqa: E402
from tests.flower import hostile, mini, own_parts  # noqa: E402

Methods = dict[str, list[str]]
FEW: Methods = {"clients": ["centered-clipping", "mean:objective=forgiving"], "sums": ["fairmean-recess"]}
MORE: Methods = {"clients": ["fairmean-recess", "drfl", "krum:f=1"], "sums": ["fairmean:kappa=4", "fairmean-split"]}
"""Methods by the kind of report."""
MEMORY = os.path.join(os.getcwd(), "memory")


def compared(methods: Methods):
    """Several methods in one simulation, under both kinds of report."""
    server = ServerApp()
    own_parts.register()

    @server.main()
    def main(grid, context):
        for report, names in methods.items():
            for method in names:
                strategy = FairStrategy(
                    method, clients=4, lr=0.05, lr_decay=0.95, report=report, name=f"{report}/{method}"
                )
                strategy.start(grid, ArrayRecord(mini.make_model().state_dict()), 5)

    def load_data(context):
        own_parts.register()  # in the process of the client, too
        return mini.load_data(context)

    return server, client_app(mini.make_model, load_data, memory=MEMORY)


def attacked():
    """Two honest clients and two hostile ones, for 20 rounds."""
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid, context):
        strategy = FairStrategy(
            "fedavg",
            clients=4,
            lr=0.05,
            report="clients",
            min_clients=2,
            max_norm=100.0,
            max_size=10**6,
            name="hostile",
        )
        strategy.start(grid, ArrayRecord(mini.make_model().state_dict()), hostile.ROUNDS)

    @client.train()
    def train(message, context):
        return hostile.reply(message, context, MEMORY)

    return server, client


if __name__ == "__main__":
    kinds: dict[str, Callable[[], Any]] = {
        "few": partial(compared, FEW),
        "more": partial(compared, MORE),
        "attacked": attacked,
    }
    server, client = kinds[sys.argv[1]]()
    run_simulation(server, client, 4, backend_config={"client_resources": {"num_cpus": 1}})
