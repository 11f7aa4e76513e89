"""The registry of named methods, and composition of any scale with any aggregator."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairmean.errors import UserCodeError, UserError, unknown
from fairmean.importing import failure
from fairmean.rules.aggregator import AGGREGATORS, Aggregator
from fairmean.rules.hyper import hyper_parameters, typed
from fairmean.rules.method import Method, merged
from fairmean.rules.mixing import MIXINGS
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.plugins import load_plugins
from fairmean.rules.scales import SCALES

USUAL = "cross-entropy"


@dataclass(frozen=True)
class Named:
    """A method of the registry: which scale, which aggregator, and where it comes from."""

    scale: str
    aggregator: str
    reference: str
    when: str = ""
    objective: str = USUAL

    @property
    def rule(self) -> type[Aggregator]:
        """The aggregator's class."""
        return AGGREGATORS[self.aggregator].rule

    @property
    def hyper(self) -> dict[str, Any]:
        """Hyper-parameters with their defaults."""
        return merged(map(hyper_parameters, (OBJECTIVES[self.objective], SCALES[self.scale], self.rule)))

    @property
    def equation(self) -> str:
        """The first lines of the docstrings of its parts: the rule itself."""
        parts = telling(self.objective, self.scale, [], self.aggregator)
        return "; ".join((part.__doc__ or "").strip().splitlines()[0].rstrip(".") for part in parts)


def telling(objective: str, scale: str, pre: Sequence[str], aggregator: str) -> list[Any]:
    """The classes whose docstrings say what a method does: its parts, without those that change nothing."""
    parts: list[Any] = [OBJECTIVES[objective]] if objective != USUAL else []
    parts += [SCALES[scale]] if scale != "none" else []
    parts += [MIXINGS[one] for one in pre]
    if aggregator != "mean" or not parts:
        parts.append(AGGREGATORS[aggregator].rule)
    return parts


PAIRS = {
    "fairmean": Named(
        "fairmean",
        "mean",
        "Zheng, Zhang & Liu, FairMean",
        "For fairness with a cap on what a poisoned client can gain. Its step is up to 1 + κ times Mean's.",
    ),
    "fairmean-normalised": Named(
        "fairmean-normalised",
        "mean",
        "this project",
        "To compare FairMean's weighting with other methods at an equal step size.",
    ),
    "fairmean-split": Named(
        "fairmean-split",
        "mean",
        "this project",
        "For fairness when poisoning is likely. The model must be a classifier, whose predictions have an entropy.",
    ),
    "fairmean-recess": Named(
        "fairmean-recess",
        "mean",
        "this project",
        "For fairness where clients own classes and some may be poisoned: classifiers, and at least four clients.",
        objective="recess",
    ),
    "qffl": Named(
        "qffl",
        "mean",
        "Li et al. 2020 (direct rule)",
        "For fairness when all labels can be trusted: its weight has no bound.",
    ),
    "term-hierarchical": Named(
        "none",
        "term-counts",
        "Li et al. 2023",
        "For good clients with some bad samples: t_in < 0 drops these, and t_out > 0 is fair between clients.",
        objective="tilted",
    ),
    "fednoro": Named(
        "none",
        "distance-aware",
        "Wu et al. 2023 (without its distillation)",
        "When some clients' labels are noisy and the server may see every client's losses class by class.",
        objective="logit-adjusted",
    ),
    "antiflipper": Named(
        "none",
        "accuracy-trust",
        "Rahman et al. 2025",
        "Against flipped labels when clients are alike: it trusts those whose accuracy is above the mean.",
        objective="scored",
    ),
    "h-nobs": Named(
        "qffl",
        "norm-screening",
        "Zhou et al. 2023",
        "For fairness with a simple screen. It can drop the very clients that it should help.",
    ),
    "qffl+cwtm": Named(
        "qffl",
        "cwtm",
        "Li et al. 2020; Yin et al. 2018",
        "As a baseline of the paper. It collapses when clients differ much.",
    ),
}


AGGREGATORS.reserved = frozenset(PAIRS)


def named_methods() -> dict[str, Named]:
    """Every method by name: the named pairs, and each named aggregator on its own."""
    load_plugins()
    return PAIRS | {
        name: Named("none", name, entry.reference, entry.when) for name, entry in AGGREGATORS.items() if entry.named
    }


