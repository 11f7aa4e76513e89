"""Bad models: factories that fail, modules that give what cannot be trained, numbers from torch's global generator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.case import TINY, Case, given
from tests.fuzz.data import UNSHOWABLE

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"
GOOD = "return self.layer(x)"

# a forward pass by its body; self.layer is linear and right
FORWARDS = {
    "a number": "return self.layer(x).sum()",
    "three dimensions": "return self.layer(x)[:, None, :]",
    "a tuple": "return self.layer(x), x",
    "a dict": "return {'logits': self.layer(x)}",
    "nothing": "self.layer(x)",
    "a list": "return self.layer(x).tolist()",
    "one column": "return self.layer(x)[:, :1]",
    "one dimension": "return self.layer(x)[:, 0]",
    "half the rows": "return self.layer(x)[::2]",
    "the mean over samples": "return self.layer(x).mean(0, keepdim=True)",
    "classes first": "return self.layer(x).T",
    "classes instead of scores": "return self.layer(x).argmax(1)",
    "complex numbers": "return torch.complex(self.layer(x), self.layer(x))",
    "no gradient": "return self.layer(x).detach()",
}
GENERATORS = {
    "F.dropout": "return F.dropout(self.layer(x), 0.5, self.training)",
    "noise": "return self.layer(x) + torch.randn(len(x), 1)",
    "a draw of a number": "return self.layer(x) * float(torch.rand(()))",
    "F.alpha_dropout": "return F.alpha_dropout(self.layer(x), 0.5, True)",
    "noise in place": "return self.layer(x) + torch.empty(len(x), 1).normal_()",
}
RAISES = {
    "ValueError('no\\ngood')": "no good",
    "KeyError('lost')": "lost",
    "AttributeError('no such thing')": "no such thing",
    "IndexError('too far')": "too far",
    "ZeroDivisionError('by zero')": "by zero",
    "AssertionError": "AssertionError",
    "NotImplementedError": "NotImplementedError",
}


def _model(number: int | str, name: str, code: str, *says: str, words: tuple[str, ...] = (), **more: Any) -> Case:
    module = f"fuzz_model_{number}"
    files = {f"{module}.py": HEAD + code + "\n"}
    argv = [*more.pop("argv", ["run"]), *TINY, f"model.name={module}:make", *words]
    named = more.pop("who", "MODULE:make").replace("MODULE", module)
    return Case("model", name, given(argv, files), says=(named, *says), **more)


def _net(body: str, more: str = "") -> str:
    """A module whose forward pass has this body."""
    indented = body.replace("\n", "\n        ")
    return (
        "class Net(nn.Module):\n    calls = 0\n\n    def __init__(self, shape, classes):\n        super().__init__()\n"
        f"        self.layer = nn.Linear(shape[0], classes)\n{more}\n"
        f"    def forward(self, x):\n        {indented}\n\n\n"
        "def make(shape, classes):\n    return Net(shape, classes)"
    )


def handwritten() -> Iterator[Case]:
    """Each for a reason of its own."""
    number = iter(range(1000))

    def net(name: str, body: str, *says: str, more: str = "", **options: Any) -> Case:
        return _model(next(number), name, _net(body, more), *says, **options)

    def code(name: str, text: str, *says: str, **options: Any) -> Case:
        return _model(next(number), name, text, *says, **options)

    def returns(name: str, expression: str, *says: str, **options: Any) -> Case:
        return code(name, f"def make(shape, classes):\n    return {expression}", *says, **options)

    trial: dict[str, Any] = {"trial": True}
    yield returns("too few outputs", "nn.Linear(shape[0], classes - 1)", **trial)
    for name in ("a number", "three dimensions", "a tuple"):
        yield net(f"gives {name}", FORWARDS[name], **trial)
    yield returns("no parameters", "nn.Softmax(1)", **trial)
    later = "Net.calls += 1\nif Net.calls > 6:\n    raise IndexError('too far')\nreturn self.layer(x)"
    yield net("fails in a later forward pass", later, "too far", **trial)
    for what in ("nan", "inf"):
        yield net(
            f"gives {what} at once",
            f"return self.layer(x) * float('{what}')",
            never=("too large", "checkpoint is kept"),
            trial=what == "nan",
        )
    for name, body in FORWARDS.items():
        if name not in ("a number", "three dimensions", "a tuple"):
            yield net(f"gives {name}", body)
    yield net("gives a number, with the reference engine", FORWARDS["a number"], words=("train.engine=reference",))
    yield net("fails in a later forward pass, with local steps", later, "too far", words=("train.local_steps=2",))
    yield net("fails in a later forward pass, with a rule on messages", later, "too far", words=("method.name=median",))
    yield net(
        "gives NaN in a later forward pass",
        later.replace("raise IndexError('too far')", "return self.layer(x) * float('nan')"),
        who="",  # from outside it looks like a step too long
    )
    for raised, words in list(RAISES.items())[:3]:
        yield net(f"forward raises {raised}", f"raise {raised}", words)
    yield code("forward raises an error that cannot be shown", UNSHOWABLE + _net("raise Odd"))
    yield net("forward leaves", "import sys\nsys.exit(0)")
    yield returns("made for other inputs", "nn.Linear(7, classes)")
    yield returns("made for images", "nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, classes))")
    yield returns("batch norm", "nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))", "BatchNorm1d")
    yield returns("frozen", "nn.Linear(shape[0], classes).requires_grad_(False)")
    yield returns("complex parameters", "nn.Linear(shape[0], classes, dtype=torch.complex64)")
    yield returns("parameters on no device", "nn.Linear(shape[0], classes, device='meta')")
    yield returns("parameters NaN", "nn.utils.vector_to_parameters", "function")
    yield code(
        "parameters that are NaN",
        "def make(shape, classes):\n    model = nn.Linear(shape[0], classes)\n"
        "    nn.init.constant_(model.weight, float('nan'))\n    return model",
        never=("too large",),
    )
    for name, value in {
        "a text": "'a text'",
        "nothing": "None",
        "a list": "[nn.Linear(6, 3)]",
        "a class": "nn.Linear",
    }.items():
        yield returns(f"factory gives {name}", value)
    yield code("factory raises", "def make(shape, classes):\n    raise ValueError('no\\ngood')", "no good")
    yield code("factory wants more", "def make(shape, classes, width):\n    return nn.Linear(6, 3)", "width")
    yield code("factory wants a keyword", "def make(shape, classes, *, width):\n    return nn.Linear(6, 3)", "width")
    yield code("factory leaves", "import sys\ndef make(shape, classes):\n    sys.exit(0)")
    yield code("factory is not there", "def other():\n    pass")
    yield code("factory is a number", "make = 3")
    yield code(
        "the module does not parse", "def make(:\n    pass", ".py", "5", who="MODULE", never=("frozen",), trial=True
    )
    yield code("the module fails", "1 / 0", "ZeroDivisionError", who="MODULE")
    for name in ("nosuchmodule:make", ":make", "json:", ":", "a b:c", "os:getcwd", "builtins:int", "json:nothing.here"):
        yield Case(
            "model", f"model.name={name}", given(["run", *TINY, f"model.name={name}"]), says=(name.split(":")[0],)
        )

    for name, body in GENERATORS.items():
        yield net(f"global random numbers: {name}", body)
    attention = "        self.attention = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)"
    yield net(
        "global random numbers: MultiheadAttention",
        "z = x[:, None, :]\nreturn self.layer(self.attention(z, z, z)[0][:, 0])",
        more=attention,
    )
    recurrent = "        self.memory = nn.LSTM(1, 6, num_layers=2, dropout=0.5, batch_first=True)"
    yield net("global random numbers: LSTM", "return self.layer(self.memory(x[:, :, None])[0][:, -1])", more=recurrent)
    for layer in ("AlphaDropout(0.5)", "FeatureAlphaDropout(0.5)", "RReLU()"):
        yield returns(
            f"global random numbers: {layer}",
            f"nn.Sequential(nn.Linear(shape[0], 8), nn.{layer}, nn.Linear(8, classes))",
        )
    yield code(
        "advise with a model of too few outputs",
        "def make(shape, classes):\n    return nn.Linear(shape[0], 1)",
        argv=["advise"],
    )
    yield code("advise with a model that raises", _net("raise KeyError('lost')"), "lost", argv=["advise"])


def drawn(draw: random.Random, number: int) -> Case:
    """A wrong output, an error or global random numbers, at some forward pass, in some mode of training."""
    words = draw.choice(
        [(), ("train.batch=8",), ("train.local_steps=2",), ("train.engine=reference",), ("theory=true",)]
    )
    method = draw.choice(["mean", "fairmean", "fairmean-split", "term", "krum:f=1", "cwtm:f=1", "fedmgda+"])
    name, *hyper = method.split(":")
    words = (*words, f"method.name={name}", *(f"method.{setting}" for setting in hyper))
    what, body, says = draw.choice(
        [(f"gives {key}", value, ()) for key, value in FORWARDS.items()]
        + [(f"raises {key}", f"raise {key}", (value,)) for key, value in RAISES.items()]
        + [(f"global random numbers: {key}", value, ()) for key, value in GENERATORS.items()]
    )
    if says and draw.random() < 0.7:
        calls = draw.randrange(1, 7)
        body = f"Net.calls += 1\nif Net.calls > {calls}:\n    {body}\n{GOOD}"
        what = f"{what} after {calls} forward passes"
    return _model(f"drawn_{number}", f"{what}, {' '.join(words)}", _net(body), *says, words=words)
