"""The model of a federation's run, read from its folder; Flower need not be installed."""

from __future__ import annotations

from pathlib import Path

from fairmean.errors import UserError
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.listing import DIRECTORY
from fairmean.experiments.reading import Run, load
from fairmean.rules.round import State


def state_dict(run: Run | str | Path, directory: str | Path = DIRECTORY) -> State:
    """The arrays of the run's last checkpoint by name, for ``model.load_state_dict``."""
    run = run if isinstance(run, Run) else load(run, directory)
    checkpoint = RunFolder(run.folder).load("cpu")
    if checkpoint is None or "arrays" not in checkpoint:
        raise UserError(f"run '{run.folder}' is not of a federation on Flower; fairmean.load(…).model() has its model")
    arrays, start, w = checkpoint["arrays"], 0, checkpoint["w"]
    found: State = {}
    for name, like in arrays.items():
        if like.is_floating_point():
            found[name] = w[start : start + like.numel()].view(like.shape).to(like.dtype)
            start += like.numel()
        else:
            found[name] = like
    return found
