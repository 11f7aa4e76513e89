"""A line for every round of a federation, on the output of the server's app.

Flower carries that output to whoever asked for the run: ``flwr run . --stream`` prints it, ``fairmean flower up``
takes the lines that begin with ``fairmean:`` out of it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from fairmean.experiments.events import Listener, RoundEnded, RunEnded, RunStarted
from fairmean.text import figure

PREFIX = "fairmean: "


class RoundLines(Listener):
    """Prints a line for every round, and what the strategy says about replies that it did not use."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._clients = self._done = 0
        logger = logging.getLogger("fairmean.flower")
        for handler in [one for one in logger.handlers if isinstance(one, _Printed)]:  # of an earlier run
            logger.removeHandler(handler)
        logger.addHandler(_Printed())
        logger.setLevel(logging.INFO)

    def started(self, event: RunStarted) -> None:
        """Where the results will be."""
        again = f", which goes on with round {event.start + 1}" if event.resumed else ""
        _print(f"run folder {event.run.folder}{again}")
        self._clients, self._done = event.clients, event.start
        self._since = time.monotonic()

    def round_ended(self, event: RoundEnded) -> None:
        """The figures of the round, as far as clients let them be known."""
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        self._done = event.round + 1
        parts = [f"round {self._done}/{event.run.config.train.rounds}"]
        parts += _figures(event.metrics if event.accuracy is not None else {})
        if len(event.clients):
            parts += [f"loss {event.losses.mean():.4g}", f"{len(event.clients)} of {self._clients} clients"]
        _print(" · ".join([*parts, f"{seconds:.1f} s"]))

    def ended(self, event: RunEnded) -> None:
        """How it ended."""
        _print(" · ".join([f"{event.summary['status']} after {self._done} rounds", *_figures(event.summary)]))


def _figures(metrics: Mapping[str, Any]) -> list[str]:
    """Average and worst figure of the clients, as far as they are known."""
    known = {key: metrics.get(key) for key in ("average", "worst")}
    return [f"{key} {figure(x, share=abs(x) >= 1)}" for key, x in known.items() if x is not None and math.isfinite(x)]


class _Printed(logging.Handler):
    """What is logged, as lines of the same kind."""

    def emit(self, record: logging.LogRecord) -> None:
        _print(record.getMessage())


def _print(text: str) -> None:
    print(f"{PREFIX}{text}", flush=True)
