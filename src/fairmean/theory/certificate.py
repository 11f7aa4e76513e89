"""The certificate of a run: every inequality of the paper with both sides, as measured at the visited iterates."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError
from fairmean.runfolder import CLIENTS, THEORY
from fairmean.theory import bounds
from fairmean.transform import phi

Array = NDArray[np.float64]
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "tf32": 1e-2, "bfloat16": 3e-2}
"""Relative error that an inequality is forgiven, for rounding."""


@dataclass(frozen=True)
class Check:
    """left ≤ right in every round looked at; the sides are those of the first broken round, or of the tightest."""

    name: str
    statement: str
    left: float
    right: float
    at: int | None
    rounds: int
    broken: int | None
    share: float

    @property
    def holds(self) -> bool:
        """In every round looked at."""
        return self.broken is None

    @property
    def slack(self) -> float:
        """right/left: how many times larger the bound is than what it bounds."""
        return self.right / self.left if self.left > 0 < self.right else math.inf


@dataclass(frozen=True)
class Constants:
    """L, G, A and what follows from them: the largest on the visited iterates, or known beforehand."""

    L: float
    G: float
    A: float
    smoothness: float
    radius: float
    safe_step: float
    bound: float


@dataclass(frozen=True)
class Certificate:
    """``covered``: whether Theorem 2 applies: FairMean's own steps, no longer than 1/L_Φ."""

    folder: Path
    premises: dict[str, Any]
    rounds: int
    checks: list[Check]
    path: Constants
    known: Constants | None
    step: float
    delta: float
    stationarity: float
    covered: bool
    columns: dict[str, Array]

    @property
    def holds(self) -> bool:
        """Whether every inequality held in every round."""
        return all(check.holds for check in self.checks)


