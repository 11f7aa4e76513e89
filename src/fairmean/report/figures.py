"""The pictures of a report for a paper: SVG, PDF and PNG, by matplotlib, from the same data as the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError
from fairmean.report import packing
from fairmean.report.judged import Judged

FORMATS = ("svg", "pdf", "png")
COLOURS = ("#2f6db5", "#12805c", "#8250c4", "#a16207", "#b0307a", "#0e7490")
GREY, REGULAR, POISONED = "#6b7280", "#2f6db5", "#c2410c"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": "#ececea",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "fairmean",
    "pdf.fonttype": 42,
}


def write_figures(data: dict[str, Any], folder: str | Path) -> list[Path]:
    """Every picture that the data has, for every attack, in three formats; returns the files."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--figures needs matplotlib; install it with: pip install 'fairmean[plot]'") from None
    place = Path(folder)
    files = []
    try:
        place.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(_STYLE):
            for name, width, height, draw in _pictures(_Shown(data)):
                figure = Figure(figsize=(width, height), layout="constrained")
                draw(figure)
                for ending in FORMATS:
                    file = place / f"{name}.{ending}"
                    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
                    figure.savefig(file, dpi=200, metadata=metadata)
                    files.append(file)
    except OSError as error:
        raise UserError(f"figures in '{place}' cannot be written ({error.strerror}); choose another folder") from None
    return files


