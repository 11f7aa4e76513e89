"""What the server makes of a reply before it believes it: numbers of the right form, or a refusal with a reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fairmean.flower.wire import ANSWER, CLIENTS, MESSAGE, REFUSED, SHOWN, SIDE, STATISTICS, Layout, Order
from fairmean.rules.round import State

_HEADER = 4096  # bytes that an array may take beside its numbers


class Refused(Exception):
    """Why a reply is not used; ``figures`` is what may be said of it where clients tell their numbers."""

    def __init__(self, reason: str, figures: str = "") -> None:
        super().__init__(reason)
        self.figures = figures


def in_words(refused: Refused, report: str) -> str:
    """The reason, with the client's own numbers only where they may leave it."""
    return f"{refused} ({refused.figures})" if refused.figures and report == CLIENTS else str(refused)


def printable(text: str) -> str:
    """A text that somebody else made, on one line of at most 300 characters that can be written everywhere."""
    plain = text[:600].encode("utf-8", "backslashreplace").decode()
    return "".join(character if character.isprintable() else " " for character in plain)[:300]


class NotFinite(Refused):
    """A number in it is NaN or infinite; where that is so of every client, the model has diverged."""


@dataclass(frozen=True)
class Bounds:
    """What is believed of a client at most; None: any finite number."""

    norm: float | None = None
    size: int | None = None


@dataclass(frozen=True)
class Form:
    """What replies must look like: the numbers of the clients by name, the model's layout, the shapes of side sums and
    between which numbers they lie, the names of what clients may tell about themselves, whether a client may be out of
    a round, the largest scale, and what is believed at most.
    """

    places: Mapping[str, int]
    layout: Layout
    side: Mapping[str, torch.Size]
    side_bounds: Mapping[str, tuple[float, float]]
    shown: Collection[str]
    may_be_out: bool
    largest_scale: float
    bounds: Bounds


@dataclass(frozen=True)
class Accepted:
    """What a client sent, checked. ``message`` is None for a client that is out of the round or was only measured.

    A number that was not asked for is NaN, and a size that was not is 1.
    """

    client: int
    node: int
    message: Tensor | None
    loss: float = math.nan
    scale: float = math.nan
    size: float = 1.0
    accuracy: float = math.nan
    inside: float = math.nan
    shown: Mapping[str, float] = field(default_factory=dict)
    side: State = field(default_factory=dict)


def examine(reply: Message, order: Order, form: Form) -> Accepted:
    """The reply to this order, if it is what it must be."""
    if reply.has_error():
        code, words = reply.error.code, _first_line(reply.error.reason)
        if code == REFUSED:  # a sentence of ours
            raise Refused(f"error reply: {words}")
        raise Refused(f"error reply (code {code}), of which the client's own log says more", words)
    if not reply.has_content():
        raise Refused("empty reply")
    content = reply.content
    name, sent = _answered(content, order, form.places)
    side = form.side
    allowed = {ANSWER, STATISTICS}
    allowed |= {MESSAGE} if sent else set()
    allowed |= {SIDE} if side and order.train else set()
    for extra in sorted(set(content) - allowed):
        raise Refused(f"unexpected record '{extra}'")
    if order.train and not sent and not form.may_be_out:
        raise Refused("sends no message, though this method leaves nobody out of a round")
    numbers = _statistics(content, order, form, sent)
    told = {name.removeprefix(SHOWN): numbers.pop(name) for name in list(numbers) if name.startswith(SHOWN)}
    message = None
    if sent:
        if MESSAGE not in content.array_records:
            raise Refused("says that it sends a message, and there is none")
        counted = 1.0 if order.scaled else numbers.get("scale", 1.0)
        message = _vector(content.array_records[MESSAGE], form.layout, form.bounds, counted)
    sides: State = {}
    if side and order.train:
        if SIDE not in content.array_records:
            raise Refused("the side sums are missing")
        sides = _sides(content.array_records[SIDE], side, form.side_bounds if sent else {})
        if not sent and any(bool(value.any()) for value in sides.values()):
            raise Refused("adds to the side sums, though it is out of the round")
    return Accepted(form.places[name], reply.metadata.src_node_id, message, side=sides, shown=told, **numbers)


def claimed(reply: Message) -> str:
    """Who a reply says that it is, true or not; '' if it does not say."""
    try:
        return str(reply.content.config_records[ANSWER]["client"])[:60]
    except (KeyError, ValueError):
        return ""


def _answered(content: RecordDict, order: Order, places: Mapping[str, int]) -> tuple[str, bool]:
    """Who answers, and whether a message comes with it; the answer must be to this very order."""
    if ANSWER not in content.config_records:
        raise Refused(f"the record '{ANSWER}' is missing")
    told = content.config_records[ANSWER]
    for key, kind in (("round", int), ("ticket", str), ("client", str), ("sent", bool)):
        if key not in told:
            raise Refused(f"'{key}' is missing in its answer")
        if type(told[key]) is not kind:
            raise Refused(f"'{key}' in its answer is not a {kind.__name__}")
    for key in sorted(set(told) - {"round", "ticket", "client", "sent"}):
        raise Refused(f"unexpected key '{key}' in its answer")
    if told["round"] != order.round:
        raise Refused(f"reply for round {told['round']!r}, not {order.round}")
    if told["ticket"] != order.ticket:
        raise Refused("replayed reply: it answers an earlier message")
    name = str(told["client"])
    if name not in places:
        raise Refused(f"claims to be client '{name[:60]}', who is none of the clients")
    if told["sent"] and not order.train:
        raise Refused("sends a message, though it was only asked to measure")
    return name, bool(told["sent"])


