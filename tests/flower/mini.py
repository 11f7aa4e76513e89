"""The embedded images among four clients: for the simulator, and node by node for a federation."""

import functools

import fairmean
from fairmean.experiments.building import build_federation, build_model
from fairmean.experiments.config import parse
from fairmean.experiments.identity import resolve

SETTINGS = {
    "partition": {"clients": 4},
    "attack": {"name": "none"},
    "model": {"name": "linear"},
    "train": {"rounds": 5, "lr": 0.05, "lr_decay": 0.95},
}


@functools.cache
def _config():
    return resolve(parse(SETTINGS))


@functools.cache
def _federation():
    return build_federation(_config())


def simulated(method, **train):
    """The run of a method in the simulator, with the settings of ``strategy_settings``."""
    _, *rest = method.partition(":")
    inner = dict(part.split("=") for part in rest[-1].split(":")) if rest[-1] else {}
    named = {"name": method.partition(":")[0]} | {key: _literal(value) for key, value in inner.items()}
    return fairmean.run({**SETTINGS, "method": named, "train": SETTINGS["train"] | train})


def _literal(value):
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return value


def make_model():
    """The model with which the simulator begins."""
    return build_model(_config(), _federation())


def samples(k):
    """Those of client k: inputs and labels for training, and for testing."""
    clients = _federation()
    a, b = clients.offsets[k : k + 2]
    c, d = clients.test_offsets[k : k + 2]
    return clients.x[a:b], clients.y[a:b], clients.test_x[c:d], clients.test_y[c:d]


def load_data(context):
    """The samples of a node."""
    return samples(int(context.node_config["partition-id"]))
