"""A certificate as a page of text: constants, inequalities, and what they mean."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from fairmean.tables import columns
from fairmean.theory.advice import DELTAS, KAPPAS, TAUS, Advice
from fairmean.theory.certificate import Certificate, Check, Constants


def page(certificate: Certificate) -> str:
    """For the terminal."""
    premises = certificate.premises
    kappa, tau = premises["kappa"], premises["tau"]
    title = f"{premises['method']}, measured as FairMean with κ = {kappa:g}, τ = {tau:g}"
    head = [
        f"certificate of {certificate.folder}",
        f"{title} · {certificate.rounds} rounds · δ = {certificate.delta:g}, ρ = {premises['rho']:.3g}",
    ]
    return "\n".join([*head, "", _constants(certificate), "", _checks(certificate), "", *sentences(certificate)])


def _constants(certificate: Certificate) -> str:
    """On the path, and beforehand where there is a closed form."""
    rows = [["on the visited iterates", *_numbers(certificate.path)]]
    if certificate.known is not None:
        rows.append(["known beforehand", *_numbers(certificate.known)])
    return columns(rows, ["constants", "L", "G", "A", "L_Φ", "1/L_Φ", "ε(δ,κ)", "Theorem 2's bound"])


def _numbers(c: Constants) -> list[str]:
    return [f"{value:.4g}" for value in (c.L, c.G, c.A, c.smoothness, c.safe_step, c.radius, c.bound)]


def _checks(certificate: Certificate) -> str:
    rows = [
        [
            c.name,
            c.statement,
            f"{c.left:.4g}",
            f"{c.right:.4g}",
            _slack(c),
            str(c.at),
            f"holds in {c.rounds}" if c.holds else f"BROKEN first in round {c.broken}, {c.share:.0%} of {c.rounds}",
        ]
        for c in certificate.checks
    ]
    return columns(rows, ["", "inequality", "left", "right", "slack", "round", "rounds"])


def record(certificate: Certificate) -> dict[str, Any]:
    """For programs."""
    return {
        "folder": str(certificate.folder),
        "holds": certificate.holds,
        "covered": certificate.covered,
        "rounds": certificate.rounds,
        "premises": certificate.premises,
        "step": certificate.step,
        "delta": certificate.delta,
        "stationarity": certificate.stationarity,
        "path": asdict(certificate.path),
        "known": asdict(certificate.known) if certificate.known else None,
        "checks": [asdict(check) | {"holds": check.holds} for check in certificate.checks],
        "words": sentences(certificate),
    }


def advice_record(given: Advice) -> dict[str, Any]:
    """For programs."""
    e = given.estimate
    grid = [
        {"kappa": k, "tau": tau, "cap": 1 + k, "step": e.step(k, tau), "known_step": given.known_step(k, tau)}
        | {"radius": {f"{d:g}": e.radius(d, k) for d in DELTAS}}
        for k, tau in itertools.product(KAPPAS, TAUS)
    ]
    constants = asdict(e) | {"safe_step": e.safe_step, "edge": e.edge}
    return {"estimate": constants, "known": asdict(given.known) if given.known else None, "grid": grid}


def advice(given: Advice) -> str:
    """κ × τ: the cap, the safe step, and ε per poisoned fraction; then what to set."""
    config, e = given.config, given.estimate
    used = f"on at most {e.samples:,} samples of each client" if e.samples < 10**9 else "on all samples"
    lines = [
        f"{config.data.name} · {config.partition.clients} clients · the start point of seed {config.seed}, {used}",
        f"L = {e.L:.4g} (client {e.steepest} curves most)   G = {e.G:.4g}   H = {e.H:.4g}   Γ ≥ {e.gamma:.4g}   "
        f"λ_max(∇²Φ) = {e.curvature:.4g} at κ = {e.kappa:g}, τ = {e.tau:g}",
    ]
    if not e.settled:
        lines.append("(a power iteration had not settled: the curvatures are lower bounds)")
    header = ["κ", "τ", "cap 1+κ", "L_Φ", "safe step 1/L_Φ", *(f"ε at δ={d:g}" for d in DELTAS)]
    if given.known is not None:
        header.append("1/L_Φ at every w")
    rows = []
    for kappa, tau in itertools.product(KAPPAS, TAUS):
        if kappa == 0 and tau != 1.0:
            continue
        radii = [f"{e.radius(delta, kappa):.3g}" for delta in DELTAS]
        row = [f"{kappa:g}", f"{tau:g}" if kappa else "any", f"{1 + kappa:g}"]
        row += [f"{1 / e.step(kappa, tau):.3g}", f"{e.step(kappa, tau):.3g}", *radii]
        step = given.known_step(kappa, tau)
        rows.append(row if step is None else [*row, f"{step:.3g}"])
    lines += ["", columns(rows, header), ""]
    lines += [
        f"safe at the start: train.lr={e.safe_step:.2g} (Theorem 2 for κ = {e.kappa:g}, τ = {e.tau:g}). "
        f"Steps beyond {e.edge:.2g} overshoot in the steepest direction.",
        "Curvature changes in training, and often grows to about 2/lr: a run with theory=true measures it on the way, "
        "and 'fairmean check' says whether the bound held.",
        "ε is what Lemma 2 allows when every label of a poisoned client may change; real attacks reach a part of it.",
    ]
    return "\n".join(lines)


def _slack(check: Check) -> str:
    if check.right == 0 or not math.isfinite(check.slack):
        return ""
    return f"×{check.slack:.3g}"


def sentences(certificate: Certificate) -> list[str]:
    """What the inequalities mean, in plain words."""
    c, p = certificate.columns, certificate.premises
    kappa = p["kappa"]
    found = {check.name: check for check in certificate.checks}
    lines = []
    algorithm = found.get("Algorithm 1")
    if algorithm is not None and not algorithm.holds:
        which = "are not FairMean's" if algorithm.share > 0.99 else "departed from FairMean's"
        what = f"they {which} from round {algorithm.broken} on"
        lines.append(
            f"✗ the steps: {what} (off by {algorithm.left:.3g}, where FairMean's direction is "
            f"{_at(c, 'direction', algorithm):.3g} long)."
        )
    for name, side in (("eq. 4, upper", "highest"), ("eq. 4, lower", "lowest")):
        if name in found and not found[name].holds:
            wrong = found[name]
            value = _at(c, f"{side}_weight", wrong)
            lines.append(
                f"✗ the weights: a client got weight {value:.3g} in round {wrong.broken}, outside [1, {1 + kappa:g}]."
            )
    if c["poisoned"].max() > 0 and certificate.rounds:
        lines += _attack(certificate, found)
    lines += _steps(certificate, found)
    broken = [check.name for check in certificate.checks if not check.holds]
    if broken:
        lines.append(f"✗ broken: {', '.join(broken)}.")
    else:
        lines.append("✓ every inequality held in every round that was looked at.")
    return lines


def _at(columns: dict[str, np.ndarray], name: str, check: Check) -> float:
    return float(columns[name][columns["round"] == check.at][0])


def _attack(certificate: Certificate, found: dict[str, Check]) -> list[str]:
    c = certificate.columns
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100 * c["error"] / c["gradient"]
    share = share[np.isfinite(share)]
    lemma = found["Lemma 2"]
    lines = []
    if len(share):
        lines.append(
            f"· the poisoned clients moved the direction by {np.median(share):.0f} % of the fair gradient's length in "
            f"the median round, by at most {share.max():.0f} %"
            + (f"; Lemma 2 allows at least {lemma.slack:.2g} times as much." if lemma.holds else ".")
        )
    if not lemma.holds:
        lines.append(
            f"✗ in round {lemma.broken} the direction was moved by {lemma.left:.3g}, further than poisoned labels can "
            f"move it ({lemma.right:.3g})."
        )
    return lines


def _steps(certificate: Certificate, found: dict[str, Check]) -> list[str]:
    premises, path = certificate.premises, certificate.path
    if premises["not_static"]:
        return [
            f"· Theorem 2 is about losses that stay the same from round to round; here {premises['not_static']}: "
            "smoothness, descent and stationarity were not checked."
        ]
    if "Theorem 2" not in found:
        return []
    size, descent, theorem = found["step size"], found["descent"], found["Theorem 2"]
    lines = []
    if size.holds:
        lines.append(f"· the step {certificate.step:g} is within 1/L_Φ = {path.safe_step:.3g} of the visited iterates.")
    else:
        lines.append(
            f"✗ the step {certificate.step:g} is {certificate.step / path.safe_step:.1f} times 1/L_Φ = "
            f"{path.safe_step:.3g}, too long from round {size.broken} on: Theorem 2 promises nothing for this run."
        )
    if not descent.holds:
        lines.append(
            f"✗ Φ_R fell by less than promised, or rose, in {descent.share:.0%} of the rounds, first in round "
            f"{descent.broken}."
        )
    verdict = "as promised" if certificate.covered else "though not promised"
    if theorem.holds:
        lines.append(
            f"· average ‖∇Φ_R‖² = {certificate.stationarity:.3g} ≤ {path.bound:.3g}, {verdict}; of the bound "
            f"{path.radius**2 / path.bound:.0%} is the attack's ε²."
        )
    else:
        lines.append(f"✗ Theorem 2's inequality is broken from round {theorem.broken} on.")
    return lines
