"""What the theorems say about runs that were measured, as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fairmean.report.material import Entry
from fairmean.theory.certificate import Certificate
from fairmean.theory.words import sentences

MOST = 12


def certificates(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One for each run that was made with theory=true, at most a dozen."""
    found = []
    for entry in entries:
        certificate = None if entry.run is None else entry.run.certificate
        if certificate is None:
            continue
        run = {"method": entry.method, "attack": entry.attack, "seed": entry.seed}
        found.append({**run, **plain(certificate)})
        if len(found) == MOST:
            break
    return found


def plain(certificate: Certificate) -> dict[str, Any]:
    """A certificate's verdict, its inequalities with both sides, and what they mean in words."""
    checks = [
        {
            "name": check.name,
            "statement": check.statement,
            "left": _figure(check.left),
            "right": _figure(check.right),
            "slack": f"× {check.slack:.3g}" if math.isfinite(check.slack) else "",
            "holds": check.holds,
            "decides": check.decides,
            "rounds": check.rounds,
            "broken": check.broken,
        }
        for check in certificate.checks
    ]
    return {"holds": certificate.holds, "checks": checks, "words": sentences(certificate)}


def _figure(value: float) -> str:
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else "–"