def _statistics(content: RecordDict, order: Order, form: Form, sent: bool) -> dict[str, float]:
    """The client's numbers: those that were asked for, and no others."""
    if STATISTICS not in content.metric_records:
        raise Refused(f"the record '{STATISTICS}' is missing")
    told: MetricRecord = content.metric_records[STATISTICS]
    bounds, shown = form.bounds, form.shown
    needed: set[str] = set()
    if order.report == CLIENTS:
        needed.add("loss")
    if order.train:
        needed |= ({"size"} if order.sizes else set()) | ({"scale"} if order.scales else set())
        needed |= {"inside"} if order.clip > 0 and sent else set()
    optional = {"accuracy", *(SHOWN + name for name in shown)} if order.report == CLIENTS and order.evaluate else set()
    for name in sorted(needed - set(told)):
        raise Refused(f"its {name} is missing")
    for name in sorted(set(told) - needed - optional):
        raise Refused(f"unexpected number '{name}'")
    numbers = {name: _number(name, value) for name, value in told.items()}
    size, scale = numbers.get("size", 1.0), numbers.get("scale", 1.0)
    if size <= 0 or size % 1:
        raise Refused("its size is not a positive whole number", f"{size:g}")
    if bounds.size is not None and size > bounds.size:
        raise Refused(f"its size is more than {bounds.size}", f"{size:g}")
    if numbers.get("loss", 0.0) < 0:
        raise Refused(f"negative loss {numbers['loss']:g}")
    if "scale" in numbers and (scale < 0 or (form.may_be_out and (scale != 0) != sent)):
        raise Refused(f"its scale is wrong for a reply with{'' if sent else 'out'} a message", f"{scale:g}")
    if scale > form.largest_scale * (1 + 1e-6):
        raise Refused(f"its scale is more than {form.largest_scale:g}, which is the method's largest", f"{scale:g}")
    figure = numbers.get("accuracy", 0.0)
    if figure < 0 or (figure > 100 and order.task != "regression"):
        raise Refused(f"accuracy {figure:g}: not a percentage")
    if numbers.get("inside", 0.0) not in (0.0, 1.0):
        raise Refused(f"inside {numbers['inside']:g}: not 0 or 1")
    return numbers


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"its {name} is not a number")
    if not math.isfinite(value):
        raise NotFinite(f"its {name} is {value}")
    return float(value)


def _vector(record: ArrayRecord, layout: Layout, bounds: Bounds, counted: float) -> Tensor:
    """The message as one vector, which the server multiplies by ``counted``."""
    _same_names(set(record), set(layout.names))
    parts = {}
    for name in layout.names:
        parts[name] = torch.from_numpy(_array(name, record[name], layout.shapes[name], layout.dtypes[name]))
        if not parts[name].isfinite().all():
            raise NotFinite(f"'{name}' has values that are NaN or infinite")
    vector = layout.joined(parts)
    norm = float(vector.double().norm())
    if not math.isfinite(norm):
        raise Refused("the norm of its message is not finite")
    if bounds.norm is not None and max(1.0, counted) * norm > bounds.norm:
        raise Refused(f"the norm of its message is more than {bounds.norm:g}", f"{max(1.0, counted) * norm:.4g}")
    return vector


def _sides(record: ArrayRecord, shapes: Mapping[str, torch.Size], bounds: Mapping[str, tuple[float, float]]) -> State:
    _same_names(set(record), set(shapes))
    sides = {}
    for name, shape in shapes.items():
        values = torch.from_numpy(_array(name, record[name], tuple(shape), np.dtype(np.float64)))
        if not values.isfinite().all():
            raise Refused(f"the side sum '{name}' has values that are NaN or infinite")
        low, high = bounds.get(name, (-math.inf, math.inf))
        if not bool(((values >= low) & (values <= high)).all()):
            raise Refused(f"the side sum '{name}' has values outside [{low:g}, {high:g}]")
        sides[name] = values
    return sides


def _same_names(told: set[str], wanted: set[str]) -> None:
    for name in sorted(wanted - told):
        raise Refused(f"the array '{name}' is missing")
    for name in sorted(told - wanted):
        raise Refused(f"unexpected array '{name[:60]}'")


def _array(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array, if it is what it says and what it must be; nothing larger is read."""
    if tuple(array.shape) != tuple(shape):
        raise Refused(f"'{name}' has shape {tuple(array.shape)}, not {tuple(shape)}")
    if str(array.dtype) != str(dtype):
        raise Refused(f"'{name}' is of {array.dtype}, not of {dtype}")
    if len(array.data) > _HEADER + math.prod(shape) * dtype.itemsize:
        raise Refused(f"'{name}' has {len(array.data)} bytes, more than its shape needs")
    try:
        values = np.array(array.numpy())
    except (Exception, MemoryError) as error:  # whatever numpy says of bytes that are not an array
        raise Refused(f"'{name}' cannot be read ({type(error).__name__})") from None
    if values.shape != tuple(shape) or values.dtype != dtype:
        raise Refused(f"'{name}' holds {values.dtype} of shape {values.shape}, and says something else")
    return values


def _first_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "no reason").strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason")[:300]
