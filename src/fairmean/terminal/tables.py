"""Plain-text tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairmean.data.registry import SPECS
from fairmean.data.tasks import task
from fairmean.experiments.building import poisoned
from fairmean.experiments.comparison_table import in_colour
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.reading import Run
from fairmean.experiments.sections import Config
from fairmean.experiments.study import Comparison
from fairmean.text import columns


def headline(config: Config, names: Sequence[str] = (), records: Sequence[Mapping[str, Any]] = ()) -> str:
    """What was run, in one line; under an attack, who is poisoned. ``names``: what clients are called.

    ``records`` of a comparison's runs say what differs between them: the line then names all values.
    """
    part = config.partition

    def each(key: str, value: Any) -> str:
        values = dict.fromkeys([record[key] for record in records] or [value])
        return " or ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)

    kinds = {"dirichlet": f"Dirichlet {each('partition.alpha', part.alpha)}", "given": "as the data says"}
    several = len({record["partition.name"] for record in records}) > 1
    kind = "divided in several ways" if several else kinds.get(part.name, part.name)
    divided = f"{each('partition.clients', part.clients)} clients, {kind}"
    rounds = f"{each('train.rounds', config.train.rounds)} rounds"
    return " · ".join([config.data.name, divided, _attacked(config, names, records), rounds, config.train.device])


def _attacked(config: Config, names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """Which clients are poisoned, where they are the same in all runs."""
    ids, attack = _poisoned(config, names), config.attack
    if any("clients=" in record["attack"] or "fraction=" in record["attack"] for record in records):
        return "poisoned as the columns say"
    if not ids:
        return "none poisoned" if config.data.name in SPECS else "labels as given, none poisoned on purpose"
    if len({record["partition.clients"] for record in records}) > 1:
        return "poisoned clients differ"
    who = ", ".join(ids) if len(ids) <= 5 and attack.pick == "last" else f"({len(ids)} of {config.partition.clients})"
    return f"clients {who} poisoned"


def _poisoned(config: Config, names: Sequence[str]) -> list[str]:
    """The poisoned clients, by name where they have names or the config names them, else by number."""
    clients = config.attack.clients
    if config.attack.name == "none" or isinstance(clients, int):
        return [names[client] if names else str(client) for client in poisoned(config)]
    return [str(client).strip() for client in (clients.strip("[]").split(",") if isinstance(clients, str) else clients)]


def footer(result: Comparison, command: str = "fairmean compare", report: str | None = None) -> str:
    """How to read the table, and where to go next; ``command`` made it, and further commands are written from it.

    ``report``: the file of a report that was written.
    """
    return (
        f"best per column {'in bold' if in_colour() else '*'} · {_judged(result.config)}, {_labels(result)}\n"
        f"{_assumptions(result)}{_diverged(result)}{_drawn(result)}"
        f"details: {result.folder}/table.csv (kept as {result.table.name}), and one folder per run beside it\n"
        f"{f'report: {report} (open it in a browser)' + chr(10) if report else ''}"
        f"next: {_next(result, command, report)}"
    )


def _drawn(result: Comparison) -> str:
    """What the draws have in common, where the data say who the clients are."""
    if len(result.seeds) < 2 or result.config.partition.name != "given":
        return ""
    return "all draws have the same clients and the same test samples, so ± says nothing about other samples\n"


def _judged(config: Config) -> str:
    """What the figures are, and their units."""
    metric = task(config.data.task).metric
    if metric.unit == "%":
        return f"{metric.name} in %, var in %²"
    return f"{metric.name} ({metric.about}, so less is better) in {metric.unit}, var in its square"


def _labels(result: Comparison) -> str:
    """Whose labels are meant, as far as anybody knows whether they are right."""
    if result.config.data.name in SPECS:
        return "on clean labels, over regular clients (all of them where there is no attack)"
    if all(attack.partition(" ")[0] == "none" for attack in result.attacks):
        return "on labels as given, over all clients"
    return "on labels as given, before poisoning, over regular clients (all of them where there is no attack)"


def _next(result: Comparison, command: str, report: str | None) -> str:
    """What to type next: more draws where there is one alone, a page to look at, and where the runs are."""
    name = result.config.run.name
    more = [f"{command} --seeds 1-5"] if len(result.seeds) == 1 else []
    look = [] if report else [f"fairmean report {name}"]
    return "   ·   ".join([*more, *look, f"fairmean ls {name}"])


def _diverged(result: Comparison) -> str:
    """What to do about runs that diverged."""
    count = sum(record["status"] == "diverged" for record in result.records)
    if not count:
        return ""
    return f"{count} of {len(result.records)} runs diverged: use a smaller train.lr ('fairmean advise' suggests one)\n"


def _assumptions(result: Comparison) -> str:
    """Methods that were given something the others were not."""
    groups: dict[str, list[str]] = {}
    for method, text in result.assumes.items():
        if text:
            groups.setdefault(text, []).append(method)
    return "".join(f"{text}: {', '.join(methods)}\n" for text, methods in groups.items())


def run(result: Run) -> str:
    """One finished run."""
    s = result.summary
    method = result.config.method
    hyper = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in method.hyper.items()
    )
    lines = [
        headline(result.config, result.client_names if result.has_names else ()),
        f"{method.name} {hyper} · attack {result.config.attack.name}",
        columns(
            [[f"{s[name]:.4g}" for name in METRICS] + [f"{s['loss_dispersion']:.3g}"]],
            [*METRICS, "loss dispersion D_1"],
        ),
        f"{result.metric.name} per client: {_clients(result)}",
    ]
    if "warning" in s:
        lines.append(f"warning: {s['warning']}")
    if s["without_test_data"]:
        lines.append(f"{s['without_test_data']} clients have no test data and are in none of these figures")
    if s["poisoned"]:
        view = s["poisoned"]
        unit = " %" if result.metric.unit == "%" else ""
        clean, own = (f"{view[key]:.{_digits(view[key], result)}f}{unit}" for key in ("clean_average", "own_average"))
        lines.append(f"poisoned clients: {clean} on clean labels, {own} on their own")
    before = result.continues
    if before is not None:
        lines.append(f"the first {before['rounds']} rounds were computed before, in run {before['run'][:8]}")
    lines.append(f"details: {result.folder}")
    if result.config.theory:
        lines.append(f"next: fairmean check {result.folder}")
    return "\n".join(lines)


_SHOWN = 20


def _clients(result: Run) -> str:
    """The clients' figures, with their names where they have any; of many clients the first ones."""
    names = result.client_names if result.has_names else [""] * len(result.values)
    every = list(zip(names, result.values, result.regular, strict=True))
    shown = [
        f"{name}{' ' if name else ''}{value:.{_digits(value, result)}f}{'' if regular else ' (poisoned)'}"
        for name, value, regular in every[:_SHOWN]
    ]
    more = f" … and {len(every) - _SHOWN} more in {result.table.name}" if len(every) > _SHOWN else ""
    return (", " if result.has_names else " ").join(shown) + more


def _digits(value: float, result: Run) -> int:
    """So many that a figure has three digits that count; one after the point for a percentage."""
    if result.metric.unit == "%" or math.isnan(value) or value == 0:
        return 1
    return min(6, max(0, 2 - math.floor(math.log10(abs(value)))))
