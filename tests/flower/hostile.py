"""A client that sends every kind of malformed message, one after the other."""

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fairmean.flower.client import answer
from tests.flower import mini

ROUNDS = 20
HOSTILE = (2, 3)


def _message(change):
    def apply(content, order):
        name = sorted(content["message"])[0]
        content["message"] = change(content["message"], name, content["message"][name].numpy())

    return apply


def _number(**values):
    def apply(content, order):
        content["statistics"] = MetricRecord({**dict(content["statistics"]), **values})

    return apply


def _answer(**values):
    def apply(content, order):
        content["fairmean"] = ConfigRecord({**dict(content["fairmean"]), **values})

    return apply


def _without(record, key):
    def apply(content, order):
        kept = {name: value for name, value in content[record].items() if name != key}
        content[record] = type(content[record])(kept)

    return apply


def _drop(record):
    def apply(content, order):
        del content[record]

    return apply


def _more(content, order):
    content["extra"] = MetricRecord({"x": 1.0})


def _put(record, name, value):
    return ArrayRecord({**dict(record), name: value})


def _float(value):
    return lambda r, name, x: _put(r, name, Array(np.full_like(x, value)))


def _spoiled(record, name, x):
    array = Array(x)
    return _put(record, name, Array(str(x.dtype), tuple(x.shape), array.stype, array.data[: len(array.data) // 2]))


def _oversized(record, name, x):
    array = Array(x)
    return _put(record, name, Array(str(x.dtype), tuple(x.shape), array.stype, array.data + b"\0" * 10_000))


def _lying(record, name, x):
    """Says that it has the right shape, and holds another."""
    return _put(record, name, Array(str(x.dtype), tuple(x.shape), Array(x).stype, Array(x[..., :1]).data))


def _nan(record, name, x):
    return _put(record, name, Array(np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x).astype(x.dtype)))


def _inf(record, name, x):
    return _put(record, name, Array(np.where(np.arange(x.size).reshape(x.shape) == 0, np.inf, x).astype(x.dtype)))


def _stays_away(content, order):
    """Counts as a reply, and brings nothing."""
    del content["message"]
    _answer(sent=False)(content, order)


KINDS = {
    "NaN or infinite": _message(_nan),
    "are NaN or infinite": _message(_inf),
    "has shape": _message(lambda r, name, x: _put(r, name, Array(x[..., :1]))),
    "is of float64": _message(lambda r, name, x: _put(r, name, Array(x.astype(np.float64)))),
    "is missing": _message(lambda r, name, x: ArrayRecord({k: v for k, v in r.items() if k != name})),
    "unexpected array": _message(lambda r, name, x: _put(r, "backdoor", Array(x))),
    "norm of its message is": _message(_float(1e6)),
    "cannot be read": _message(_spoiled),
    "more than its shape needs": _message(_oversized),
    "says something else": _message(_lying),
    "reply for round": _answer(round=99),
    "'ticket' is missing": _without("fairmean", "ticket"),
    "none of the clients": _answer(client="mallory"),
    "is not a bool": _answer(sent=1),
    "negative loss": _number(loss=-1.0),
    "its loss is nan": _number(loss=math.nan),
    "its loss is missing": _without("statistics", "loss"),
    "not a positive whole number": _number(size=-5),
    "its size is more than": _number(size=10**9),
    "unexpected number": _number(bonus=1.0),
    "its scale is wrong": _number(scale=-2.0),
    "the method's largest": _number(scale=1e30),
    "leaves nobody out": _stays_away,
    "not a percentage": _number(accuracy=250.0),
    "is not a number": _number(loss=[1.0, 2.0]),
    "unexpected record": _more,
    "the record 'statistics' is missing": _drop("statistics"),
    "there is none": _drop("message"),
}
"""What becomes of an honest reply, by words of the reason for which it must be refused."""
WHOLE = ("replayed reply", "error reply", "the record 'fairmean' is missing", "claims to be client '0'")
"""Kinds that are no change of the reply of the same round."""


def kind(number, t):
    """Which kind hostile client ``number`` sends in round t."""
    every = [*KINDS, *WHOLE]
    return every[(2 * t + number - HOSTILE[0]) % len(every)]


def reply(message, context, memory):
    """The honest reply of an honest client, and a spoiled one of a hostile one."""
    number = int(context.node_config["partition-id"])
    honest = answer(message, context, mini.make_model, mini.load_data, memory)
    if number not in HOSTILE:
        return honest
    order = message.content["fairmean"]
    t, content = int(order["round"]), honest.content
    which = kind(number, t)
    if which in KINDS and order["train"]:
        KINDS[which](content, order)
    elif which == "error reply":
        raise RuntimeError("the client's code fails")
    elif which == "the record 'fairmean' is missing":
        content = RecordDict()
    elif which == "claims to be client '0'":
        _answer(client="0")(content, order)
    else:
        _answer(ticket="0123456789abcdef")(content, order)
    return Message(content, reply_to=message)
