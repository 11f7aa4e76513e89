"""docs/evidence.md and its figures, from the stored tables alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fairmean.experiments.statistics import Difference, interval
from fairmean.rules.named import named_methods
from paper import tuning
from paper.claims import EQUAL, QUESTIONS, SEVEN, THREE_POISONED, Outcome
from paper.compared import differences, family, verdicts
from paper.evidence import ATTACKS, Evidence
from paper.grids import marked
from paper.paper import METRICS
from paper.render import name

TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_MARK = "\\*"
_UNUSUAL = 20.0
SHOWN = (
    *("mean", *SEVEN, EQUAL, "fairmean-split", "term+", "term-"),
    *("cwtm", "krum", "multi-krum", "rfa", "centered-clipping"),
)
"""Rows of the short tables."""
FEW = ("mean", "fairmean", "fairmean-split", "h-nobs", "centered-clipping")
"""Rows of the README's table: the baseline, the paper's method, this project's, and two defences."""
FEW_COLUMNS = {"fashion-mnist": ("none", "pairwise"), "cifar10": ("pairwise",)}

Tuned = Mapping[str, Sequence[Mapping[str, Any]]]
"""Records of the tuning, by data set."""


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def absolute(values: Sequence[float] | np.ndarray[Any, Any]) -> str:
    """Mean ± the half-width of its 95 % interval; with the number of draws, if some have no figure."""
    d = interval(values)
    if math.isnan(d.mean):
        return "–"
    return f"{_digits(d.mean)} ± {_digits(d.half)}" + (f" ({d.n} of {len(values)} draws)" if d.n < len(values) else "")


def relative(difference: Difference, p: float, not_run: int = 0) -> str:
    """A difference with its interval, starred if significant at 5 % after correction; ``not_run``: draws not there."""
    if math.isnan(difference.mean):
        return "–"
    sign = "+" if difference.mean >= 0 else "−"
    mark = _MARK if p < 0.05 else ""
    lost = f", {difference.lost - not_run} lost" if difference.lost > not_run else ""
    lost = f" ({difference.n} draws{lost})" if difference.lost else ""
    return f"{sign}{_digits(abs(difference.mean))} ± {_digits(difference.half)}{mark}{lost}"


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
            waiting = evidence.not_run(method, attack)
            cells += [relative(*found[key], waiting) if (key := (method, attack, m)) in found else "" for m in METRICS]
        yield f"| {name(method)} | {' | '.join(cells)} |"


def _outcome(o: Outcome, words: tuple[str, str]) -> str:
    c, d = o.comparison, o.difference
    plus = f" + {c.plus:g}" if c.plus else ""
    count = d.positive if c.sign > 0 else d.negative
    return (
        f"| {name(c.x)}{plus} − {name(c.y)} | {c.metric} | {c.attack} | {relative(d, o.p)} | {count} of {d.n} "
        f"| {o.p:.2g} | {words[0] if o.as_claimed else words[1]}{'' if o.significant else ', not significant'} |"
    )


def claims_page(evidence: Evidence) -> Iterator[str]:
    """The verdict on every claim, and every comparison behind it."""
    judged = verdicts(evidence)
    by_ranks = {v.claim.name: v.word for v in verdicts(evidence, ranks=True)}
    tested, asked = (
        len({c for v in judged if (v.claim in QUESTIONS) == question for c in v.claim.comparisons})
        for question in (False, True)
    )
    least = 2 * 0.5 ** len(evidence.seeds) * tested  # the smallest p that signed ranks can have
    ranks = (
        "The column *by signed ranks* has the verdict by Wilcoxon's test instead, which was not registered; it shows "
        "what a few unusual draws do to a verdict."
        if least < 0.05
        else f"(Signed ranks are no check here: with {len(evidence.seeds)} draws their smallest p is {least:.2f}.)"
    )
    yield (
        f"P-values, and {_MARK} in the details, are corrected for the {tested} comparisons of all claims together, and "
        f"for the {asked} comparisons of the questions Q1 and Q2 on their own. The registered test is the paired "
        f"t-test. {ranks}"
    )
    heads = ["", "claim", "verdict", "by signed ranks", "as claimed", "of them significant", "significantly against"]
    if least >= 0.05:
        heads.remove("by signed ranks")
    yield from ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for v in judged:
        if v.claim in QUESTIONS:
            continue
        good = [o for o in v.outcomes if o.as_claimed]
        against = sum(o.significant and not o.as_claimed for o in v.outcomes)
        missing = len(v.claim.comparisons) - len(v.outcomes)
        counts = (
            f"{len(good)} of {len(v.outcomes)}{f' ({missing} not run)' if missing else ''} | {v.borne_out} | {against}"
        )
        words = f"**{v.word}** | {by_ranks[v.claim.name]}" if least < 0.05 else f"**{v.word}**"
        yield f"| {v.claim.name} | {v.claim.text} | {words} | {counts} |"
    for v in judged:
        if not v.outcomes:
            continue
        question = v.claim in QUESTIONS
        signs = ("better", "worse") if question else ("as claimed", "against it")
        yield ""
        yield f"<details><summary>{v.claim.name}: {v.claim.text}</summary>"
        yield ""
        draws = "draws in which it is better" if question else "draws with the claimed sign"
        yield f"| | metric | attack | difference, 95 % CI | {draws} | p, corrected | |"
        yield "|---|---|---|---|---|---|---|"
        for o in v.outcomes:
            yield _outcome(o, signs)
        yield ""
        yield "</details>"


