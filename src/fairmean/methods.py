"""The registry of named methods, composition of any scale with any aggregator, and one round on bare tensors."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from fairmean.aggregators import AGGREGATORS, MIXINGS, Aggregator, State
from fairmean.errors import UserCodeError, UserError, unknown
from fairmean.hyper import hyper_parameters, typed
from fairmean.importing import failure
from fairmean.plugins import load_plugins
from fairmean.rounds import NO_ACCESS, Access, Method, merged
from fairmean.scales import SCALES


@dataclass(frozen=True)
class Named:
    """A method of the registry: which scale, which aggregator, and where it comes from."""

    scale: str
    aggregator: str
    reference: str
    when: str = ""

    @property
    def rule(self) -> type[Aggregator]:
        """The aggregator's class."""
        return AGGREGATORS[self.aggregator].rule

    @property
    def hyper(self) -> dict[str, Any]:
        """Hyper-parameters with their defaults."""
        return merged(map(hyper_parameters, (SCALES[self.scale], self.rule)))

    @property
    def equation(self) -> str:
        """The first lines of the docstrings of its parts: the rule itself."""
        parts: list[Any] = [SCALES[self.scale]] if self.scale != "none" else []
        if self.aggregator != "mean" or not parts:
            parts.append(self.rule)
        return "; ".join((part.__doc__ or "").strip().splitlines()[0].rstrip(".") for part in parts)


