"""Bad rules, scales and pre-aggregations of the user's own, registered by a module that --import names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.case import TINY, Case, given
from tests.fuzz.data import UNSHOWABLE
from tests.fuzz.models import RAISES

HEAD = (
    "from dataclasses import dataclass\nimport torch\nimport fairmean\n"
    "from fairmean.rules import Aggregator, Mixing, register_mixing\n\n"
)
N = "len(round.sizes)"
RIGHT = f"torch.full(({N},), 1 / {N}, dtype=torch.float64)"

# what weights() may wrongly return
WEIGHTS = {
    "one too many": f"torch.ones({N} + 1, dtype=torch.float64)",
    "one too few": f"torch.ones({N} - 1, dtype=torch.float64)",
    "a column": f"torch.ones({N}, 1, dtype=torch.float64)",
    "a matrix": f"torch.ones({N}, {N}, dtype=torch.float64)",
    "a list": f"[1.0] * {N}",
    "nothing": "None",
    "a whole number": "1",
    "a text": "'mean'",
    "a dict": "{}",
    "a single tensor": "torch.tensor(0.25, dtype=torch.float64)",
    "no numbers": "torch.ones(0, dtype=torch.float64)",
    "NaN": f"torch.full(({N},), float('nan'), dtype=torch.float64)",
    "infinity": f"torch.full(({N},), float('inf'), dtype=torch.float64)",
    "one NaN": f"torch.tensor([float('nan')] + [1.0] * ({N} - 1), dtype=torch.float64)",
    "complex numbers": f"torch.ones({N}, dtype=torch.complex128)",
    "a tensor on no device": f"torch.ones({N}, dtype=torch.float64, device='meta')",
}
DIRECTIONS = {
    "short": "round.messages.mean(0)[:-1]",
    "long": "torch.cat([round.messages.mean(0), torch.zeros(1)])",
    "every message": "round.messages",
    "a row": "round.messages.mean(0, keepdim=True)",
    "a number": "round.messages.mean()",
    "nothing": "None",
    "a list": "round.messages.mean(0).tolist()",
    "NaN": "round.messages.mean(0) * float('nan')",
    "infinity": "round.messages.mean(0).abs() + float('inf')",
    "complex numbers": "round.messages.mean(0) * 1j",
}
SCALED = {
    "one too many": "torch.ones(len(losses) + 1, dtype=torch.float64)",
    "a column": "losses[:, None]",
    "a list": "losses.tolist()",
    "nothing": "None",
    "a text": "'mean'",
    "NaN": "losses * float('nan')",
    "infinity": "losses / 0",
    "complex numbers": "losses * 1j",
}
ABOVE = {
    "SumRule": ("losses", "gram", "messages", "squared_norms"),
    "LossRule": ("gram", "messages", "squared_distances"),
    "GramRule": ("messages", "output", "layers"),
}


class Rules:
    """Numbers the modules and the rules in them."""

    def __init__(self, start: str = "") -> None:
        self.start, self.count = start, 0

    def module(self, what: str, code: str, *says: str, word: str = "rule", **more: Any) -> Case:
        """A case whose module registers NAME, whatever the code says it is."""
        self.count += 1
        module, name = f"fuzz_{word}_{self.start}{self.count}", f"bad-{word}-{self.start}{self.count}"
        code = HEAD + code.replace("NAME", name) + "\n"
        method = {"rule": name, "scale": f"{name}+mean", "mixing": f"none+{name}+krum"}[word]
        method = more.pop("method", method).replace("NAME", name)
        words = [f"method.name={method}", *more.pop("words", ())]
        argv = ["run", *TINY, "--import", module, *words]
        if "methods" in more:
            argv = ["compare", *TINY, "--import", module, "--attacks", "none", "--methods"]
            argv.append(more.pop("methods").replace("NAME", name))
            if "together" in more:
                argv += ["--together", str(more.pop("together"))]
        if "argv" in more:
            argv = [*more.pop("argv"), "--import", module]
        named = tuple(text.replace("NAME", name).replace("MODULE", module) for text in says or ("NAME",))
        return Case("rule", f"{word} {what}", given(argv, {f"{module}.py": code}), says=named, **more)

    def rule(self, what: str, body: str, *says: str, base: str = "LossRule", head: str = "", **more: Any) -> Case:
        """A rule with this body."""
        return self.module(what, head + rule(body, base), "NAME", *says, **more)

    def weights(self, what: str, value: str, **more: Any) -> Case:
        """A rule that returns this."""
        return self.rule(what, f"def weights(self, round):\n    return {value}", **more)


def rule(body: str, base: str = "LossRule") -> str:
    """A rule's class."""
    indented = "\n".join(f"    {line}" for line in body.split("\n"))
    return (
        "@fairmean.register('NAME', reference='a user')\n@dataclass(frozen=True)\n"
        f"class Bad(fairmean.{base}):\n    '''Bad.'''\n\n{indented}\n"
    )