def unusual(evidence: Evidence) -> Iterator[str]:
    """Draws in which a method's worst client is far below what it usually is."""
    for seed, attack in product(evidence.seeds, ATTACKS):
        place, parts = evidence.seeds.index(seed), []
        for method in evidence.methods:
            values = evidence.values(method, attack, "worst")
            if values is not None and values[place] < (usual := np.nanmedian(values)) - _UNUSUAL:
                parts.append(f"{name(method)} {values[place]:.1f} ({usual:.1f})")
        if parts:
            yield f"- draw {seed}, {_where(attack)}: {', '.join(parts)}"


def _where(attack: str) -> str:
    return "without attack" if attack == "none" else f"under {attack}"


def page(found: Sequence[Evidence], mapped: Sequence[Evidence], tuned: Tuned, made: str, pictures: str) -> str:
    """The whole page: ``made`` says in words how, and what came out; ``pictures`` is the figures' folder."""
    sizes = " and ".join(f"{len(one.methods)} methods and variants on {TITLES[one.dataset]}" for one in found)
    lines = [
        "# Evidence",
        "",
        "<!-- made by `fairmean reproduce evidence` from results/evidence-*.csv.gz: edit the code, not this page -->",
        "",
        f"This page compares {sizes}, over many draws that are the same for every method. Step sizes and "
        "hyper-parameters were chosen on clean validation data of other draws, and the claims and their tests were "
        "[written down before the runs](claims.md). It begins with what to do and what to believe; then come the "
        "findings and their limits, and then the tables. ([Another page](reproduction.md) asks whether the paper's own "
        "tables can be reproduced.)",
        "",
        made,
        "",
        "## How to read the tables",
        "",
        "Figures are means over draws ± the half-width of the 95 % confidence interval. Δ Mean is the method minus "
        f"Mean, and Δ FedAvg the method minus FedAvg, both taken draw by draw. {_MARK} marks differences that are "
        "significant at 5 % after Holm's correction for the number of comparisons. A run that "
        "diverged counts as 0 % average and worst accuracy, and has no variance.",
    ]
    for evidence in found:
        lines += ["", *_section(evidence, pictures, tuned.get(evidence.dataset, ()))]
        for one in mapped:
            if one.dataset == evidence.dataset:
                lines += ["", f"### κ and τ, {TITLES[one.dataset]} (question Q3)", ""]
                lines += [
                    f"This map compares `fairmean-normalised` with Mean at the same step, over {len(one.seeds)} draws. "
                    "A figure is bold where the 95 % interval of the paired difference excludes 0.",
                    "",
                    f"![κ × τ]({pictures}/map-{one.dataset}.png)",
                ]
    return "\n".join(lines) + "\n"


def _section(evidence: Evidence, pictures: str, tuned: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One data set."""
    title, size = TITLES[evidence.dataset], family(evidence)
    yield f"## {title}: {len(evidence.seeds)} draws, {len(evidence.methods)} rows"
    yield ""
    yield (
        "This is the short table. **Bold** is the best of a column, of all rows further below. An arrow says that the "
        "figure is significantly higher (↑) or lower (↓) than Mean's."
    )
    fewer = [method for method in evidence.methods if evidence.not_run(method, "none")]
    if fewer:
        yield (
            "A number of draws in brackets says that a row has fewer than the others. Its figures are means over other "
            "draws than theirs, so it is never bold; the differences to Mean and FedAvg below are over the draws that "
            "both have."
        )
    yield from ["", *headline(evidence).splitlines(), ""]
    yield f"![Differences to Mean]({pictures}/evidence-{evidence.dataset}.png)"
    yield from [
        "",
        "The figure shows differences to Mean with their 95 % intervals, coloured where they are significant after "
        "correction.",
        "",
    ]
    yield from [f"### Claims on {title}", "", *claims_page(evidence), ""]
    yield from [f"### Unusual draws on {title}", ""]
    yield (
        f"In these draws a method's worst accuracy is more than {_UNUSUAL:.0f} points below its median over all draws, "
        "which stands in brackets:"
    )
    yield from ["", *(list(unusual(evidence)) or ["- none"]), ""]
    yield from [f"### What was run on {title}", "", *settings(evidence, tuned)]
    for attack in ATTACKS:
        yield from ["", f"### {_where(attack).capitalize()}, {title}", ""]
        yield f"{_MARK} is corrected for {size} comparisons (methods × attacks × metrics) with each baseline."
        yield from ["", *table(evidence, attack)]
    if evidence.values("fairmean", THREE_POISONED, "worst") is not None:
        yield from [
            "",
            f"### Three poisoned clients ({THREE_POISONED}), {title}",
            "",
            *_short(evidence, THREE_POISONED),
        ]


def headline(evidence: Evidence) -> str:
    """The short table: average and worst accuracy, marked where they differ from Mean's, the best of all in bold."""
    columns = list(product(ATTACKS, ("average", "worst")))
    heads = [f"{_attack(attack)}: average | worst" for attack in ATTACKS]
    lines = [f"| {TITLES[evidence.dataset]}, {len(evidence.seeds)} draws | {' | '.join(heads)} |", "|---" * 9 + "|"]
    best = _best(evidence, columns)
    top = {method for method in evidence.methods for c in columns if _is_best(evidence, method, c, best)}
    for method in (m for m in evidence.methods if m in SHOWN or m in top):
        lines.append(f"| {name(method)} | {' | '.join(_marked(evidence, method, columns, best))} |")
    return "\n".join(lines) + "\n"


def few(found: Sequence[Evidence]) -> str:
    """The README's table: a few methods, and of them what a newcomer asks first; marked as in the short tables."""
    shown = [(one, attack) for one in found for attack in FEW_COLUMNS[one.dataset]]
    heads = [f"{TITLES[one.dataset]}, {_attack(attack, 'under ')}: average | worst" for one, attack in shown]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (2 * len(shown) + 1) + "|"]
    for method in (m for m in FEW if any(m in one.methods for one in found)):
        cells: list[str] = []
        for one, attack in shown:
            columns = [(attack, metric) for metric in ("average", "worst")]
            cells += _marked(one, method, columns, _best(one, columns, FEW))
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _attack(attack: str, before: str = "") -> str:
    return "no attack" if attack == "none" else f"{before}{attack}"


