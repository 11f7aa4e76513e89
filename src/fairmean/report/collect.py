"""From runs to the one plain dict that a page is made of: names, statistics, curves, and packed numbers.

Everything in it is text, numbers, lists and dicts; there is no NaN in it. What had to be left out so that the page
stays small is said in ``notes``, in whole sentences, under the name of the view that it concerns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean._version import __version__
from fairmean.data.registry import SPECS
from fairmean.experiments.metrics import worst, worst_tenth
from fairmean.experiments.statistics import available, holm, interval, paired
from fairmean.report import packing
from fairmean.report.again import again
from fairmean.report.audited import places, told
from fairmean.report.certificates import certificates
from fairmean.report.finding import finding
from fairmean.report.further import further
from fairmean.report.judged import Judged
from fairmean.report.material import Entry, Material, RunLike
from fairmean.report.numbers import counted

Array = NDArray[np.float64]
MANY_CLIENTS = 50
"""From so many clients on, the worst single one is often chance, and the mean of the worst tenth speaks for them."""
FIGURES, INTERVALS, TRACES, COUNTS = 500_000, 300_000, 300_000, 300_000
"""At most so many numbers of each kind are in a page."""
FEW_DRAWS = 5
ROUNDS = 40


def collect(material: Material) -> dict[str, Any]:
    """The data of a page."""
    pages = _Collector(material)
    return pages.data()


class _Collector:
    def __init__(self, material: Material) -> None:
        self.material = material
        self.methods, self.attacks, self.seeds = material.methods, material.attacks, material.seeds
        self.packer = packing.Packer()
        self.notes: dict[str, list[str]] = {}
        self.entries = [entry for entry in material.entries if entry.run is not None]
        self.names = {id(entry): _names(entry.run) for entry in self.entries if entry.run is not None}
        self.clients = _union(list(self.names.values()))
        self.place = {name: i for i, name in enumerate(self.clients)}
        self.metric = material.metric
        self.judged = self._judged()
        self.stored: dict[bytes, int] = {}

    def _judged(self) -> Judged:
        """How the figure is written, by the sizes that it has here."""
        cells = {(entry.method, entry.attack) for entry in self.material.entries}
        keys = ("average", "worst", "variance")
        means = {
            key: [float(v) for c in cells for v in self.material.values(*c, key) if math.isfinite(v)] for key in keys
        }
        return Judged.of(self.metric, [*means["average"], *means["worst"]], means["variance"])

    def data(self) -> dict[str, Any]:
        metrics = ["average", "variance", "worst"]
        if len(self.clients) >= MANY_CLIENTS:
            metrics.append("worst_tenth")
        data: dict[str, Any] = {
            "title": self.material.title,
            "version": __version__,
            "methods": self.methods,
            "attacks": self.attacks,
            "seeds": self.seeds,
            "baseline": self.material.baseline,
            "metrics": metrics,
            "served": metrics[-1],
            "intervals": available(),
            "judged": self.judged.plain(),
            "labels": self._labels(),
            "poisoning": any(not _all_regular(entry) for entry in self.entries),
            "given": all(_setting(entry, "partition.name") == "given" for entry in self.entries),
            "held_out": any(_setting(entry, "data.validation") for entry in self.entries),
            "clients": len(self.clients),
            "cells": self._cells(metrics),
            "lost": self._lost(),
            "assumes": {method: text for method, text in self.material.assumes.items() if text},
        }
        if self.clients != [str(i) for i in range(len(self.clients))]:
            data["names"] = self.clients
        data |= self._pictures()
        data["facts"] = self._facts()
        data["further"] = further(self.entries, self.judged)
        data["lowest"] = data["further"]["lowest"] if data["further"] and "names" in data else None
        data["finding"] = finding(data)
        data["certificates"] = certificates(self.entries)
        data["audits"] = [told(audit, e.method, e.attack) for e in self.entries if (audit := _audit(e)) is not None]
        data["map"] = _map(self.material)
        data["again"] = again(self.material)
        data["notes"] = self.notes
        data["packed"] = self.packer.text()
        return data

    def _labels(self) -> str:
        """Whose labels the figures are on, as far as anybody knows whether they are right."""
        word = "targets" if self.metric.name == "rmse" else "labels"
        if not any(not _all_regular(entry) for entry in self.entries):
            return f"the {word} as given"
        known = all(_setting(entry, "data.name") in SPECS for entry in self.entries)
        return f"clean {word}" if known else f"the {word} as given, before poisoning"

    def _note(self, view: str, sentence: str) -> None:
        self.notes.setdefault(view, []).append(sentence)

    # --- the table -------------------------------------------------------------------------------------------------

    def _cells(self, metrics: Sequence[str]) -> list[dict[str, Any]]:
        """Every method under every attack: estimates, paired differences to the baseline, and which is the best."""
        cells = [
            self._cell(method, attack, metrics)
            for method in self.methods
            for attack in self.attacks
            if self.material.ends(method, attack)
        ]
        for metric in metrics:
            differences = [c["estimates"][metric]["difference"] for c in cells if c["estimates"][metric]["difference"]]
            for difference, p in zip(differences, holm([d["raw"] for d in differences]), strict=True):
                difference["p"] = _number(p)
            for difference in differences:
                difference["raw"] = _number(difference["raw"])
            for attack in self.attacks:
                whole = [c["estimates"][metric] for c in cells if c["attack"] == attack and not c["lost"]]
                known = [e["mean"] for e in whole if e["mean"] is not None]
                if len(known) > 1:
                    best = max(known) if self.judged.more_is_better(metric) else min(known)
                    shown = self._compared(best, metric)
                    for estimate in whole:
                        estimate["best"] = (
                            estimate["mean"] is not None and self._compared(estimate["mean"], metric) == shown
                        )
        return cells

    def _compared(self, value: float, metric: str) -> float:
        """A value as it is compared: with one decimal more than it is shown with."""
        digits = self.judged.variance_digits if metric == "variance" else self.judged.digits
        return round(value, 2 if digits is None else digits + 1)

    def _cell(self, method: str, attack: str, metrics: Sequence[str]) -> dict[str, Any]:
        baseline = self.material.baseline
        ends = self.material.ends(method, attack)
        estimates = {}
        for metric in metrics:
            values = self.material.values(method, attack, metric)
            mean, half, n = interval(values)
            difference = None
            if baseline is not None and method != baseline:
                d = paired(values, self.material.values(baseline, attack, metric))
                if d.n:
                    difference = {"mean": _number(d.mean), "half": _number(d.half), "n": d.n, "raw": d.p, "p": None}
            estimates[metric] = {
                "mean": _number(mean),
                "half": _number(half),
                "n": n,
                "difference": difference,
                "best": False,
            }
        points = zip(*(self.material.values(method, attack, m) for m in ("average", "worst")), strict=True)
        return {
            "method": method,
            "attack": attack,
            "estimates": estimates,
            "points": [[_number(x, 6), _number(y, 6)] for x, y in points],
            "runs": len(ends),
            "lost": {end: ends.count(end) for end in dict.fromkeys(ends) if end != "finished"},
        }

    def _lost(self) -> list[dict[str, Any]]:
        """Runs that did not finish, and why, as far as it is known."""
        lost = []
        for entry in self.material.entries:
            if entry.status == "finished":
                continue
            summary = entry.run.summary if entry.run is not None else {}
            lost.append(
                {
                    "method": entry.method,
                    "attack": entry.attack,
                    "seed": entry.seed,
                    "status": entry.status,
                    "round": summary.get("round"),
                    "reason": entry.reason or str(summary.get("reason") or ""),
                }
            )
        return lost

    # --- the pictures ----------------------------------------------------------------------------------------------

    def _pictures(self) -> dict[str, Any]:
        """Curves over all draws; and, for the draws that there is room for, every client of every run."""
        shown = self._draws(len(self.clients), FIGURES)
        sure = self._draws(2 * len(self.clients), INTERVALS)
        if len(shown) < len(self.seeds):
            self._note(
                "clients",
                f"Clients are shown one by one for {len(shown)} of {len(self.seeds)} draws, so that the page stays "
                "small; tables, intervals and curves are over all of them.",
            )
        rounds = {id(entry): _tables(entry.run, self.names[id(entry)]) for entry in self.entries if entry.run}
        crews: dict[tuple[int, ...], int] = {}
        runs = []
        traced = self._traced(shown, rounds)
        for entry in self.entries:
            if entry.seed not in shown:
                continue
            table, regular = rounds[id(entry)], _regular(entry, len(self.names[id(entry)]))
            poisoned = tuple(self.place[self.names[id(entry)][i]] for i in np.flatnonzero(~regular))
            tested = self._scatter(_sizes(entry.run.partition.test_sizes), entry) if entry.run else None
            run: dict[str, Any] = {
                "method": self.methods.index(entry.method),
                "attack": self.attacks.index(entry.attack),
                "seed": entry.seed,
                "status": entry.status,
                "figure": self._packed([_final(entry, table)], entry),
                "poisoned": crews.setdefault(poisoned, len(crews)),
            }
            if tested is not None:
                run["tested"] = self._once(tested)
            ends = _ends(entry)
            if ends is not None and entry.seed in sure:
                run["interval"] = self._packed(ends, entry)
            if entry.seed in traced["seeds"]:
                run |= self._trace(entry, table, traced)
            audit = _audit(entry)
            if audit is not None:
                run["audit"] = self._audited(audit, entry)
            runs.append(run)
        return {
            "shown": shown,
            "runs": runs,
            "poisoned": [list(crew) for crew in crews],
            "traced": [int(i) for i in traced["clients"]] if len(traced["clients"]) < len(self.clients) else None,
            "curves": self._curves(rounds),
            "partitions": self._partitions(),
        }

    def _draws(self, each: int, most: int) -> list[int]:
        """As many of the first draws as there is room for."""
        cells = max(1, len({(entry.method, entry.attack) for entry in self.entries}))
        return self.seeds[: max(1, most // max(1, cells * each))]

    def _packed(self, rows: Sequence[Array], entry: Entry) -> dict[str, Any]:
        """Figures of a run's clients, row after row, and what turns them back into numbers."""
        table = np.array(rows, dtype=np.float64)
        if self.judged.is_share:
            packed, back = packing.hundredths(table), {"low": 0, "step": 0.01}
        else:
            packed, back = packing.scaled(table, packing.FINEST)
        return {"at": self.packer.add(np.array([self._scatter(row, entry) for row in packed])), **back}

    def _audited(self, audit: dict[str, Any], entry: Entry) -> dict[str, Any]:
        """Where an audit puts the clients of a run, and above which excess it raises an alarm."""
        values, across = places(audit)
        rows = []
        for row in values:
            packed, back = packing.scaled(row, packing.FINEST)
            rows.append({"at": self.packer.add(self._scatter(packed, entry)), **back})
        return {"rows": rows, "across": across, "limit": _number(audit["limit"], 5)}

    def _once(self, values: NDArray[np.uint16]) -> int:
        """Keep an array, unless the same one is there; returns where it begins."""
        content = values.tobytes()
        if content not in self.stored:
            self.stored[content] = self.packer.add(values)
        return self.stored[content]

    def _scatter(self, values: NDArray[np.uint16], entry: Entry) -> NDArray[np.uint16]:
        """Values of a run's clients in the places that the page gives them."""
        names = self.names[id(entry)]
        if names == self.clients:
            return values
        whole = np.full(len(self.clients), packing.ABSENT, np.uint16)
        whole[[self.place[name] for name in names]] = values
        return whole

    def _traced(self, shown: Sequence[int], rounds: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Of which draws, rounds and clients the way through the rounds is in the page."""
        longest = max((len(table[key]) for table in rounds.values() for key in ("weight", "figure")), default=1)
        cells = max(1, len({(entry.method, entry.attack) for entry in self.entries}))
        n, steps = max(1, len(self.clients)), min(longest, ROUNDS)
        draws = max(1, min(len(shown), TRACES // max(1, cells * n * steps)))
        room = TRACES // max(1, cells * draws)
        if steps * n > room:
            steps = max(12, min(steps, room // n))
        clients = np.arange(n)
        if steps * n > room:
            clients = self._chosen(max(40, room // steps))
            self._note(
                "traces",
                f"The way through the rounds is kept for {counted(len(clients), 'client')} of {n:,}, evenly chosen "
                "among regular and among poisoned clients, so that the page stays small.",
            )
        if draws < len(shown):
            kept = f"draw {shown[0]} only" if draws == 1 else f"the first {draws} draws"
            self._note("traces", f"The way of single clients through the rounds is kept for {kept}.")
        if steps < longest:
            self._note("traces", f"Of {longest:,} recorded rounds, {steps} are drawn.")
        levels = packing.FINE if cells * draws * len(clients) * steps < 100_000 else packing.COARSE
        return {"seeds": shown[:draws], "steps": steps, "clients": clients, "levels": levels}

    def _chosen(self, most: int) -> NDArray[np.int64]:
        """Some of the clients: of those that are poisoned anywhere at most a third, the rest regular."""
        poisoned: set[int] = set()
        for entry in self.entries:
            names = self.names[id(entry)]
            poisoned |= {self.place[names[i]] for i in np.flatnonzero(~_regular(entry, len(names)))}
        bad = np.array(sorted(poisoned), dtype=np.int64)
        good = np.array([i for i in range(len(self.clients)) if i not in poisoned], dtype=np.int64)
        some_bad = bad[packing.evenly(len(bad), max(1, most // 3))]
        some_good = good[packing.evenly(len(good), most - len(some_bad))]
        return np.sort(np.concatenate([some_bad, some_good]))

    def _trace(self, entry: Entry, table: dict[str, Any], traced: dict[str, Any]) -> dict[str, Any]:
        """Weights and figures of a run over its rounds, clients in the page's order."""
        places = np.array([self.place[name] for name in self.names[id(entry)]], dtype=np.int64)
        result: dict[str, Any] = {}
        for key, rows in (("weight", table["weight"]), ("figure", table["figure"])):
            chosen = packing.evenly(len(rows), traced["steps"])
            if not len(chosen) or not np.isfinite(rows).any():
                continue
            whole = np.full((len(chosen), len(self.clients)), np.nan)
            whole[:, places] = rows[chosen]
            packed, back = packing.scaled(whole[:, traced["clients"]], traced["levels"])
            numbers = [int(t) for t in table[f"{key}_rounds"][chosen]]
            result[f"{key}_trace"] = {"at": self.packer.add(packed), "rounds": numbers, **back}
        return result

    def _curves(self, rounds: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
        """Average and worst over the evaluated rounds: the mean over draws, with a band."""
        curves = []
        for m, method in enumerate(self.methods):
            for a, attack in enumerate(self.attacks):
                cell = [e for e in self.entries if (e.method, e.attack) == (method, attack)]
                by_round: dict[int, list[tuple[float, float]]] = {}
                for entry in cell:
                    table, regular = rounds[id(entry)], _regular(entry, len(self.names[id(entry)]))
                    for t, row in zip(table["figure_rounds"], table["figure"], strict=True):
                        known = row[regular & np.isfinite(row)]
                        if len(known):
                            by_round.setdefault(int(t), []).append(
                                (float(known.mean()), _low(known, len(self.clients), self.judged.higher))
                            )
                if not by_round:
                    continue
                some = sorted(by_round)
                some = [some[i] for i in packing.evenly(len(some), ROUNDS)]
                bands = [[_band([pair[k] for pair in by_round[t]], self.judged.most) for t in some] for k in (0, 1)]
                curves.append({"method": m, "attack": a, "rounds": some, "average": bands[0], "worst": bands[1]})
        return curves

    def _partitions(self) -> dict[str, Any] | None:
        """How many samples of which class every client has, for the draws that there is room for.

        Where targets are no classes, ``plain`` says so, and all samples of a client are of the only class.
        """
        plain = self.metric.name == "rmse" or any(_setting(e, "data.task") == "next-token" for e in self.entries)
        known = [e for e in self.entries if e.run is not None and (plain or _counts(e.run, "classes") is not None)]
        if not known:
            return None
        if plain:
            return {"classes": 1, "plain": True, "draws": self._plain_sizes(known)}
        classes = max(counts.shape[1] for e in known if (counts := _counts(e.run, "classes")) is not None)
        each = classes * len(self.clients) * (1 + len(self.attacks))
        shown = self.seeds[: max(1, COUNTS // max(1, each))]
        if len(shown) < len(self.seeds):
            kept = f"draw {shown[0]} only" if len(shown) == 1 else f"the first {len(shown)} draws"
            self._note("partition", f"The clients' data are in this page for {kept}.")
        draws: dict[str, dict[str, int]] = {}
        for entry in known:
            key = f"{self.attacks.index(entry.attack)},{entry.seed}"
            if entry.seed not in shown or key in draws:
                continue
            draws[key] = {}
            for name in ("classes", "clean_classes"):
                counts = _counts(entry.run, name)
                if counts is None:
                    continue
                whole = np.full((len(self.clients), classes), packing.ABSENT, np.uint16)
                places = [self.place[client] for client in self.names[id(entry)]]
                whole[places, : counts.shape[1]] = np.minimum(counts, packing.ABSENT - 1)
                draws[key][name] = self._once(whole)
        names = next((e.run.class_names for e in known if e.run is not None and e.run.class_names), None)
        return {"classes": classes, "draws": draws, **({"names": names} if names and len(names) == classes else {})}

    def _plain_sizes(self, entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
        """How many samples every client has, by attack and draw."""
        return {
            f"{self.attacks.index(e.attack)},{e.seed}": {
                "classes": self._once(self._scatter(_sizes(e.run.partition.sizes), e))
            }
            for e in entries
            if e.run is not None
        }

    def _facts(self) -> list[str]:
        """What was run, in a few words each."""
        first = next((e for e in self.entries if not _all_regular(e)), self.entries[0] if self.entries else None)
        if first is None or first.run is None:
            return []
        settings = first.run.settings
        counts = sorted({len(names) for names in self.names.values()})
        some = f"{counts[0]:,} clients" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} clients"
        kind = settings.get("partition.name", "")
        splits = {"dirichlet": f"Dirichlet {settings.get('partition.alpha', 0):g}", "given": "as the data says"}
        split = splits.get(str(kind), str(kind))
        poisoned = int((~_regular(first, len(self.names[id(first)]))).sum())
        return [
            str(settings.get("data.name", "")),
            some + (f", {split}" if split else ""),
            "" if self.judged.is_share else f"judged by {self.judged.title}: less is better",
            f"{counted(poisoned, 'client')} poisoned under attack" if poisoned else "no client poisoned",
            counted(int(settings.get("train.rounds", 0)), "round"),
            counted(len(self.seeds), "paired draw" if len(self.seeds) > 1 else "draw"),
            self._privacy(),
        ]

    def _privacy(self) -> str:
        """The largest ε that a run has spent, where clients' messages were made private."""
        spent = [e.run.summary for e in self.entries if e.run is not None and "epsilon" in e.run.summary]
        if not spent:
            return ""
        most = max(spent, key=lambda summary: float(summary["epsilon"]))
        return f"differentially private for clients: ε = {most['epsilon']:.3g} at δ = {most['delta']:g}"


def _number(value: float, digits: int = 9) -> float | None:
    """A figure that JSON takes, with so many digits that count."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _low(known: Array, clients: int, higher: bool) -> float:
    """The worst client; of many clients, the mean of the worst tenth."""
    return worst(known, higher) if clients < MANY_CLIENTS else worst_tenth(known, higher)


def _band(values: Sequence[float], most: float) -> list[float | None]:
    """Mean, and a band: the 95 % interval of the mean over enough draws, else the range of the draws."""
    mean, half, n = interval(values)
    if n >= FEW_DRAWS and math.isfinite(half):
        return [_number(mean, 5), _number(max(mean - half, 0.0), 5), _number(min(mean + half, most), 5)]
    return [_number(mean, 5), _number(min(values), 5), _number(max(values), 5)]


def _audit(entry: Entry) -> dict[str, Any] | None:
    """The audit of a run, if there is one of the clients that it has."""
    audit: dict[str, Any] | None = getattr(entry.run, "audit", None)
    if audit is None or entry.run is None or [c["client"] for c in audit["clients"]] != list(entry.run.client_names):
        return None
    return audit


def _setting(entry: Entry, key: str) -> Any:
    return None if entry.run is None else entry.run.settings.get(key)


def _names(run: RunLike) -> list[str]:
    """The clients of a run as text: their names, or else their numbers."""
    if run.has_names:
        return list(run.client_names)
    n = len(run.regular) if run.regular is not None else int(run.columns["client"].max(initial=-1)) + 1
    return [str(i) for i in range(n)]


def _sizes(counts: NDArray[np.int64]) -> NDArray[np.uint16]:
    return np.minimum(counts, packing.ABSENT - 1).astype(np.uint16)


def _final(entry: Entry, table: dict[str, Any]) -> Array:
    """The figure of every client: of the final model on test samples, or of a run at work in the last evaluation."""
    assert entry.run is not None
    final = entry.run.summary.get(entry.run.metric.name)
    if final is not None:
        return np.array(final, dtype=np.float64)
    rows: Array = table["figure"]
    return rows[-1] if len(rows) else np.full(rows.shape[1], np.nan)


def _ends(entry: Entry) -> list[Array] | None:
    """Where the 95 % interval of every client's figure begins and ends; None where the run does not say."""
    details = {} if entry.run is None else entry.run.summary.get("clients") or {}
    if not {"low", "high"} <= set(details):
        return None
    return [np.array(details[key], dtype=np.float64) for key in ("low", "high")]


def _union(lists: Sequence[list[str]]) -> list[str]:
    """The names of all runs, in the order of the longest list."""
    longest = max(lists, key=len, default=[])
    return list(dict.fromkeys([*longest, *(name for names in lists if names is not longest for name in names)]))


def _regular(entry: Entry, n: int) -> NDArray[np.bool_]:
    regular = None if entry.run is None else entry.run.regular
    return np.ones(n, bool) if regular is None else np.asarray(regular, bool)


def _all_regular(entry: Entry) -> bool:
    return entry.run is None or entry.run.regular is None or bool(np.all(entry.run.regular))


def _counts(run: Any, name: str) -> NDArray[np.int64] | None:
    partition = getattr(run, "partition", None)
    counts: NDArray[np.int64] | None = getattr(partition, name, None)
    return counts


def _tables(run: RunLike | None, names: Sequence[str]) -> dict[str, Any]:
    """Rounds × clients, for weights in all rounds that have some and for figures in those that were evaluated."""
    assert run is not None
    columns = run.columns
    where = columns["client"].astype(np.int64)
    result: dict[str, Any] = {}
    for key, column in (("weight", "weight"), ("figure", run.metric.name)):
        values = np.asarray(columns[column], dtype=np.float64)
        known = np.isfinite(values)
        some, rows = np.unique(columns["round"][known], return_inverse=True)
        table = np.full((len(some), len(names)), np.nan)
        table[rows, where[known]] = values[known]
        result |= {key: table, f"{key}_rounds": some}
    return result


def _map(material: Material) -> dict[str, Any] | None:
    """κ × τ: where one method was run with several of both, its figures by attack on the grid."""
    places: dict[tuple[float, float], str] = {}
    names = set()
    for entry in material.entries:
        if entry.run is None:
            continue
        settings = entry.run.settings
        kappa, tau = settings.get("method.kappa"), settings.get("method.tau")
        if isinstance(kappa, int | float) and isinstance(tau, int | float):
            places.setdefault((float(kappa), float(tau)), entry.method)
            names.add(settings.get("method.name"))
    kappas, taus = sorted({k for k, _ in places}), sorted({t for _, t in places})
    if len(names) != 1 or len(kappas) < 2 or len(taus) < 2 or len(places) < 4:
        return None
    return {"name": names.pop(), "kappa": kappas, "tau": taus, "methods": [[k, t, m] for (k, t), m in places.items()]}