PAIRS = {
    "fairmean": Named(
        "fairmean",
        "mean",
        "Zheng, Zhang & Liu, FairMean",
        "Fairness with a cap on what a poisoned client can gain; its step is up to 1+κ times Mean's.",
    ),
    "fairmean-normalised": Named(
        "fairmean-normalised",
        "mean",
        "this project",
        "FairMean's weighting alone, at Mean's step size: for fair comparisons.",
    ),
    "fairmean-split": Named(
        "fairmean-split",
        "mean",
        "this project",
        "Fairness when poisoning is likely; clients need a classifier's entropy.",
    ),
    "qffl": Named(
        "qffl", "mean", "Li et al. 2020 (direct rule)", "Fairness without attack; its multiplier has no upper bound."
    ),
    "term-hierarchical": Named(
        "tilted",
        "term-counts",
        "Li et al. 2023",
        "Bad samples inside good clients: t_in < 0 drops them, t_out > 0 is fair.",
    ),
    "h-nobs": Named(
        "qffl",
        "norm-screening",
        "Zhou et al. 2023",
        "Fairness with a simple screen; it can drop the clients it should help.",
    ),
    "qffl+cwtm": Named(
        "qffl", "cwtm", "Li et al. 2020; Yin et al. 2018", "The paper's baseline; collapses when clients differ much."
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
    **hyper: Any,
) -> Method:
    """Any scale with any aggregator, after any pre-aggregations; hyper-parameters of all by name.

    >>> compose("fairmean", "cwtm", pre="nnm", kappa=2.0, f=1).hyper
    {'kappa': 2.0, 'tau': 1.0, 'f': 1}
    """
    load_plugins()
    pre = [pre] if isinstance(pre, str) else pre
    for kind, given, known in (
        ("scale", [scale], SCALES),
        ("aggregator", [aggregator], AGGREGATORS),
        ("pre", pre, MIXINGS),
    ):
        for one in given:
            if one not in known:
                raise unknown(kind, one, known)
    name = name or "+".join([scale, *pre, aggregator])
    classes: list[Any] = [SCALES[scale], *(MIXINGS[one] for one in pre), AGGREGATORS[aggregator].rule]
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
    return Method(name, parts[0], parts[-1], tuple(parts[1:-1]))


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
    known = named_methods()
    if name not in known:
        raise unknown("method", name, known)
    return compose(known[name].scale, known[name].aggregator, name=name, **hyper)


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
        return method(name, **hyper)
    scale, pre, aggregator = parts
    return compose(scale, aggregator, pre, **hyper)


class Aggregated(NamedTuple):
    """One round: the direction, the weight of each gradient in it (None if it is no weighted sum), the next state."""

    direction: Tensor
    weights: Tensor | None
    state: State


@overload
def aggregate(
    method: Method | str,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
    access: Access = NO_ACCESS,
    state: None = None,
    details: Literal[False] = False,
) -> Tensor: ...
@overload
def aggregate(
    method: Method | str,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
    access: Access = NO_ACCESS,
    state: State | None = None,
    details: bool = False,
) -> Tensor | Aggregated: ...
def aggregate(
    method: Method | str,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
    access: Access = NO_ACCESS,
    state: State | None = None,
    details: bool = False,
) -> Tensor | Aggregated:
    """The direction of one round from bare tensors: gradients n×d, losses n; then w ← w − lr·direction.

    ``method`` is a method, or a text such as "fairmean:kappa=4". ``access`` gives what a few rules need beside: layers
    (fedlf), output rows (lfighter), trial losses (fedmdfg), a clean loss (bant).

    >>> gradients = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> aggregate("fairmean:kappa=1", gradients, losses=torch.tensor([1.0, 0.0]))
    tensor([0.7500, 0.5000])

    **Memory.** Some rules remember something from round to round (centered-clipping, bant, fedmdfg). Without ``state``
    their memory is fresh, as in a first round. Pass ``state={}`` in the first round and what came back in the next
    ones; then, or with ``details=True``, the answer is (direction, weights, state):

    >>> direction, weights, state = aggregate("centered-clipping", gradients, torch.ones(2), state={})
    >>> direction, weights, state = aggregate("centered-clipping", gradients, torch.ones(2), state=state)
    """
    method = parse_method(method) if isinstance(method, str) else method
    if not isinstance(method, Method):
        raise UserError(f"method = {method!r}: pass a name such as 'fairmean:kappa=4', or fairmean.method('fairmean')")
    n = _check_tensors(method, gradients, losses, sizes, entropies)
    device = gradients.device
    sizes = torch.ones(n, device=device) if sizes is None else sizes
    method.check(n, access)
    outcome = method.combine(
        gradients,
        losses.detach().double(),
        sizes.double(),
        None if entropies is None else entropies.detach().double(),
        clients=torch.arange(n, device=device),
        lr=lr,
        state=state or method.init(n),
        access=access,
    )
    assert outcome.direction is not None
    if state is None and not details:
        return outcome.direction
    return Aggregated(outcome.direction, outcome.weights, outcome.state)


def _check_tensors(
    method: Method, gradients: Tensor, losses: Tensor, sizes: Tensor | None, entropies: Tensor | None
) -> int:
    """The number of clients; raises if something is missing, has another shape, or is not a number."""
    given = {"gradients": gradients, "losses": losses, "sizes": sizes, "entropies": entropies}
    for name, values in given.items():
        if values is not None and not isinstance(values, Tensor):
            raise UserError(f"{name}: expected a tensor, got a {type(values).__name__}; use torch.as_tensor")
    n = len(gradients) if gradients.dim() else 0
    if gradients.dim() != 2 or n == 0:
        raise UserError(
            f"gradients: expected n×d with n ≥ 1, got shape {tuple(gradients.shape)}; stack one row per client"
        )
    for name, values in given.items():
        if name != "gradients" and values is not None and values.shape != (n,):
            raise UserError(f"{name}: expected one number per client, shape ({n},), got {tuple(values.shape)}")
    if sizes is None and method.aggregator.needs_sizes:
        raise UserError(f"{method.name} weights clients by their sample counts; pass sizes=")
    if method.needs_entropy and entropies is None:
        raise UserError(f"{method.name} needs each client's mean predictive entropy; pass entropies=")
    good = gradients.isfinite().all(1) & losses.isfinite() & (losses >= 0)
    for values in (sizes, entropies):
        good &= True if values is None else values.isfinite()
    if sizes is not None:
        good &= sizes > 0
    if not good.all():
        client = int((~good).nonzero()[0])
        raise UserError(
            f"client {client} sent something NaN or infinite, a negative loss or no samples; drop it before aggregating"
        )
    return n