Column = tuple[str, str]
"""An attack and a metric."""


def _best(evidence: Evidence, columns: Sequence[Column], methods: Sequence[str] | None = None) -> dict[Column, float]:
    """The highest mean of each column, over some methods or all."""
    among = methods or evidence.methods
    return {
        (attack, metric): max(_mean(evidence, m, attack, metric) for m in among if not evidence.not_run(m, attack))
        for attack, metric in columns
    }


def _is_best(evidence: Evidence, method: str, column: Column, best: Mapping[Column, float]) -> bool:
    """Whether a row, of all draws, has the highest mean of a column."""
    return not evidence.not_run(method, column[0]) and _mean(evidence, method, *column) == best[column]


def _marked(evidence: Evidence, method: str, columns: Sequence[Column], best: Mapping[Column, float]) -> Iterator[str]:
    """A method's cells: bold if the best, with an arrow where it differs from Mean significantly."""
    to_mean = differences(evidence, "mean")
    for column in columns:
        value = _mean(evidence, method, *column)
        d, p = to_mean.get((method, *column), (None, math.nan))
        mark = "" if d is None or not p < 0.05 else " ↑" if d.mean > 0 else " ↓"
        shown = f"**{value:.1f}**" if _is_best(evidence, method, column, best) else f"{value:.1f}"
        waiting = evidence.not_run(method, column[0])
        some = f" ({len(evidence.seeds) - waiting} draws)" if waiting else ""
        yield "not run" if math.isinf(value) else shown + mark + some


def _mean(evidence: Evidence, method: str, attack: str, metric: str) -> float:
    values = evidence.values(method, attack, metric)
    return -math.inf if values is None else float(np.nanmean(values))


def settings(evidence: Evidence, tuned: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every method's settings, rounds and precision, and how the tuning came to them."""
    yield (
        "The score is (average + worst)/2 on validation data of the tuning draws, without attack. The column *next* "
        "has the best score of the method's other settings. A value with † lies at an edge of its grid, and a wider "
        "grid might do better."
    )
    yield from ["", "| method | setting | rounds | precision | settings tried | score | next |", "|---" * 7 + "|"]
    for method in evidence.methods:
        spec, dtype, rounds = evidence.spec(method)
        rule, *parts = spec.split(":")
        given = [part.split("=")[0] for part in parts]
        own = [f"{key}={value}" for key, value in named_methods()[rule].hyper.items() if key not in given]
        grid = tuning.TUNING[evidence.dataset].get(method, {})
        shown = ", ".join([*(marked(part, grid) for part in parts), *own])
        scores = _scores(tuned, method)
        mine = scores.pop(spec, None)
        others = max(scores.values(), default=math.nan)
        ending = f"{len(scores) + 1} | {mine:.2f} | {others:.2f}" if mine is not None else "– | – | –"
        yield f"| {name(method)} | {shown} | {rounds} | {dtype} | {ending} |"


def _scores(tuned: Sequence[Mapping[str, Any]], method: str) -> dict[str, float]:
    mine = [record for record in tuned if record["method"] == method]
    specs = Counter(record["spec"] for record in mine)
    return {spec: tuning.score(record for record in mine if record["spec"] == spec) for spec in specs}


def _short(evidence: Evidence, attack: str) -> Iterator[str]:
    yield "| method | average | variance | worst |"
    yield "|---|---|---|---|"
    for method in evidence.methods:
        values = [evidence.values(method, attack, metric) for metric in METRICS]
        if values[0] is not None:
            yield f"| {name(method)} | {' | '.join(absolute(v) for v in values if v is not None)} |"