def after(calls: int, function: str, bad: str, right: str) -> str:
    """A function of a rule that goes wrong after so many calls."""
    counted = f"CALLS.append(1)\n    if len(CALLS) > {calls}:\n        {bad}"
    return f"def {function}(self, round):\n    {counted}\n    return {right}"


def scale(value: str) -> str:
    """A scale's class, by what it returns or does."""
    return (
        "@fairmean.register_scale('NAME')\n@dataclass(frozen=True)\nclass Bad(fairmean.Scale):\n    '''Bad.'''\n\n"
        f"    def __call__(self, losses, means, context):\n        {value}\n"
    )


def mixing(value: str) -> str:
    """A pre-aggregation's class, by what it returns or does."""
    return (
        "@register_mixing('NAME')\n@dataclass(frozen=True)\nclass Bad(Mixing):\n    '''Bad.'''\n\n"
        f"    def matrix(self, gram):\n        {value}\n"
    )


def handwritten() -> Iterator[Case]:
    """Each for a reason of its own."""
    make = Rules()
    trial: dict[str, Any] = {"trial": True}
    for what in ("one too many", "a list", "nothing", "a column"):
        yield make.weights(f"gives {what}", WEIGHTS[what], **trial)
    yield make.weights("gives NaN", WEIGHTS["NaN"], never=("too large",), **trial)
    coordinates: dict[str, Any] = {"base": "CoordinateRule"}
    short = "def direction(self, round):\n    return " + DIRECTIONS["short"]
    yield make.rule("gives a short direction", short, **coordinates, **trial)
    raises = "def weights(self, round):\n    raise ValueError('no\\ngood')"
    yield make.rule("raises", raises, "no good", **trial)
    beside: dict[str, Any] = {"codes": frozenset({1}), "table": ("mean", "fedavg"), "methods": "mean,NAME,fedavg"}
    yield make.rule("raises beside good methods", raises, "no good", **beside, **trial)
    syntax = make.module(
        "in a module that does not parse", "def f(:\n    pass\n", "MODULE", ".py", "6", never=("frozen",), **trial
    )
    yield syntax

    for what, value in WEIGHTS.items():
        if what not in ("one too many", "a list", "nothing", "a column", "NaN"):
            never = ("too large",) if what in ("infinity", "one NaN") else ()
            yield make.weights(f"gives {what}", value, never=never)
    for what in ("one too many", "nothing", "NaN"):
        yield make.weights(f"on inner products gives {what}", WEIGHTS[what], base="GramRule")
        yield make.weights(f"on the sum gives {what}", WEIGHTS[what], base="SumRule")
    for what, value in DIRECTIONS.items():
        if what != "short":
            never = ("too large",) if what in ("NaN", "infinity") else ()
            yield make.rule(
                f"direction is {what}", f"def direction(self, round):\n    return {value}", never=never, **coordinates
            )
    for what in ("NaN", "one too few", "nothing"):
        yield make.weights(f"gives {what} beside good methods", WEIGHTS[what], **beside)
    yield make.rule("raises beside good methods, together", raises, "no good", **beside, together=3)
    yield make.rule("short direction beside good methods", short, **beside, **coordinates)
    later = after(2, "weights", "raise KeyError('lost')", RIGHT)
    yield make.rule("raises in a later round", later, "lost", head="CALLS = []\n\n\n")
    yield make.rule(
        "gives NaN in a later round",
        later.replace("raise KeyError('lost')", f"return {WEIGHTS['NaN']}"),
        head="CALLS = []\n\n\n",
        never=("too large",),
    )
    yield make.rule("raises an error that cannot be shown", "def weights(self, round):\n    raise Odd", head=UNSHOWABLE)
    yield make.rule("leaves", "def weights(self, round):\n    raise SystemExit(0)")
    yield make.rule("without weights", "q: float = 0.5")
    yield make.rule("recurses", "def weights(self, round):\n    return self.weights(round)", "RecursionError")
    yield make.rule("takes no round", f"def weights(self):\n    return {RIGHT}", "TypeError")
    for base, names in ABOVE.items():
        yield make.rule(
            f"{base} that looks at {names[0]}",
            f"def weights(self, round):\n    return round.{names[0]}",
            f"round.{names[0]}",
            base=base,
        )
    yield make.rule("misspells the losses", "def weights(self, round):\n    return round.lossses", "lossses")

    call = "def __call__(self, round, state):\n    return "
    yield make.rule("without a state in its result", f"{call}{RIGHT}")
    yield make.rule("with three results", f"{call}{RIGHT}, state, 3")
    yield make.rule("with nothing as state", f"{call}{RIGHT}, None")
    yield make.rule("with a list as state", f"{call}{RIGHT}, [1]")
    yield make.rule("with numbers as state", f"{call}{RIGHT}, {{'a': 1}}")
    yield make.rule("with numbers as first state", f"def init(self, n):\n    return {{'a': 1}}\n\n{call}{RIGHT}, state")
    yield make.rule("with nothing as first state", f"def init(self, n):\n    return None\n\n{call}{RIGHT}, state")
    yield make.rule("whose first state raises", "def init(self, n):\n    raise KeyError('lost')", "lost")
    yield make.rule(
        "whose check raises", f"def check(self, n):\n    raise KeyError('lost')\n\n{call}{RIGHT}, state", "lost"
    )
    yield make.rule(
        "whose hyper-parameters it refuses",
        "q: float = 0.5\n\ndef __post_init__(self):\n    raise KeyError('lost')",
        "lost",
    )

    yield make.rule("with a field without default", f"q: float\n\ndef weights(self, round):\n    return {RIGHT}", "q")
    yield make.rule(
        "with an unknown hyper-parameter",
        f"q: float = 1.0\n\ndef weights(self, round):\n    return {RIGHT}",
        "'p'",
        words=["method.p=1"],
    )
    plain = f"class Bad:\n    def weights(self, round):\n        return {RIGHT}\n"
    decorated = "@fairmean.register('NAME', reference='a user')\n"
    yield make.module("that is no dataclass", decorated + plain)
    yield make.module("that is a function", decorated + f"def bad(round):\n    return {RIGHT}\n")
    yield make.module(
        "without a rung",
        decorated
        + f"@dataclass(frozen=True)\nclass Bad(Aggregator):\n    def weights(self, round):\n        return {RIGHT}\n",
    )
    yield make.module("without a reference", "@fairmean.register('NAME')\n" + plain, "MODULE", "reference")
    yield make.module("with the decorator not called", "@fairmean.register\n" + plain, "MODULE", "reference")
    yield make.module(
        "with a list as default",
        decorated + "@dataclass(frozen=True)\nclass Bad(fairmean.LossRule):\n    q: list = []\n",
        "MODULE",
        "default",
    )
    yield make.module("in a module that fails", "1 / 0\n", "MODULE", "ZeroDivisionError")
    yield make.module("in a module that leaves", "raise SystemExit(0)\n", "MODULE")
    yield make.module("in a module that wants a package", "import nosuchpackage\n", "nosuchpackage")
    yield make.module(
        "registered under another name",
        rule(f"def weights(self, round):\n    return {RIGHT}").replace("NAME", "another-name-xyz"),
        "NAME",
    )
    for taken in ("mean", "fairmean", "krum"):
        code = rule(f"def weights(self, round):\n    return {RIGHT}").replace("NAME", taken)
        yield make.module(f"registered as {taken}", code, f"'{taken}'", method="mean")
    yield make.module(
        "registered as median, to be listed",
        rule(f"def weights(self, round):\n    return {RIGHT}").replace("NAME", "median"),
        "'median'",
        argv=["list", "methods"],
    )
    yield Case("rule", "in no module", given(["run", *TINY, "--import", "nosuchmodule"]), says=("nosuchmodule",))
    yield Case(
        "rule",
        "in a file instead of a module",
        given(["run", *TINY, "--import", "mine.py"], {"mine.py": ""}),
        says=("mine",),
    )
    yield Case("rule", "in a module without a name", given(["run", *TINY, "--import", ""]))
    yield Case("rule", "in a module of dots", given(["run", *TINY, "--import", "..x"]))

    for what, value in SCALED.items():
        never = ("too large",) if what in ("NaN", "infinity") else ()
        yield make.module(f"gives {what}", scale(f"return {value}"), word="scale", never=never)
    for method in ("NAME+krum", "NAME+cwtm"):
        yield make.module(
            f"gives a column, {method[5:]}",
            scale("return losses[:, None]"),
            word="scale",
            method=method,
            words=["method.f=1"],
        )
    yield make.module("raises", scale("raise KeyError('lost')"), "NAME", "lost", word="scale")
    yield make.module("wants no entropies but uses them", scale("return means['entropy'] * 2"), "NAME", word="scale")
    yield make.module("that is no dataclass", "@fairmean.register_scale('NAME')\nclass Bad:\n    pass\n", word="scale")
    yield make.module(
        "registered as fairmean",
        scale("return losses").replace("NAME", "fairmean"),
        "'fairmean'",
        word="scale",
        method="fairmean",
    )
    yield make.module(
        "raises beside good methods",
        scale("raise KeyError('lost')"),
        "NAME",
        word="scale",
        **beside | {"methods": "mean,NAME+mean,fedavg"},
    )
    krum: dict[str, Any] = {"word": "mixing", "words": ["method.f=1"]}
    yield make.module("raises", mixing("raise KeyError('lost')"), "NAME", "lost", **krum)
    yield make.module("gives a matrix too small", mixing("return gram[1:, 1:]"), **krum)
    yield make.module("gives NaN", mixing("return gram * float('nan')"), **krum)
    yield make.module("gives nothing", mixing("return None"), **krum)