def decompose(name: str) -> tuple[str, list[str], str] | None:
    """``scale+pre+…+aggregator`` as its parts; None if it is not such a name.

    >>> decompose("fairmean+nnm+fedmgda+")
    ('fairmean', ['nnm'], 'fedmgda+')
    """
    for scale in SCALES:
        rest = name.removeprefix(scale + "+")
        pre: list[str] = []
        while rest != name:
            if rest in AGGREGATORS:
                return scale, pre, rest
            mixing = next((m for m in MIXINGS if rest.startswith(m + "+")), None)
            if mixing is None:
                break
            pre.append(mixing)
            rest = rest.removeprefix(mixing + "+")
    return None


def compose(
    scale: str = "none",
    aggregator: str = "mean",
    pre: str | Sequence[str] = (),
    name: str | None = None,
    objective: str = USUAL,
    **hyper: Any,
) -> Method:
    """Any objective and scale with any aggregator, after any pre-aggregations; hyper-parameters of all by name.

    >>> compose("fairmean", "cwtm", pre="nnm", kappa=2.0, f=1).hyper
    {'kappa': 2.0, 'tau': 1.0, 'f': 1}
    """
    load_plugins()
    pre = [pre] if isinstance(pre, str) else pre
    for kind, given, known in (
        ("objective", [objective], OBJECTIVES),
        ("scale", [scale], SCALES),
        ("aggregator", [aggregator], AGGREGATORS),
        ("pre", pre, MIXINGS),
    ):
        for one in given:
            if one not in known:
                raise unknown(kind, one, known)
    name = name or "+".join([scale, *pre, aggregator])
    classes: list[Any] = [
        OBJECTIVES[objective], SCALES[scale], *(MIXINGS[one] for one in pre), AGGREGATORS[aggregator].rule
    ]  # fmt: skip
    defaults = merged(map(hyper_parameters, classes))
    for cls in classes:
        for key, value in hyper_parameters(cls).items():
            if value != defaults[key] and key not in hyper:
                raise UserError(f"{name}: two of its parts have '{key}', with different defaults; set {key}")
    for key in hyper:
        if key not in defaults:
            if not defaults:
                raise UserError(f"unknown hyper-parameter '{key}' of {name}: it has none")
            raise unknown(f"hyper-parameter of {name}", key, defaults)
    given_values = {key: typed(name, key, value, defaults[key]) for key, value in hyper.items()}
    parts = [
        _made(name, cls, {key: given_values[key] for key in hyper_parameters(cls) if key in given_values})
        for cls in classes
    ]
    return Method(name, parts[1], parts[-1], tuple(parts[2:-1]), parts[0])


def _made(name: str, cls: Any, hyper: dict[str, Any]) -> Any:
    """A part of a method, with these hyper-parameters; an error in the user's own class names it."""
    try:
        return cls(**hyper)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"rule '{name}' ({cls.__name__}) failed ({failure(error)})") from error


def method(name: str, **hyper: Any) -> Method:
    """A method of the registry, by name.

    >>> method("fairmean", kappa=4).scale
    FairMean(kappa=4.0, tau=1.0)
    """
    return _named(name, hyper)


def _named(name: str, given: dict[str, Any]) -> Method:
    known = named_methods()
    if name not in known:
        raise unknown("method", name, known)
    return _assembled(name, known[name].scale, [], known[name].aggregator, known[name].objective, given)


def _assembled(
    name: str, scale: str, pre: Sequence[str], aggregator: str, objective: str, given: dict[str, Any]
) -> Method:
    """These parts, with what is given beside them put in their place; the rest of it are hyper-parameters."""
    parts = {"scale": scale, "pre": pre, "aggregator": aggregator}
    if "name" in given:
        raise UserError(f"unknown hyper-parameter 'name' of {name}: a method's name comes first, without a key")
    own = {key: given[key] for key in parts if key in given}
    hyper = {key: value for key, value in given.items() if key not in (*parts, "objective")}
    return compose(**parts | own, name=None if own else name, objective=given.get("objective", objective), **hyper)


def parse_method(text: str) -> Method:
    """A method from a text such as ``fairmean``, ``fairmean:kappa=4`` or ``fairmean+nnm+cwtm:f=1``.

    >>> parse_method("fairmean:kappa=4").scale
    FairMean(kappa=4.0, tau=1.0)
    """
    name, *settings = text.split(":")
    hyper: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"method '{text}': '{setting}' is not key=value; write {name}:key=value:key=value")
        try:
            hyper[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            hyper[key] = value
    parts = decompose(name) if name not in named_methods() else None
    if parts is None:
        return _named(name, hyper)
    return _assembled(name, *parts, USUAL, hyper)
