"""``fairmean export``: runs for experiment trackers."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fairmean.export import TRACKERS
from fairmean.terminal.words import parser_for, takes_directory, takes_json

_ABOUT = """\
Bring runs into an experiment tracker, from their folders: the figures of every round, every client's figure, loss
and weight in evaluated rounds (a curve for each of up to 20 clients, a histogram where the tracker has them), the
settings and the files.

A run's id in the tracker is its hash, so exporting a run twice does not double it; a run that has gone on is brought
up to date. The tracker's library must be installed.

PLACE is a folder for tensorboard (default: tensorboard), a tracking URI for mlflow (default: MLFLOW_TRACKING_URI, or
sqlite:///mlflow.db), and a project for wandb and trackio (default: fairmean)."""
_EXAMPLES = (
    "fairmean export demo --to tensorboard                   all runs of that name",
    "fairmean export 3f2a --to mlflow:http://127.0.0.1:5000",
    "fairmean export 3f2a --to wandb:my-project --follow     until the run has ended",
    "WANDB_MODE=offline fairmean export 3f2a --to wandb      without a network",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "export", "runs for TensorBoard, MLflow, W&B or Trackio", _ABOUT, _EXAMPLES)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's folder, a beginning of its hash, or the name of several runs"
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="TRACKER[:PLACE]",
        help=f"{', '.join(TRACKERS)}; with a place, as tensorboard:logs",
    )
    parser.add_argument("--follow", action="store_true", help="go on until the runs have ended")
    takes_directory(parser)
    takes_json(parser)
    parser.set_defaults(call=_export)


def _export(arguments: argparse.Namespace) -> None:
    from fairmean.experiments.listing import find_all
    from fairmean.export import Exported, export

    def tell(run: Exported) -> None:
        if not arguments.json:
            rounds = f"{run.rounds} new round{'' if run.rounds == 1 else 's'}"
            print(f"{run.run[:8]}  {run.status} · {rounds} · {run.tracker}: {run.place}", flush=True)

    exported = export(find_all(arguments.runs, arguments.dir), arguments.to, arguments.follow, tell)
    if arguments.json:
        print(json.dumps([run.record() for run in exported], indent=1, ensure_ascii=False))