def drawn(draw: random.Random, number: int) -> Case:
    """A wrong result or an error of a rule on some rung, in some mode of training, at once or later."""
    make = Rules(f"drawn{number}_")
    words = draw.choice(
        [
            [],
            ["train.batch=8"],
            ["train.local_steps=2"],
            ["train.engine=reference"],
            ["theory=true"],
            ["train.participation=0.5"],
        ]
    )
    base = draw.choice(["SumRule", "LossRule", "GramRule", "CoordinateRule"])
    function, values = ("direction", DIRECTIONS) if base == "CoordinateRule" else ("weights", WEIGHTS)
    right = "round.messages.mean(0)" if base == "CoordinateRule" else RIGHT
    says: tuple[str, ...] = ()
    if draw.random() < 0.4:
        raised, said = draw.choice(list(RAISES.items()))
        what, bad, says = f"raises {raised}", f"raise {raised}", (said,)
    else:
        kind = draw.choice(list(values))
        what, bad = f"gives {kind}", f"return {values[kind]}"
    calls = draw.choice([0, 0, 1, 3])
    body = after(calls, function, bad, right)
    never = ("too large",) if "NaN" in what or "infinity" in what else ()
    name = f"{base} {what} after {calls} rounds {' '.join(words)}".strip()
    return make.rule(name, body, *says, base=base, head="CALLS = []\n\n\n", words=words, never=never)
