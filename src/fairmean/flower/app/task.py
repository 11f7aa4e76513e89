"""The task: the model that all clients train together, and the data of one of them. Make both your own."""

from flwr.app import Context
from torch import Tensor, nn

from fairmean import data, models
from fairmean.data.federation import build


def make_model() -> nn.Module:
    """Any PyTorch model without batch normalisation. Its first parameters come from the seed."""
    return models.build("mlp", (28, 28), 10, seed=1)


def load_data(context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The samples of this client: x and y to train with, x and y to test with.

    At a real hospital, read its own file here. Where it lies can stand in the SuperNode's --node-config, as in
    data="/srv/patients.csv", and is then context.node_config["data"]. Here, 6,000 images of clothes are divided
    unequally among the clients, and the node takes its share.
    """
    client, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    everybody = build(data.load("fashion-mnist-mini"), clients=clients)
    rows = slice(*everybody.offsets[client : client + 2])
    test = slice(*everybody.test_offsets[client : client + 2])
    return everybody.x[rows], everybody.y[rows], everybody.test_x[test], everybody.test_y[test]
