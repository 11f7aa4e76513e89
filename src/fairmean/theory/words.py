"""A certificate as a page of text: constants, inequalities, and what they mean."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.text import columns
from fairmean.theory.advice import down
from fairmean.theory.certificate import Certificate, Check, Constants


def page(certificate: Certificate) -> str:
    """For the terminal."""
    premises = certificate.premises
    kappa, tau = premises["kappa"], premises["tau"]
    title = f"{premises['method']}, measured as FairMean with κ = {kappa:g}, τ = {tau:g}"
    head = [
        f"certificate of {certificate.folder}",
        f"{title} · {certificate.rounds} rounds · δ = {premises['delta']:g}, ρ = {premises['rho']:.3g}",
    ]
    return "\n".join([*head, "", _constants(certificate), "", _checks(certificate), "", *sentences(certificate)])


def _constants(certificate: Certificate) -> str:
    """On the path, and beforehand where there is a closed form."""
    rows = [["on the visited iterates, at least", *_numbers(certificate.path)]]
    if certificate.known is not None:
        rows.append(["known beforehand, at most", *_numbers(certificate.known)])
    header = ["constants", "L", "G", "A", "L_Φ", "1/L_Φ", "largest α L_Φ", "ε(δ,κ)", "Theorem 2's bound"]
    return columns(rows, header)


def _numbers(c: Constants) -> list[str]:
    every = (c.L, c.G, c.A, c.smoothness, c.safe_step, c.excess, c.radius, c.bound)
    return ["–" if math.isnan(value) else f"{value:.4g}" for value in every]


def _checks(certificate: Certificate) -> str:
    rows = [[c.name, c.statement, *_sides(c), _slack(c), str(c.at), _verdict(c)] for c in certificate.checks]
    return columns(rows, ["", "inequality", "left", "right", "slack", "round", "rounds"])


def _sides(check: Check) -> list[str]:
    """As many digits as it takes to tell them apart."""
    for digits in (4, 6, 9, 12):
        left, right = f"{check.left:.{digits}g}", f"{check.right:.{digits}g}"
        if left != right:
            break
    return [left, right]


def _verdict(check: Check) -> str:
    if check.holds:
        return f"holds in {check.rounds}"
    word = "BROKEN" if check.decides else "not shown"
    return f"{word}: first in round {check.broken}, {check.share:.0%} of {check.rounds}"


def record(certificate: Certificate) -> dict[str, Any]:
    """For programs."""
    return {
        "folder": str(certificate.folder),
        "holds": certificate.holds,
        "promised": certificate.promised,
        "same_rule": certificate.same_rule,
        "diverged": certificate.diverged,
        "rounds": certificate.rounds,
        "rounds_without_regular_clients": certificate.lost,
        "premises": certificate.premises,
        "step": certificate.step,
        "stationarity": certificate.stationarity,
        "path": asdict(certificate.path),
        "known": asdict(certificate.known) if certificate.known else None,
        "checks": [asdict(check) | {"holds": check.holds, "slack": check.slack} for check in certificate.checks],
        "words": sentences(certificate),
    }


def _slack(check: Check) -> str:
    if not math.isfinite(check.slack):
        return ""
    return f"×{check.slack:.3g}"


def sentences(certificate: Certificate) -> list[str]:
    """What the inequalities mean, in plain words."""
    found = {check.name: check for check in certificate.checks}
    lines = []
    if certificate.diverged is not None:
        lines.append(f"✗ the run diverged: a loss is not finite in round {certificate.diverged}.")
    if certificate.lost:
        lines.append(
            f"· in {certificate.lost} of {certificate.rounds} rounds no regular client took part: they say nothing."
        )
    lines += _rule(certificate, found)
    if certificate.same_rule and "Lemma 2" in found and certificate.columns["poisoned"].max() > 0:
        lines += _attack(certificate, found["Lemma 2"])
    lines += _weighted(certificate)
    lines += _distrusted(certificate)
    lines += _steps(certificate, found)
    broken = [check.name for check in certificate.checks if not check.holds and check.decides]
    unclear = [check.name for check in certificate.checks if not check.holds and not check.decides]
    if unclear:
        lines.append(f"· not shown, since a constant is only known to be at least what was seen: {', '.join(unclear)}.")
    if broken:
        lines.append(f"✗ broken: {', '.join(broken)}.")
    elif certificate.holds:
        lines.append("✓ no inequality was broken in any round that was looked at.")
    return lines


def _when(check: Check) -> str:
    return f"first in round {check.broken}, in {check.share:.0%} of the rounds"


def _at(columns: dict[str, NDArray[np.float64]], name: str, check: Check) -> float:
    return float(columns[name][columns["round"] == check.at][0])


def _rule(certificate: Certificate, found: dict[str, Check]) -> list[str]:
    c, cap = certificate.columns, 1 + certificate.premises["kappa"]
    lines = []
    algorithm = found.get("Algorithm 1")
    if algorithm is not None and not algorithm.holds:
        size = f"off by {algorithm.left:.3g}, where FairMean's direction is {_at(c, 'direction', algorithm):.3g} long"
        if certificate.same_rule:
            lines.append(f"✗ the steps departed from FairMean's {_when(algorithm)} ({size}).")
        else:
            lines.append(f"✗ the steps are not FairMean's ({size}): Lemma 2 and Theorem 2 speak of another rule.")
    for name, side in (("eq. 4, upper", "highest"), ("eq. 4, lower", "lowest")):
        if name in found and not found[name].holds:
            value = _at(c, f"{side}_weight", found[name])
            lines.append(f"✗ a client got weight {value:.3g}, outside [1, {cap:g}], {_when(found[name])}.")
    return lines


def _attack(certificate: Certificate, lemma: Check) -> list[str]:
    c = certificate.columns
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100 * c["error"] / c["gradient"]
    share = share[np.isfinite(share)]
    lines = []
    if len(share):
        room = f"; Lemma 2 allows at least {lemma.slack:.2g} times as much." if lemma.holds else "."
        lines.append(
            f"· the poisoned clients moved the direction by {np.median(share):.0f} % of the fair gradient's length in "
            f"the median round, by at most {share.max():.0f} %{room}"
        )
    if not lemma.holds:
        lines.append(
            f"✗ the direction was moved further than poisoned labels can move it, {_when(lemma)} "
            f"({lemma.left:.3g}, at most {lemma.right:.3g})."
        )
    return lines


def _weighted(certificate: Certificate) -> list[str]:
    """What the weights that the rule really gave left to poisoned clients; for any rule that gives some."""
    c, delta = certificate.columns, certificate.premises["delta"]
    known = np.isfinite(c["poisoned_share"]) & (c["poisoned"] > 0)
    if not known.any():
        return []
    share, moved = 100 * c["poisoned_share"][known], c["moved"][known] / c["own_direction"][known]
    late = share[-max(1, len(share) // 10) :]
    return [
        f"· the poisoned clients, {100 * delta:.0f} % of all, had {np.median(share):.3g} % of the weight in the median "
        f"round (δ_eff) and {np.median(late):.3g} % in the last tenth; they moved the regular clients' own direction "
        f"by {100 * np.median(moved):.0f} % of its length in the median round."
    ]


def _distrusted(certificate: Certificate) -> list[str]:
    """What wrong alarms cost: how much of their weight regular clients lost, and how far that moved their direction."""
    c = certificate.columns
    known = np.isfinite(c["distrust"])
    if not known.any():
        return []
    lost, moved = c["distrust"][known], c["distrust_moved"][known] / c["own_direction"][known]
    if lost.max() < 1e-3:
        return ["· no regular client was distrusted in any round, so wrong alarms cost nothing."]
    late = lost[-max(1, len(lost) // 10) :]
    return [
        f"· distrust took {100 * lost.max():.3g} % of the regular clients' weight at most (η), and "
        f"{100 * np.median(late):.3g} % in the last tenth; it moved their own direction by at most "
        f"{100 * moved.max():.0f} % of its length. More than 2ηG is impossible."
    ]


def _steps(certificate: Certificate, found: dict[str, Check]) -> list[str]:
    premises, path = certificate.premises, certificate.path
    if premises["not_static"]:
        return [
            f"· Theorem 2 is about losses that stay the same from round to round; here {premises['not_static']}: "
            "smoothness, descent and stationarity were not checked."
        ]
    if "step size" not in found:
        return []
    size, descent, theorem = found["step size"], found["descent"], found["Theorem 2"]
    lines = []
    if certificate.promised and certificate.known is not None:
        lines.append(
            f"· the step {certificate.step:g} is short enough everywhere: α L_Φ ≤ {certificate.known.excess:.3g} by "
            "constants known beforehand."
        )
    elif size.holds:
        lines.append(
            f"· the step {certificate.step:g} is short enough, as far as L was measured: α L_Φ ≤ {path.excess:.3g}."
        )
    else:
        lines.append(
            f"✗ α L_Φ exceeded 1 {_when(size)}, up to {path.excess:.3g}: Theorem 2 promises nothing for this run; "
            f"a step of {down(path.safe_step)} would have been short enough for the constants seen."
        )
    if not descent.holds:
        lines.append(f"✗ Φ_R fell by less than promised, or rose, {_when(descent)}.")
    verdict = "though not promised"
    if certificate.promised:
        verdict = "as promised"
    elif size.holds:
        verdict = "as Theorem 2 says where L is no larger than measured"
    if theorem.holds:
        part = f"; of the bound {path.radius**2 / path.bound:.0%} is the attack's ε²" if path.bound > 0 else ""
        lines.append(f"· average ‖∇Φ_R‖² = {certificate.stationarity:.3g} ≤ {path.bound:.3g}, {verdict}{part}.")
    else:
        lines.append(f"✗ Theorem 2's inequality is broken {_when(theorem)}.")
    return lines
