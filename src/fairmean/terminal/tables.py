"""Plain-text tables for the terminal."""

from __future__ import annotations

from fairmean.experiments.building import poisoned
from fairmean.experiments.comparison_table import in_colour
from fairmean.experiments.config import Config
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.reading import Run
from fairmean.experiments.study import Comparison
from fairmean.text import columns


def headline(config: Config) -> str:
    """What was run, in one line; under an attack, who is poisoned."""
    part, attack, ids = config.partition, config.attack, poisoned(config)
    who = ", ".join(map(str, ids)) if len(ids) <= 5 and attack.pick == "last" else f"({len(ids)} of {part.clients})"
    kind = f"Dirichlet {part.alpha:g}" if part.name == "dirichlet" else part.name
    attacked = f"clients {who} poisoned" if len(ids) else "none poisoned"
    parts = (config.data.name, f"{part.clients} clients, {kind}", attacked)
    return " · ".join([*parts, f"{config.train.rounds} rounds", config.train.device])


def footer(result: Comparison, command: str = "fairmean compare", report: str | None = None) -> str:
    """How to read the table, and where to go next; ``command`` made it, and further commands are written from it.

    ``report``: the file of a report that was written.
    """
    return (
        f"best per column {'in bold' if in_colour() else '*'} · accuracy in %, var in %², on clean labels, "
        "over regular clients (all of them where there is no attack)\n"
        f"{_assumptions(result)}{_diverged(result)}"
        f"details: {result.folder}/table.csv (kept as {result.table.name}), and one folder per run beside it\n"
        f"{f'report: {report} (open it in a browser)' + chr(10) if report else ''}"
        f"next: {_next(result, command, report)}"
    )


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
        headline(result.config),
        f"{method.name} {hyper} · attack {result.config.attack.name}",
        columns(
            [[f"{s[name]:.4g}" for name in METRICS] + [f"{s['loss_dispersion']:.3g}"]],
            [*METRICS, "loss dispersion D_1"],
        ),
        "accuracy per client: "
        + " ".join(
            f"{value:.1f}{'' if regular else ' (poisoned)'}"
            for value, regular in list(zip(result.accuracy, result.regular, strict=True))[:20]
        )
        + (f" … and {len(result.accuracy) - 20} more in {result.table.name}" if len(result.accuracy) > 20 else ""),
    ]
    if "warning" in s:
        lines.append(f"warning: {s['warning']}")
    if s["without_test_data"]:
        lines.append(f"{s['without_test_data']} clients have no test data and are in none of these figures")
    if s["poisoned"]:
        view = s["poisoned"]
        lines.append(
            f"poisoned clients: {view['clean_average']:.1f} % on clean labels, {view['own_average']:.1f} % on their own"
        )
    before = result.continues
    if before is not None:
        lines.append(f"the first {before['rounds']} rounds were computed before, in run {before['run'][:8]}")
    lines.append(f"details: {result.folder}")
    if result.config.theory:
        lines.append(f"next: fairmean check {result.folder}")
    return "\n".join(lines)
