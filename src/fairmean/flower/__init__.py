"""Real federations on Flower: every method of rungs 0 to 3 as a Flower strategy, and the client's side of it.

The server of a federation is ten lines (``server_app.py`` of a Flower app)::

    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from fairmean.flower import FairStrategy
    from task import make_model

    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = FairStrategy("fairmean:kappa=4", clients=3, lr=0.1)
        strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=20)

A ready client (``client_app.py``) is three: ``load_data(context)`` returns the node's samples, as
``(x, y, test_x, test_y)`` or as two loaders of batches, one for training and one for testing::

    from fairmean.flower import client_app
    from task import load_data, make_model

    app = client_app(make_model, load_data)

A training function that exists already, and returns a trained ``ArrayRecord``, becomes fair by one more decorator::

    from flwr.clientapp import ClientApp
    from fairmean.flower import fair
    from task import load_data, make_model

    app = ClientApp()

    @app.train()
    @fair(make_model, load_data)
    def train(message, context):
        ...

Results are in a run folder, as the simulator's are: ``fairmean ls``, ``show``, ``report`` and ``watch`` read it.
Flower is imported when one of these names is first used; it comes with ``pip install "fairmean[flower]"``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairmean.flower.environment import need_flower, stay_offline

if TYPE_CHECKING:
    from fairmean.flower.client import client_app, fair
    from fairmean.flower.privacy import Privacy
    from fairmean.flower.round_lines import RoundLines
    from fairmean.flower.stored import state_dict
    from fairmean.flower.strategy import FairStrategy

_HOMES = {
    "FairStrategy": "strategy",
    "Privacy": "privacy",
    "RoundLines": "round_lines",
    "client_app": "client",
    "fair": "client",
    "state_dict": "stored",
}

__all__ = ["FairStrategy", "Privacy", "RoundLines", "client_app", "fair", "state_dict", "stay_offline"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and Flower with it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "state_dict":
        need_flower()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
