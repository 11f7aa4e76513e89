"""One run that is on disk, as 'fairmean show' prints it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data.tasks import task
from fairmean.experiments.keys import SECTIONS
from fairmean.experiments.listing import ERRORS
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.reading import Run
from fairmean.rules.round import Rung
from fairmean.terminal.stored_catalogue import defaults
from fairmean.text import columns, figure

Values = NDArray[np.float64]


def record(run: Run) -> dict[str, Any]:
    """The run for programs."""
    return {
        "folder": str(run.folder),
        "status": run.status,
        "summary": run.summary or None,
        "settings": run.settings,
        "environment": run.environment,
        "clients": [
            {key: value.item() if isinstance(value, np.generic) else value for key, value in client.items()}
            for client in _clients(run)
        ],
    }


def page(run: Run, most: int = 20) -> str:
    """The run for people; of its clients at most so many, those that are served worst first."""
    settings, environment = run.settings, run.environment
    lines = [
        f"run {run.folder}",
        f"{settings.get('method.name')} · attack {settings.get('attack.name')} · seed {settings.get('seed')}"
        f" · {run.status}",
        f"settings: {_unusual(settings) or 'the defaults'}",
        "made with: "
        + " · ".join(
            f"{key} {environment[key]}" for key in ("fairmean", "torch", "python", "device") if environment.get(key)
        ),
        "",
    ]
    if run.summary.get("status") == "finished":
        lines += [columns([[f"{run.summary[name]:.4g}" for name in METRICS]], list(METRICS)), ""]
    if "warning" in run.summary:
        lines += [f"warning: {run.summary['warning']}", ""]
    held_out = run.summary.get("validation")
    if held_out:
        figures = ", ".join(
            f"{name} {_figure(math.nan if held_out[name] is None else held_out[name], run)}"
            for name in ("average", "worst")
        )
        lines += [f"on the samples held out from training: {figures}", ""]
    clients = _clients(run)
    name = run.metric.name
    sign = 1 if run.metric.higher else -1
    order = sorted(clients, key=lambda client: math.inf if math.isnan(client[name]) else sign * client[name])
    labels = "targets" if name in ERRORS.values() else "labels"
    further = [metric for metric in task(settings.get("data.task", "classification")).more if metric.name in clients[0]]
    ends = ["95 % interval"] if "low" in clients[0] else []
    own = [f"on its own {labels}"] if any(not client["regular"] for client in clients) else []
    header = ["client", "", "samples", "test", "loss", "weight", run.metric.label, *ends, *own]
    header += [metric.label if metric.unit == "%" else metric.name for metric in further]
    names = [*([f"own_{name}"] if own else []), *(metric.name for metric in further), *_told(run)]
    header += _told(run)
    lines.append(columns([_row(client, run, bool(ends), names) for client in order[:most]], header))
    if len(clients) > most:
        lines.append(f"… {len(clients) - most} more (--clients {len(clients)} shows them)")
    lines += _explained(run, bool(ends))
    lines += _unseen(run)
    lines += ["", f"table: {run.table}"]
    if settings.get("model.name") == "federation":
        lines += [*_of_federation(run), f"model: fairmean.flower.state_dict({run.hash[:8]!r})"]
    else:
        lines.append(f"model: fairmean.load({run.hash[:8]!r}).model()")
    if run.status in ("interrupted", "running"):
        lines.append(f"It has come to round {run.rounds} of {settings.get('train.rounds')}.")
    if settings.get("theory"):
        lines.append(f"next: fairmean check {run.hash[:8]}")
    return "\n".join(lines)


def _of_federation(run: Run) -> list[str]:
    """What a run of a federation on Flower says beside the figures."""
    summary, lines = run.summary, []
    if summary.get("report") == "sums":
        lines.append("Losses, weights and accuracies stayed with the clients (report = sums).")
    if summary.get("rejected"):
        lines.append(f"{summary['rejected']} replies were not used: {run.folder / 'rejected.csv'} says why.")
    if "epsilon" in summary:
        lines.append(f"privacy: ε = {summary['epsilon']:.4g} at δ = {summary['delta']:g}")
    if "stopped" in summary:
        lines.append(f"It stopped after {summary['rounds']} rounds: {summary['stopped']}.")
    return lines


def _explained(run: Run, ends: bool) -> list[str]:
    """How to read the table of clients."""
    words = []
    if run.metric.name in ERRORS.values():
        words.append(f"{run.metric.name} is {run.metric.about}; less is better")
    if ends:
        words.append("the interval is as wide as the number of test samples leaves it")
    if run.settings.get("data.validation") and run.summary.get("status") != "finished":
        words.append("until the run has finished, figures are on the samples held out from training")
    return [" · ".join(words)] if words else []


def _told(run: Run) -> list[str]:
    """The columns of what clients can tell about themselves."""
    usual = {"round", "client", "regular", "loss", "weight", run.metric.name, f"own_{run.metric.name}"}
    return [name for name in run.columns if name not in usual]


def _unseen(run: Run) -> list[str]:
    """What of the table a server of this method would not see, if there is something to say about it."""
    told = _told(run)
    if not told:
        return []
    names = ["loss", "weight", *told] if run.config.method.build().rung == Rung.SUM else told
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return [f"A server of this method does not see {listed} of a single client, unless clients agree to send them."]


def _row(client: dict[str, Any], run: Run, ends: bool, names: Sequence[str]) -> list[str]:
    kind = "" if client["regular"] else "poisoned"
    shown = [f"{client['loss']:.3f}", f"{client['weight']:.4f}", _figure(client[run.metric.name], run)]
    if ends:
        low, high = client["low"], client["high"]
        shown.append("–" if math.isnan(low + high) else f"{_figure(low, run)} – {_figure(high, run)}")
    shown += [_further(client[name], name, run) for name in names]
    said = ["–" if text == "nan" else text for text in shown]
    counts = [str(client[name] or "–") for name in ("samples", "test")]  # a federation does not tell them
    return [str(client["client"]), kind, *counts, *said]


def _figure(value: float, run: Run) -> str:
    return figure(value, run.metric.unit == "%")


def _further(value: float, name: str, run: Run) -> str:
    """A share without a unit has two decimals, any other figure those of the first one."""
    return f"{value:.2f}" if name in ("r2", *_told(run)) else _figure(value, run)


def _clients(run: Run) -> list[dict[str, Any]]:
    """Every client: its data, its last loss and weight, and its figures.

    Those of a run that has finished are of its final model, on test samples; before, of the last evaluation.
    """
    partition, table = run.partition, run.columns
    n, names = len(partition.regular), run.client_names
    latest: dict[str, Values] = {}
    for name in ("loss", "weight", run.metric.name, f"own_{run.metric.name}", *_told(run)):
        column = np.full(n, math.nan)
        there = ~np.isnan(table[name])
        column[table["client"][there]] = table[name][there]  # rows are in the order of rounds
        latest[name] = column
    for name in (run.metric.name, f"own_{run.metric.name}"):
        if name in run.summary:
            latest[name] = np.array(run.summary[name], dtype=np.float64)
    latest |= {name: np.array(x, dtype=np.float64) for name, x in (run.summary.get("clients") or {}).items()}
    return [
        {
            "client": names[client] if run.has_names else client,
            "regular": bool(partition.regular[client]),
            "samples": int(partition.sizes[client]),
            "test": int(partition.test_sizes[client]),
            **{name: float(column[client]) for name, column in latest.items()},
        }
        for client in range(n)
    ]


def _unusual(settings: dict[str, Any]) -> str:
    """The settings that are not the defaults."""
    usual = {section.dotted(key): key.default for section in SECTIONS for key in section.keys}
    usual |= defaults(str(settings.get("method.name")))
    told = ("method.name", "attack.name", "seed", "partition.seed", "train.device")
    return " ".join(
        f"{key}={value}"
        for key, value in settings.items()
        if key not in told and not key.endswith("sha256") and value != usual.get(key, value if key in usual else None)
    )
