"""The certificate of a run: every inequality of the paper with both sides, as measured at the visited iterates."""

from __future__ import annotations

import csv
import importlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError
from fairmean.theory import bounds
from fairmean.theory.measure.monitor import LATER, MEASURED, THEORY
from fairmean.theory.premises import PREMISES
from fairmean.transform import phi

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]
EXACT = 1e-9
"""Relative error forgiven to what is computed in float64 from the same losses."""
GRADIENTS = {"float64": 1e-9, "float32": 1e-5, "tf32": 1e-5, "bfloat16": 1e-5}
"""… and to norms of gradients, which have the parameters' precision."""
LOSSES = {"float64": 1e-13, "float32": 5e-7, "tf32": 1e-3, "bfloat16": 5e-3}
"""… and to the difference of two losses, relative to 1 + Φ: the precision of a forward pass."""


@dataclass(frozen=True)
class Check:
    """left ≤ right in every round looked at; the sides are those of the first broken round, or of the tightest.

    ``decides``: a failure is one of the theorem; else a constant in it is only known to be at least what was measured.
    """

    name: str
    statement: str
    left: float
    right: float
    at: int
    rounds: int
    broken: int | None
    share: float
    decides: bool = True

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
    """L, G, A and what follows from them: the largest on the visited iterates, or known beforehand.

    ``excess``: the largest α L_Φ, which should be at most 1. NaN for what was not measured.
    """

    L: float
    G: float
    A: float
    smoothness: float
    safe_step: float
    radius: float
    bound: float
    excess: float


@dataclass(frozen=True)
class Certificate:
    """``same_rule``: the steps were FairMean's. ``promised``: Theorem 2 applies by constants known beforehand.

    ``lost``: rounds in which no regular client took part; ``diverged``: the first round with a loss that is not finite.
    """

    folder: Path
    premises: dict[str, Any]
    rounds: int
    lost: int
    diverged: int | None
    checks: list[Check]
    path: Constants
    known: Constants | None
    step: float
    stationarity: float
    same_rule: bool
    promised: bool
    columns: dict[str, Array]

    def _repr_html_(self) -> str:
        """What a notebook shows. The room above this one draws it, so it is asked for by name when it is needed."""
        return str(importlib.import_module("fairmean.report.inline").certified(self))

    @property
    def holds(self) -> bool:
        """Whether no inequality was broken."""
        return self.diverged is None and all(check.holds or not check.decides for check in self.checks)