def read(folder: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The measured table of a run folder, finished or not, as columns, and its premises."""
    folder = Path(folder)
    table = next((file for file in (folder / THEORY, folder / f"{THEORY}.part") if file.exists()), None)
    if table is None:
        if not any((folder / name).exists() for name in ("config.toml", CLIENTS)):
            raise UserError(f"'{folder}' is not a run folder; a run's folder is printed at its end")
        raise UserError(
            f"'{folder}' was run without theory=true; run it again: fairmean run {folder / 'config.toml'} theory=true"
        )
    with open(table, newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    if not rows:
        raise UserError(f"'{table}' has no round yet; wait until the run has written some")
    columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
    premises: dict[str, Any] = json.loads((folder / "theory.json").read_text())
    return columns, premises


def certify(folder: str | Path) -> Certificate:
    """Check a run that was made with ``theory=true``."""
    columns, premises = read(folder)
    return _Checker(Path(folder), columns, premises).certificate()


class _Checker:
    """Columns by attribute: ``self.error`` is ‖e^t‖ for every t. The last row has no step, if the run has ended."""

    def __init__(self, folder: Path, columns: dict[str, Array], premises: dict[str, Any]) -> None:
        self.folder, self.columns, self.premises = folder, columns, premises
        self.kappa, self.tau, self.rho = premises["kappa"], premises["tau"], premises["rho"]
        self.tolerance = TOLERANCE[premises["dtype"]]
        self.stepped = ~np.isnan(columns["step"])
        self.checks: list[Check] = []

    def __getattr__(self, name: str) -> Array:
        return self.columns[name]

    def check(
        self, name: str, statement: str, left: Array, right: Array, rounds: Array, slip: Array | float = 0.0
    ) -> None:
        """left ≤ right, but for rounding, in each of ``rounds``; ``slip`` is what rounding may add besides."""
        with np.errstate(invalid="ignore", divide="ignore"):
            fine = left <= right * (1 + self.tolerance) + slip
            tight = np.where(right > 0, left / right, np.where(left > 0, np.inf, 0.0))
        if len(left) == 0:
            return
        bad = np.flatnonzero(~fine)
        place = int(bad[0]) if len(bad) else int(np.argmax(tight))
        self.checks.append(
            Check(
                name,
                statement,
                float(left[place]),
                float(right[place]),
                int(rounds[place]),
                len(left),
                int(rounds[bad[0]]) if len(bad) else None,
                len(bad) / len(left),
            )
        )

    def certificate(self) -> Certificate:
        k, tau, rounds = self.kappa, self.tau, self.round
        steps = self.stepped
        if steps.any():
            self._protocol(rounds, steps)
        real = ~np.isnan(self.objective)
        objective = np.array([phi(float(f), k, tau) for f in self.mean_loss])
        gap = np.abs(self.objective - (objective + k * self.dispersion))
        self.check(
            "eq. 6", "|Φ_R − φ(F_R) − κD_τ| ≤ 0", gap[real], 0 * gap[real], rounds[real], 1e-12 * (1 + objective[real])
        )
        low, high = bounds.sandwich(self.variance, tau, self.largest_loss)
        rounding = 1e-15 * (1 + self.largest_loss) ** 2 / tau
        self.check(
            "eq. 7, lower", "τ/2(B+τ)² Var_R ≤ D_τ", low[real], self.dispersion[real], rounds[real], rounding[real]
        )
        self.check("eq. 7, upper", "D_τ ≤ Var_R/2τ", self.dispersion[real], high[real], rounds[real], rounding[real])
        self._lemma1(rounds)
        delta = self.poisoned / self.clients
        radius = bounds.attack_radius(1.0, k, np.nan_to_num(self.poisoned_distance), self.regular_gradient) * delta
        slip = self.tolerance * self.direction
        self.check("Lemma 2", "‖e‖ ≤ δ[(1+κ)A + 2κG]", self.error[steps], radius[steps], rounds[steps], slip[steps])
        path = self._constants(
            float(np.nanmax(self.secant, initial=0.0)),
            float(np.nanmax(self.regular_gradient)),
            float(np.nanmax(self.poisoned_distance, initial=0.0)),
        )
        covered, stationarity = False, math.nan
        if not self.premises["not_static"] and steps.sum() and len(rounds) > 1:
            covered, stationarity = self._across(rounds, steps, path)
        known = self._known()
        step = float(np.nanmax(self.step)) if steps.any() else math.nan
        return Certificate(
            self.folder,
            self.premises,
            int(steps.sum()),
            self.checks,
            path,
            known,
            step,
            float(np.nanmax(delta)),
            stationarity,
            covered,
            self.columns,
        )

    def _protocol(self, rounds: Array, steps: NDArray[np.bool_]) -> None:
        """Was it FairMean at all: the direction, and the weights where the rule has some."""
        size = self.direction[steps]
        slip = max(self.tolerance, 1e-7) * size
        self.check(
            "Algorithm 1", "‖direction − (1/n) Σ a(f_i) g_i‖ ≤ 0", self.departure[steps], 0 * size, rounds[steps], slip
        )
        some = steps & ~np.isnan(self.highest_weight)
        cap = np.full(some.sum(), 1 + self.kappa)
        self.check("eq. 4, lower", "1 ≤ a_i", cap / cap, self.lowest_weight[some], rounds[some])
        self.check("eq. 4, upper", "a_i ≤ 1 + κ", self.highest_weight[some], cap, rounds[some])

    def _lemma1(self, rounds: Array) -> None:
        """With Γ in closed form in every round, or measured where it was; a Γ that is too small makes it harder."""
        if self.premises["tilt"]:
            return
        gamma = self.premises["gamma"]
        Gamma = self.jacobian if gamma is None else np.full(len(rounds), gamma)
        seen = ~np.isnan(Gamma) & ~np.isnan(self.objective)
        self.check(
            "Lemma 1, G", "‖∇f_i‖ ≤ √2 Γ", self.regular_gradient[seen], bounds.gradient_bound(Gamma[seen]), rounds[seen]
        )
        seen &= ~np.isnan(self.poisoned_distance)
        zero, small = np.zeros(seen.sum()), self.tolerance * self.regular_gradient[seen]
        shift = bounds.poisoning_bound(zero, self.rho, Gamma[seen])
        self.check("Lemma 1, shift", "‖∇f̃_i − ∇f_i‖ ≤ √2 ρ Γ", self.relabelling_shift[seen], shift, rounds[seen], small)
        far = bounds.poisoning_bound(self.clean_distance[seen], self.rho, Gamma[seen])
        self.check("Lemma 1, A", "‖∇f̃_i − ∇F_R‖ ≤ H + √2 ρ Γ", self.poisoned_distance[seen], far, rounds[seen], small)

    def _constants(self, L: float, G: float, A: float) -> Constants:
        delta, steps = float(np.nanmax(self.poisoned / self.clients)), self.stepped
        smoothness = bounds.smoothness(self.kappa, self.tau, L, G)
        radius = bounds.attack_radius(delta, self.kappa, A, G)
        total = float(self.step[steps].sum())
        bound = 2 * float(self.objective[0]) / total + radius**2 if total else math.nan
        return Constants(L, G, A, smoothness, radius, 1 / smoothness if smoothness else math.inf, bound)

    def _known(self) -> Constants | None:
        """With Γ and L in closed form: no gradient of any client is longer than √2 Γ, so A ≤ 2√2 Γ."""
        if self.premises["gamma"] is None:
            return None
        G = bounds.gradient_bound(self.premises["gamma"])
        return self._constants(self.premises["smoothness"], G, 2 * G if np.nanmax(self.poisoned) else 0.0)

    def _across(self, rounds: Array, steps: NDArray[np.bool_], path: Constants) -> tuple[bool, float]:
        """Smoothness, the step size, descent and Theorem 2; a step from row t to row t + 1 needs both."""
        k, tau = self.kappa, self.tau
        pair = steps[:-1]
        before, now = np.flatnonzero(pair), np.flatnonzero(pair) + 1
        L = np.fmax.accumulate(self.secant)
        G = np.fmax.accumulate(self.regular_gradient)
        smooth = bounds.smoothness(k, tau, L, G)
        if self.premises["smoothness"] is not None:
            most = np.full(len(now), self.premises["smoothness"])
            self.check("Assumption 1", "‖Δ∇f_i‖/‖Δw‖ ≤ L", self.secant[now], most, rounds[before], 1e-9)
        moved = now[~np.isnan(self.secant[now])]
        self.check(
            "L_Φ", "‖Δ∇Φ_R‖/‖Δw‖ ≤ (1+κ)L + (κ/τ)G²", self.objective_secant[moved], smooth[moved], rounds[moved - 1]
        )
        step = self.step[before]
        self.check(
            "step size", "α L_Φ ≤ 1", step * np.nan_to_num(smooth[now], nan=0.0), np.ones(len(now)), rounds[before]
        )
        allowed = self.checks[-1].holds
        fall = self.objective[before] - step / 2 * self.gradient[before] ** 2 + step / 2 * self.error[before] ** 2
        rounding = max(self.tolerance * 0.1, 1e-12) * (1 + np.abs(self.objective[before]))
        self.check(
            "descent", "Φ_R(w⁺) ≤ Φ_R(w) − α/2 ‖∇Φ_R‖² + α/2 ‖e‖²", self.objective[now], fall, rounds[before], rounding
        )
        total = np.cumsum(self.step[steps])
        average = np.cumsum(self.step[steps] * self.gradient[steps] ** 2) / total
        radius = (
            bounds.attack_radius(1.0, k, np.nan_to_num(np.fmax.accumulate(self.poisoned_distance))[steps], G[steps])
            * (self.poisoned / self.clients)[steps]
        )
        bound = 2 * self.objective[0] / total + radius**2
        self.check("Theorem 2", "avg ‖∇Φ_R‖² ≤ 2Φ_R(w⁰)/(αT) + ε²", average, bound, rounds[steps])
        own = all(
            check.holds
            for check in self.checks
            if check.name in ("Algorithm 1", "eq. 4, lower", "eq. 4, upper", "Lemma 2")
        )
        return allowed and own, float(average[-1])
