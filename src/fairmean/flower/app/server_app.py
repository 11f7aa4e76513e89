"""The server: it sends the model out, and makes a step of what the clients answer."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fairmean.flower import FairStrategy, RoundLines

from task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train. The settings are those of pyproject.toml, unless the run was given others."""
    settings = context.run_config
    strategy = FairStrategy(
        settings["method"],
        clients=settings["clients"],
        lr=settings["lr"],
        local_steps=settings["local-steps"],
        batch=settings["batch"],
        report=settings["report"],
        min_clients=settings["min-clients"] or None,
        name=settings["name"],
        dir=settings["runs"],
        eval_every=1,
        listeners=[RoundLines()],
    )
    strategy.start(
        grid,
        ArrayRecord(make_model().state_dict()),
        num_rounds=settings["num-server-rounds"],
        timeout=settings["round-timeout"],
    )
