"""docs/evidence.md and its figures, from the stored tables alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fairmean.reproduce.claims import (
    CLAIMS,
    EQUAL,
    FASHION_MNIST_ONLY,
    QUESTIONS,
    SEVEN,
    THREE_POISONED,
    Outcome,
    Verdict,
    judge,
)
from fairmean.reproduce.evidence import ATTACKS, METRICS, Evidence
from fairmean.reproduce.figures import plots, save
from fairmean.reproduce.render import NAMES
from fairmean.reproduce.statistics import Difference, holm, paired

TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_MARK = "\\*"
_FAR = 20.0


def name(method: str) -> str:
    """As the tables show it."""
    more = {"term+": "TERM, t > 0", "term-": "TERM, t < 0", EQUAL: "FairMean's weighting at Mean's step"}
    return NAMES.get(method, more.get(method, f"`{method}`"))


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def absolute(values: Sequence[float] | np.ndarray[Any, Any]) -> str:
    """Mean ± the half-width of its 95 % interval; with the number of draws, if some have no figure."""
    d = paired(values, np.zeros(len(values)))
    if math.isnan(d.mean):
        return "–"
    return f"{_digits(d.mean)} ± {_digits(d.half)}" + (f" ({d.n} of {len(values)} draws)" if d.n < len(values) else "")


def relative(difference: Difference, p: float) -> str:
    """A difference with its interval, marked if significant at 5 % after correction."""
    if math.isnan(difference.mean):
        return "–"
    sign = "+" if difference.mean >= 0 else "−"
    mark = _MARK if p < 0.05 else ""
    lost = f" ({difference.n} draws, {difference.lost} lost)" if difference.lost else ""
    return f"{sign}{_digits(abs(difference.mean))} ± {_digits(difference.half)}{mark}{lost}"


def differences(evidence: Evidence, baseline: str) -> dict[tuple[str, str, str], tuple[Difference, float]]:
    """(method, attack, metric) → difference to the baseline and its p-value, corrected for the whole table."""
    found: dict[tuple[str, str, str], Difference] = {}
    for method, attack, metric in product(evidence.methods, ATTACKS, METRICS):
        x, y = evidence.values(method, attack, metric), evidence.values(baseline, attack, metric)
        if method != baseline and x is not None and y is not None:
            found[method, attack, metric] = paired(x, y)
    corrected = holm([d.p for d in found.values()])
    return {key: (d, p) for (key, d), p in zip(found.items(), corrected, strict=True)}


def table(evidence: Evidence, attack: str) -> Iterator[str]:
    """One attack: absolute figures, differences to Mean and to FedAvg."""
    yield f"| method | {' | '.join([*METRICS, *(f'Δ {b}: {m}' for b in ('Mean', 'FedAvg') for m in METRICS)])} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    to = {baseline: differences(evidence, baseline) for baseline in ("mean", "fedavg")}
    for method in evidence.methods:
        cells = []
        for metric in METRICS:
            values = evidence.values(method, attack, metric)
            cells.append("not run" if values is None else absolute(values))
        for found in to.values():
            cells += [relative(*found[key]) if (key := (method, attack, m)) in found else "" for m in METRICS]
        yield f"| {name(method)} | {' | '.join(cells)} |"


def verdicts(evidence: Evidence) -> list[Verdict]:
    """Of the claims, and of the questions: two families, corrected each on its own."""
    claims = [c for c in CLAIMS if evidence.dataset == "fashion-mnist" or c.name not in FASHION_MNIST_ONLY]
    return [*judge(claims, evidence.values), *judge(QUESTIONS, evidence.values)]


def _outcome(o: Outcome) -> str:
    c, d = o.comparison, o.difference
    plus = f" + {c.plus:g}" if c.plus else ""
    state = "as claimed" if o.as_claimed else "against it"
    count = d.positive if c.sign > 0 else d.negative
    return (
        f"| {name(c.x)}{plus} − {name(c.y)} | {c.metric} | {c.attack} | {relative(d, o.p)} | {count} of {d.n} "
        f"| {o.p:.2g} | {state}{'' if o.significant else ', not significant'} |"
    )


def claims_page(evidence: Evidence) -> Iterator[str]:
    """The verdict on every claim, and every comparison behind it."""
    judged = verdicts(evidence)
    yield f"P-values, and {_MARK} here, are corrected for all claims together, and for the questions on their own."
    yield ""
    yield "| | claim | verdict | comparisons as claimed | of them significant | significantly against |"
    yield "|---|---|---|---|---|---|"
    for v in judged:
        if v.claim in QUESTIONS:
            continue
        good = [o for o in v.outcomes if o.as_claimed]
        strong = sum(o.significant for o in good)
        against = sum(o.significant and not o.as_claimed for o in v.outcomes)
        counts = f"{len(good)} of {len(v.claim.comparisons)} | {strong} | {against}"
        yield f"| {v.claim.name} | {v.claim.text} | **{v.word}** | {counts} |"
    for v in judged:
        if not v.outcomes:
            continue
        yield ""
        yield f"<details><summary>{v.claim.name}: {v.claim.text}</summary>"
        yield ""
        yield "| | metric | attack | difference, 95 % CI | draws with the claimed sign | p, corrected | |"
        yield "|---|---|---|---|---|---|---|"
        for o in v.outcomes:
            yield _outcome(o)
        yield ""
        yield "</details>"


def in_words(evidence: Evidence) -> Iterator[str]:
    """What a reader wants to know first, made from the figures."""
    for method in (EQUAL, "fairmean", "fairmean-split"):
        if method not in evidence.methods:
            continue
        found = differences(evidence, "mean")
        for attack in ATTACKS:
            parts = [f"{m} {relative(*found[method, attack, m])}" for m in METRICS if (method, attack, m) in found]
            where = "without attack" if attack == "none" else f"under {attack}"
            if parts:
                yield f"- {name(method)} against Mean {where}: {', '.join(parts)}"


def forest(evidence: Evidence, folder: Path) -> list[Path]:
    """Differences to Mean with their intervals: methods down, attacks across, average and worst."""
    plt = plots()
    found = differences(evidence, "mean")
    methods = [m for m in evidence.methods if m != "mean"][::-1]
    figure, axes = plt.subplots(2, len(ATTACKS), figsize=(13, 0.5 * len(methods) + 2), sharey=True)
    for row, metric in enumerate(("worst", "average")):
        for axis, attack in zip(axes[row], ATTACKS, strict=True):
            for place, method in enumerate(methods):
                if (method, attack, metric) in found:
                    d, p = found[method, attack, metric]
                    colour = "0.6" if not p < 0.05 else "C2" if d.mean > 0 else "C3"
                    if d.mean < -_FAR:  # one such row would squeeze all others
                        left = axis.get_yaxis_transform()
                        axis.text(0.02, place, f"← {d.mean:.0f}", color=colour, va="center", fontsize=8, transform=left)
                    else:
                        half = [[min(d.half, d.mean + _FAR)], [d.half]]
                        axis.errorbar([d.mean], [place], xerr=half, fmt="o", color=colour, markersize=4)
            axis.axvline(0, color="k", linewidth=0.6)
            axis.set(title=f"{metric}, {attack}")
            axis.set_yticks(range(len(methods)), [name(m).strip("`") for m in methods], fontsize=7)
    return save(plt, figure, folder, f"evidence-{evidence.dataset}")


def _parameters(spec: str) -> tuple[float, float]:
    """κ and τ of a spec of the map."""
    settings = dict(setting.split("=") for setting in spec.split(":")[1:])
    return float(settings["kappa"]), float(settings["tau"])


def maps(mapped: Evidence, folder: Path) -> list[Path]:
    """κ × τ: the difference to Mean at the same step, per attack; bold where its interval excludes 0."""
    plt = plots()
    mean = next(method for method in mapped.methods if method.startswith("mean"))
    points = {_parameters(method): method for method in mapped.methods if method != mean}
    kappas, taus = (sorted({point[i] for point in points}) for i in (0, 1))
    attacks = list(dict.fromkeys(record["attack"] for record in mapped.records))
    figure, axes = plt.subplots(len(attacks), 3, figsize=(12, 3.3 * len(attacks)), squeeze=False)
    for row, attack in zip(axes, attacks, strict=True):
        for axis, metric in zip(row, METRICS, strict=True):
            base = mapped.values(mean, attack, metric)
            grid = np.full((len(kappas), len(taus)), np.nan)
            for (i, kappa), (j, tau) in product(enumerate(kappas), enumerate(taus)):
                values = mapped.values(points[kappa, tau], attack, metric)
                if values is not None and base is not None:
                    d = paired(values, base)
                    grid[i, j] = d.mean
                    sure = "bold" if abs(d.mean) > d.half else "normal"
                    axis.text(j, i, f"{d.mean:+.2f}", ha="center", va="center", fontsize=8, fontweight=sure)
            most = np.nanmax(np.abs(grid)) or 1.0
            colours = "RdYlGn" if metric != "variance" else "RdYlGn_r"
            axis.imshow(grid, cmap=colours, vmin=-most, vmax=most, origin="lower", aspect="auto", alpha=0.7)
            axis.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
            axis.set_yticks(range(len(kappas)), [f"{kappa:g}" for kappa in kappas])
            where = "no attack" if attack == "none" else attack
            axis.set(xlabel="τ", ylabel="κ", title=f"{metric} − Mean's, {where}")
    return save(plt, figure, folder, f"map-{mapped.dataset}")


def page(found: Sequence[Evidence], pictures: str, made: str, mapped: Sequence[Evidence] = ()) -> str:
    """The whole page."""
    lines = [
        "# Evidence",
        "",
        "<!-- made by `fairmean reproduce evidence` from results/evidence-*.csv.gz: edit the code, not this page -->",
        "",
        "What the methods do over many paired draws, with step sizes and hyper-parameters chosen on clean validation "
        "data of other draws. The claims and their tests were [written before the runs](claims.md); the calibrated "
        "reproduction of the paper's own tables is [something else](reproduction.md).",
        "",
        f"Figures are means over draws ± the half-width of the 95 % confidence interval; {_MARK} marks differences "
        "that are significant at 5 % after Holm's correction, in the tables of methods for all methods, attacks and "
        "metrics against the same baseline. Accuracy in %, variance in %², over regular clients. A run that diverged "
        "counts as 0 % average and worst accuracy and has no variance.",
        "",
        made,
    ]
    for evidence in found:
        title = TITLES[evidence.dataset]
        lines += ["", f"## {title}: {len(evidence.seeds)} draws, {len(evidence.methods)} rows", ""]
        lines += [*in_words(evidence), "", f"![Differences to Mean]({pictures}/evidence-{evidence.dataset}.png)", ""]
        lines += [f"### Claims on {title}", "", *claims_page(evidence)]
        lines += ["", f"### What was run on {title}", "", *_settings(evidence)]
        for attack in ATTACKS:
            head = "Without attack" if attack == "none" else f"Under {attack}"
            lines += ["", f"### {head}, {title}", "", *table(evidence, attack)]
        if evidence.values("fairmean", THREE_POISONED, "worst") is not None:
            lines += [
                "",
                f"### Three poisoned clients ({THREE_POISONED}), {title}",
                "",
                *_short(evidence, THREE_POISONED),
            ]
        for one in mapped:
            if one.dataset == evidence.dataset:
                lines += ["", f"### κ and τ, {title} (question Q3)", ""]
                lines += [
                    f"`fairmean-normalised` against Mean at the same step, {len(one.seeds)} draws; bold where the 95 % "
                    "interval of the paired difference excludes 0.",
                    "",
                    f"![κ × τ]({pictures}/map-{one.dataset}.png)",
                ]
    return "\n".join(lines) + "\n"


SHOWN = (
    "mean",
    *SEVEN,
    EQUAL,
    "fairmean-split",
    "term+",
    "term-",
    "cwtm",
    "krum",
    "multi-krum",
    "rfa",
    "centered-clipping",
)


def headline(evidence: Evidence) -> str:
    """The README's table: average and worst accuracy, marked where they differ from Mean's."""
    found = differences(evidence, "mean")
    heads = [f"{'no attack' if attack == 'none' else attack}: average | worst" for attack in ATTACKS]
    lines = [f"| {TITLES[evidence.dataset]}, {len(evidence.seeds)} draws | {' | '.join(heads)} |", "|---" * 9 + "|"]
    for method in (m for m in SHOWN if m in evidence.methods):
        cells = []
        for attack, metric in product(ATTACKS, ("average", "worst")):
            values = evidence.values(method, attack, metric)
            d, p = found.get((method, attack, metric), (None, math.nan))
            mark = "" if d is None or not p < 0.05 else " ↑" if d.mean > 0 else " ↓"
            cells.append("–" if values is None else f"{np.mean(values):.1f}{mark}")
        lines.append(f"| {name(method)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _settings(evidence: Evidence) -> Iterator[str]:
    """Every method's settings, rounds and precision."""
    yield "| method | setting | rounds | precision |"
    yield "|---|---|---|---|"
    for method in evidence.methods:
        spec, dtype, rounds = evidence.spec(method)
        yield f"| {name(method)} | `{spec}` | {rounds} | {dtype} |"


def _short(evidence: Evidence, attack: str) -> Iterator[str]:
    yield "| method | average | variance | worst |"
    yield "|---|---|---|---|"
    for method in evidence.methods:
        values = [evidence.values(method, attack, metric) for metric in METRICS]
        if values[0] is not None:
            yield f"| {name(method)} | {' | '.join(absolute(v) for v in values if v is not None)} |"