def read(folder: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The measured table of a run folder, finished or not, as columns, and its premises."""
    folder = Path(folder)
    table = next((file for file in (folder / THEORY, folder / f"{THEORY}.part") if file.exists()), None)
    if table is None:
        if not any((folder / name).exists() for name in ("config.toml", "clients.csv")):
            raise UserError(f"'{folder}' is not a run folder; a run's folder is printed at its end")
        if (folder / "theory.json").exists():
            raise UserError(f"'{folder / THEORY}' is missing; remove the folder and run it again with theory=true")
        raise UserError(
            f"'{folder}' was run without theory=true; run it again: fairmean run {folder / 'config.toml'} theory=true"
        )
    try:
        with open(table, newline="") as file:
            rows = [row for row in csv.DictReader(file) if None not in row.values()]
        columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}
        premises: dict[str, Any] = json.loads((folder / "theory.json").read_text())
    except FileNotFoundError:
        raise UserError(f"'{folder / 'theory.json'}' is missing; remove the folder and run again") from None
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"'{folder}': theory.csv or theory.json is damaged ({error}); run again") from None
    if not rows:
        raise UserError(f"'{table}' has no round; let the run go on, or run it again")
    lacking = [name for name in ("round", *MEASURED) if name not in columns and name not in LATER]
    if lacking:
        raise UserError(f"'{table}' is damaged (it has no column '{lacking[0]}'); remove the folder and run again")
    lacking = [name for name in PREMISES if not isinstance(premises, dict) or name not in premises]
    if lacking:
        raise UserError(
            f"'{folder / 'theory.json'}' is damaged ('{lacking[0]}' is missing); remove the folder, run again"
        )
    unknown = np.full(len(rows), np.nan)
    return dict.fromkeys(LATER, unknown) | columns, premises


def certify(folder: str | Path) -> Certificate:
    """Check a run that was made with ``theory=true``."""
    columns, premises = read(folder)
    with np.errstate(all="ignore"):
        return _Checker(Path(folder), columns, premises).certificate()


class _Checker:
    """Columns by attribute: ``self.error`` is ‖e^t‖ for every t. A row without a step is the last, or not finite."""

    def __init__(self, folder: Path, columns: dict[str, Array], premises: dict[str, Any]) -> None:
        self.folder, self.premises = folder, premises
        self.kappa, self.tau, self.rho = premises["kappa"], premises["tau"], premises["rho"]
        self.tolerance = GRADIENTS[premises["dtype"]]
        self.checks: list[Check] = []
        wild = np.flatnonzero(~np.isfinite(columns["objective"]) & (columns["clients"] > columns["poisoned"]))
        self.diverged = int(columns["round"][wild[0]]) if len(wild) else None
        if len(wild):  # rows after it mean nothing, and from itself no step counts
            columns = {name: values[: wild[0] + 1].copy() for name, values in columns.items()}
            columns["step"][-1] = np.nan
        self.columns = columns
        self.seen: Rows = np.isfinite(columns["objective"])  # rows with a regular client
        self.stepped: Rows = ~np.isnan(columns["step"])
        self.delta = columns["poisoned"] / columns["clients"]

    def __getattr__(self, name: str) -> Array:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def check(
        self,
        name: str,
        statement: str,
        left: Array,
        right: Array,
        where: Rows,
        *,
        tolerance: float = EXACT,
        slip: Array | float = 0.0,
        decides: bool = True,
    ) -> None:
        """left ≤ right, but for rounding, in the rounds ``where``; ``slip`` is what rounding may add besides."""
        rounds = self.round[where].astype(int)
        if len(rounds) == 0:
            return
        slack = np.broadcast_to(slip, left.shape)[where]
        left, right = left[where], right[where]
        bad = np.flatnonzero(~(left <= right * (1 + tolerance) + slack))
        tight = np.where(right > 0, left / right, -1.0)
        place = int(bad[0]) if len(bad) else int(np.argmax(tight) if (right > 0).any() else np.argmax(left))
        broken = int(rounds[place]) if len(bad) else None
        sides = (float(left[place]), float(right[place]), int(rounds[place]))
        self.checks.append(Check(name, statement, *sides, len(rounds), broken, len(bad) / len(rounds), decides))

    def certificate(self) -> Certificate:
        k, tau, seen = self.kappa, self.tau, self.seen
        steps = self.stepped & seen
        same_rule = self._protocol(steps)
        transformed = np.array([phi(f, k, tau) if np.isfinite(f) else np.nan for f in self.mean_loss.tolist()])
        gap = np.abs(self.objective - (transformed + k * self.dispersion))
        self.check("eq. 6", "|Φ_R − φ(F_R) − κD_τ| ≤ 0", gap, 0 * gap, seen, slip=1e-12 * (1 + transformed))
        low, high = bounds.sandwich(self.variance, tau, self.largest_loss)
        rounding = 1e-15 * (1 + self.largest_loss) ** 2 / tau
        self.check("eq. 7, lower", "τ/2(B+τ)² Var_R ≤ D_τ", low, self.dispersion, seen, slip=rounding)
        self.check("eq. 7, upper", "D_τ ≤ Var_R/2τ", self.dispersion, high, seen, slip=rounding)
        self._lemma1(seen)
        some = steps & ~np.isnan(self.moved) & (self.poisoned > 0)
        slip = self.tolerance * (self.own_direction + self.poisoned_reach)
        far = self.poisoned_share * self.poisoned_reach
        statement = "‖d − d_R‖ ≤ δ_eff max ‖∇f̃_i − d_R‖"
        self.check("Lemma 2, as weighted", statement, self.moved, far, some, tolerance=self.tolerance, slip=slip)
        some = steps & ~np.isnan(self.distrust)
        slip = self.tolerance * self.regular_gradient
        cost = 2 * self.distrust * self.regular_gradient
        self.check(
            "distrust", "‖d_R − d_R⁰‖ ≤ 2ηG", self.distrust_moved, cost, some, tolerance=self.tolerance, slip=slip
        )
        if same_rule:
            radius = self.delta * bounds.attack_radius(1.0, k, self._pull(), self.regular_gradient)
            slip = self.tolerance * self.direction
            statement = "‖e‖ ≤ δ[(1+κ)A + 2κG]"
            self.check("Lemma 2", statement, self.error, radius, steps, tolerance=self.tolerance, slip=slip)
        static = not self.premises["not_static"]
        L = _top(np.fmax(self.secant, self.curvature)) if static else math.nan
        path = self._constants(L, _top(self.regular_gradient), _top(self.poisoned_distance) if self._any else 0.0)
        known = self._known()
        stationarity = math.nan
        if static:
            stationarity = self._across(steps, same_rule)
        held = all(
            check.holds for check in self.checks if check.name in ("Algorithm 1", "eq. 4, lower", "eq. 4, upper")
        )
        promised = static and held and known is not None and known.excess <= 1 + EXACT and self.diverged is None
        return Certificate(
            self.folder,
            self.premises,
            int(self.stepped.sum()),
            int((self.stepped & ~seen).sum()),
            self.diverged,
            self.checks,
            path,
            known,
            _top(self.step),
            stationarity,
            same_rule,
            promised,
            self.columns,
        )

    @property
    def _any(self) -> bool:
        return bool(self.poisoned.max() > 0)

    def _pull(self) -> Array:
        """A at each iterate; 0 where nobody who took part is poisoned."""
        return np.where(self.poisoned > 0, self.poisoned_distance, 0.0)

    def _protocol(self, steps: Rows) -> bool:
        """Was it FairMean at all: the direction, and the weights where the rule has some."""
        slip = self.tolerance * self.direction
        zero = np.zeros(len(self.round))
        self.check("Algorithm 1", "‖direction − (1/n) Σ a(f_i) g_i‖ ≤ 0", self.departure, zero, steps, slip=slip)
        some = steps & ~np.isnan(self.highest_weight)
        cap = np.full(len(self.round), 1 + self.kappa)
        self.check("eq. 4, lower", "1 ≤ a_i", zero + 1, self.lowest_weight, some)
        self.check("eq. 4, upper", "a_i ≤ 1 + κ", self.highest_weight, cap, some)
        return not self.checks or self.checks[0].share < 0.99

    def _lemma1(self, seen: Rows) -> None:
        """With Γ in closed form in every round, or measured where it was."""
        if not self.premises["cross_entropy"]:
            return
        gamma = self.premises["gamma"]
        Gamma = self.jacobian if gamma is None else np.full(len(self.round), gamma)
        where = seen & ~np.isnan(Gamma)
        options: dict[str, Any] = {"tolerance": self.tolerance, "decides": gamma is not None}
        self.check("Lemma 1, G", "‖∇f_i‖ ≤ √2 Γ", self.regular_gradient, bounds.gradient_bound(Gamma), where, **options)
        where = where & ~np.isnan(self.poisoned_distance)
        options["slip"] = self.tolerance * self.regular_gradient
        shift = bounds.poisoning_bound(0 * Gamma, self.rho, Gamma)
        far = bounds.poisoning_bound(self.clean_distance, self.rho, Gamma)
        self.check("Lemma 1, shift", "‖∇f̃_i − ∇f_i‖ ≤ √2 ρ Γ", self.relabelling_shift, shift, where, **options)
        self.check("Lemma 1, A", "‖∇f̃_i − ∇F_R‖ ≤ H + √2 ρ Γ", self.poisoned_distance, far, where, **options)

    def _constants(self, L: float, G: float, A: float) -> Constants:
        steps = self.stepped & self.seen
        smoothness = bounds.smoothness(self.kappa, self.tau, L, np.float64(G))
        radius = bounds.attack_radius(_top(self.delta), self.kappa, A, G)
        total = np.float64(self.step[steps].sum())
        bound = 2 * self.objective[self.seen][:1].sum() / total + np.float64(radius) ** 2
        if math.isnan(L):
            bound = math.nan
        excess = _top(self.step) * smoothness
        safe = np.float64(1.0) / smoothness
        return Constants(L, G, A, float(smoothness), float(safe), float(radius), float(bound), float(excess))

    def _known(self) -> Constants | None:
        """With Γ and L in closed form: no gradient of any client is longer than √2 Γ, so A ≤ 2√2 Γ."""
        if self.premises["gamma"] is None:
            return None
        G = bounds.gradient_bound(self.premises["gamma"])
        return self._constants(self.premises["smoothness"], G, 2 * G if self._any else 0.0)

    def _across(self, steps: Rows, same_rule: bool) -> float:
        """Smoothness, the step size, descent and Theorem 2; returns the average of ‖∇Φ_R‖².

        A step from row t leads to row t + 1: what is measured there is shifted, to stand in the row of the step.
        """
        k, tau = self.kappa, self.tau
        after = {name: np.append(self.columns[name][1:], np.nan) for name in ("objective_secant", "objective")}
        leads = steps & np.append(np.ones(len(steps) - 1, bool), False)
        curved = np.fmax(self.secant, self.curvature)
        L = np.fmax.accumulate(curved)
        G = np.fmax.accumulate(self.regular_gradient)
        L_next, G_next = (np.append(values[1:], np.nan) for values in (L, G))
        if self.premises["smoothness"] is not None:
            most = np.full(len(L), self.premises["smoothness"])
            statement = "‖Δ∇f_i‖/‖Δw‖, |λ(∇²f_i)| ≤ L"
            self.check("Assumption 1", statement, curved, most, ~np.isnan(curved), tolerance=1e-3)
        smooth = bounds.smoothness(k, tau, L_next, G_next)
        where = leads & ~np.isnan(after["objective_secant"])
        statement = "‖Δ∇Φ_R‖/‖Δw‖ ≤ (1+κ)L + (κ/τ)G²"
        self.check("L_Φ", statement, after["objective_secant"], smooth, where, tolerance=1e-3, decides=False)
        total = np.cumsum(np.where(steps, self.step, 0.0))
        average = np.cumsum(np.where(steps, self.step * self.gradient**2, 0.0)) / total
        if same_rule:
            excess = np.where(np.isfinite(after["objective"]), self.step * np.fmax(smooth, 0.0), np.inf)
            self.check("step size", "α L_Φ ≤ 1", excess, np.ones(len(L)), leads)
            change = np.where(np.isfinite(after["objective"]), after["objective"], np.inf) - self.objective
            promised = self.step / 2 * (self.gradient**2 - self.error**2)
            slip = LOSSES[self.premises["dtype"]] * (1 + np.abs(self.objective))
            statement = "α/2 (‖∇Φ_R‖² − ‖e‖²) ≤ Φ_R(w) − Φ_R(w⁺)"
            self.check("descent", statement, promised, -change, leads, slip=slip)
            far = np.fmax.accumulate(self._pull())
            radius = np.fmax.accumulate(self.delta) * bounds.attack_radius(1.0, k, far, G)
            bound = 2 * self.objective[0] / total + radius**2
            statement = "avg ‖∇Φ_R‖² ≤ 2Φ_R(w⁰)/(αT) + ε²"
            self.check("Theorem 2", statement, average, bound, steps, tolerance=self.tolerance)
        return float(average[steps][-1]) if steps.any() else math.nan


def _top(values: Array) -> float:
    """The largest figure there is; NaN if there is none."""
    some = values[~np.isnan(values)]
    return float(some.max()) if len(some) else math.nan