class _Shown:
    """The data with its packed numbers at hand, for the first draw."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.judged = Judged.in_page(data)
        self.numbers = packing.unpack(data["packed"])
        self.seed = data["shown"][0]
        others = [method for method in data["methods"] if method != data["baseline"]]
        self.colours = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(others)}
        if data["baseline"]:
            self.colours[data["baseline"]] = GREY

    def run(self, method: int, attack: int) -> dict[str, Any] | None:
        """The run of the draw that is shown."""
        wanted = (method, attack, self.seed)
        runs = self.data["runs"]
        return next((run for run in runs if (run["method"], run["attack"], run["seed"]) == wanted), None)

    def figures(self, run: dict[str, Any]) -> NDArray[np.float64]:
        """Of every client, NaN where there is none."""
        return packing.back(self.numbers, run["figure"], self.data["clients"])

    def poisoned(self, run: dict[str, Any]) -> NDArray[np.bool_]:
        """Which clients are poisoned."""
        mask = np.zeros(self.data["clients"], bool)
        mask[self.data["poisoned"][run["poisoned"]]] = True
        return mask

    def rows(self, attack: int) -> list[tuple[str, dict[str, Any]]]:
        """Methods that have a run under the attack, with it."""
        pairs = [(name, self.run(m, attack)) for m, name in enumerate(self.data["methods"])]
        return [(name, run) for name, run in pairs if run is not None]

    def order(self, attack: int) -> NDArray[np.int64]:
        """Clients as the page has them: regular from worst to best served, then poisoned."""
        rows = self.rows(attack)
        table = np.array([self.figures(run) for _, run in rows])
        known = np.isfinite(table)
        sign = 1 if self.judged.higher else -1
        means = sign * np.where(known, table, 0).sum(0) / np.maximum(known.sum(0), 1)
        served = np.where(known.any(0), means, np.inf)
        return np.lexsort((np.arange(len(served)), served, self.poisoned(rows[0][1])))


Picture = tuple[str, float, float, Callable[[Any], None]]


def _pictures(shown: _Shown) -> Iterator[Picture]:
    """Name, width and height in inches, and what draws it."""
    data = shown.data
    for a, attack in enumerate(data["attacks"]):
        slug = re.sub(r"[^a-z0-9]+", "-", attack.lower()).strip("-") or str(a)
        rows = shown.rows(a)
        if not rows:
            continue
        tall = 0.9 + 0.28 * len(rows)
        if len(data["methods"]) > 1:
            yield f"tradeoff-{slug}", 4.2, 3.2, partial(_tradeoff, shown=shown, attack=attack)
        yield f"clients-{slug}", 6.0, tall, partial(_clients, shown=shown, attack=a)
        yield f"spread-{slug}", 6.0, tall, partial(_spread, shown=shown, attack=a)
        if any(curve["attack"] == a for curve in data["curves"]):
            yield f"curves-{slug}", 6.6, 2.8, partial(_curves, shown=shown, attack=a)
        weighted = [(name, run) for name, run in rows if "weight_trace" in run][:6]
        if weighted:
            high = 2.0 * ((len(weighted) + 2) // 3)
            yield f"weights-{slug}", 6.6, high, partial(_weights, shown=shown, rows=weighted)
        held = (data["partitions"] or {}).get("draws", {}).get(f"{a},{shown.seed}")
        if held:
            yield f"partition-{slug}", 6.0, 2.6, partial(_partition, shown=shown, attack=a, held=held)


def _low(shown: _Shown) -> str:
    who = "worst client" if shown.data["served"] == "worst" else "worst-served tenth"
    return f"{who}, {shown.judged.axis}"


def _tradeoff(figure: Any, shown: _Shown, attack: str) -> None:
    axes = figure.subplots()
    for cell in shown.data["cells"]:
        x, y = cell["estimates"]["average"], cell["estimates"][shown.data["served"]]
        if cell["attack"] != attack or x["mean"] is None:
            continue
        bars = {"xerr": x["half"], "yerr": y["half"]} if x["half"] is not None else {}
        style = {"fmt": "o", "color": shown.colours[cell["method"]], "elinewidth": 1, "label": cell["method"]}
        axes.errorbar(x["mean"], y["mean"], **bars, **style)
    axes.set(xlabel=f"average client, {shown.judged.axis}", ylabel=_low(shown))
    if len(shown.data["methods"]) <= 12:
        axes.legend()


def _clients(figure: Any, shown: _Shown, attack: int) -> None:
    axes = figure.subplots()
    rows, order = shown.rows(attack), shown.order(attack)
    table = np.array([shown.figures(run)[order] for _, run in rows])
    colours = "viridis" if shown.judged.higher else "viridis_r"
    axes.set_facecolor("#d9d9d6")
    image = axes.imshow(np.ma.masked_invalid(table), aspect="auto", cmap=colours, interpolation="nearest")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.grid(visible=False)
    _columns(axes, shown, order, shown.poisoned(rows[0][1]))
    figure.colorbar(image, ax=axes, label=_figure(shown))


def _figure(shown: _Shown) -> str:
    """The figure for an axis: accuracy, % or RMSE (less is better)."""
    judged = shown.judged
    return (
        f"{judged.title}, %" if judged.is_share else f"{judged.title} ({'more' if judged.higher else 'less'} is better)"
    )


def _columns(axes: Any, shown: _Shown, order: NDArray[np.int64], poisoned: NDArray[np.bool_]) -> None:
    """Clients along the axis; poisoned ones are marked."""
    names = shown.data.get("names") or [str(i) for i in range(shown.data["clients"])]
    if len(order) <= 30:
        slanted = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if max(map(len, names)) > 4 else {}
        labels = [(f"{names[i]} ×" if slanted else f"{names[i]}\n×") if poisoned[i] else names[i] for i in order]
        axes.set_xticks(range(len(order)), [label.replace("$", r"\$") for label in labels], **slanted)
    regular = int((~poisoned).sum())
    if 0 < regular < len(order):
        axes.axvline(regular - 0.5, color="white", linewidth=3)
    end = "; × poisoned" if poisoned.any() else ""
    axes.set_xlabel(f"clients, worst to best served{end}")


def _spread(figure: Any, shown: _Shown, attack: int) -> None:
    axes = figure.subplots()
    rows = shown.rows(attack)
    draw = np.random.default_rng(0)
    for place, (_, run) in enumerate(rows):
        values, bad = shown.figures(run), shown.poisoned(run)
        height = place + draw.uniform(-0.28, 0.28, len(values))
        size = 14 if len(values) <= 60 else 3
        axes.scatter(
            values[~bad], height[~bad], s=size, color=REGULAR, alpha=0.8 if len(values) <= 60 else 0.3, linewidths=0
        )
        axes.scatter(values[bad], height[bad], s=size * 1.4, color=POISONED, marker="x", linewidths=1)
        good = values[~bad & np.isfinite(values)]
        if len(good):
            axes.plot([good.mean()] * 2, [place - 0.4, place + 0.4], color="#1c1f24", linewidth=1.5)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    crosses = "; crosses are poisoned clients" if shown.data["poisoning"] else ""
    axes.set_xlabel(_figure(shown) + crosses)


def _curves(figure: Any, shown: _Shown, attack: int) -> None:
    left, right = figure.subplots(1, 2)
    for curve in shown.data["curves"]:
        if curve["attack"] != attack:
            continue
        name = shown.data["methods"][curve["method"]]
        for axes, key in ((left, "average"), (right, "worst")):
            mean, low, high = np.array(curve[key], dtype=np.float64).T
            axes.plot(curve["rounds"], mean, color=shown.colours[name], label=name, linewidth=1.5)
            if len(shown.data["seeds"]) > 1:
                axes.fill_between(curve["rounds"], low, high, color=shown.colours[name], alpha=0.13, linewidth=0)
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.set(xlabel="round", ylabel=f"average client, {shown.judged.axis}")
    right.set(xlabel="round", ylabel=_low(shown))
    if len(shown.data["methods"]) <= 12:
        left.legend()


def _weights(figure: Any, shown: _Shown, rows: list[tuple[str, dict[str, Any]]]) -> None:
    across = min(3, len(rows))
    panels = figure.subplots((len(rows) + across - 1) // across, across, squeeze=False).ravel()
    traced = shown.data["traced"]
    clients = np.arange(shown.data["clients"]) if traced is None else np.array(traced)
    for axes, (name, run) in zip(panels, rows, strict=False):
        trace = run["weight_trace"]
        size = len(trace["rounds"]) * len(clients)
        steps = shown.numbers[trace["at"] : trace["at"] + size].reshape(-1, len(clients)).astype(np.float64)
        values = np.where(steps >= packing.ABSENT, np.nan, trace["low"] + steps * trace["step"])
        bad = shown.poisoned(run)[clients]
        thin = {"linewidth": 0.9, "alpha": 0.8 if len(clients) <= 60 else 0.1}
        for chosen, colour, style in ((~bad, REGULAR, "-"), (bad, POISONED, "--")):
            if chosen.any():
                axes.plot(trace["rounds"], values[:, chosen], color=colour, linestyle=style, **thin)
        axes.set(title=name, xlabel="round")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in panels[len(rows) :]:
        axes.set_axis_off()
    panels[0].set_ylabel("weight; dashed: poisoned")


def _partition(figure: Any, shown: _Shown, attack: int, held: dict[str, int]) -> None:
    axes = figure.subplots()
    classes, clients = shown.data["partitions"]["classes"], shown.data["clients"]
    counts = shown.numbers[held["classes"] : held["classes"] + classes * clients].reshape(clients, classes)
    known = np.where(counts >= packing.ABSENT, 0, counts).astype(np.float64)
    order = shown.order(attack)
    if shown.data["partitions"].get("plain"):
        _sizes(axes, shown, known[order, 0], attack)
        return
    share = (known / np.maximum(known.sum(1, keepdims=True), 1))[order].T
    image = axes.imshow(share, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    axes.grid(visible=False)
    names = shown.data["partitions"].get("names")
    if names:
        axes.set_yticks(range(classes), [name.replace("$", r"\$") for name in names])
    axes.set_ylabel("class, labels as used")
    _columns(axes, shown, order, shown.poisoned(shown.rows(attack)[0][1]))
    figure.colorbar(image, ax=axes, label="share of the client's samples")


def _sizes(axes: Any, shown: _Shown, sizes: NDArray[np.float64], attack: int) -> None:
    """How many samples the clients have, in their order."""
    poisoned = shown.poisoned(shown.rows(attack)[0][1])
    order = shown.order(attack)
    axes.bar(range(len(sizes)), sizes, color=[POISONED if poisoned[i] else REGULAR for i in order])
    axes.set_ylabel("training samples")
    _columns(axes, shown, order, poisoned)
