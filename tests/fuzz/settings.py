"""Bad settings on the command line, and bad config files."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from typing import Any

from fairmean.data.poisoning import ATTACKS
from fairmean.rules.named import named_methods
from fairmean.terminal import starter
from tests.fuzz.case import TINY, Case, Content, given

HUGE = str(2**70)
DIGITS = "9" * 5000  # more than Python turns into a number
BEYOND = "1" + "0" * 400  # a whole number that is no float

# the lowest that each takes
INTEGERS = {
    "seed": 0,
    "data.trust": 0,
    "partition.clients": 1,
    "partition.seed": 0,
    "partition.min_size": 1,
    "train.rounds": 1,
    "train.batch": 0,
    "train.local_steps": 1,
    "train.local_epochs": 0,
    "run.eval_every": 0,
    "run.eval_clients": 0,
}
FRACTIONS = ["attack.rho", "attack.fraction", "train.lr_decay", "train.participation"]
NONNEGATIVE = ["train.weight_decay", "train.proximal", "train.client_momentum"]
POSITIVE = ["partition.alpha", "train.lr", "train.local_lr", "method.tau"]
TEXTS = [
    "data.name",
    "data.path",
    "partition.name",
    "attack.name",
    "attack.pick",
    "model.name",
    "method.name",
    "train.schedule",
    "train.device",
    "train.dtype",
    "train.engine",
    "run.name",
    "run.dir",
]
NO_NUMBER = ["much", "true", "[1]", "{a=1}", '"0.5"', "2020-01-01", "[]", "''"]
NO_TEXT = ["1", "true", "nan", "1.5", "{a=1}", "[1]", "2020-01-01"]


def handwritten() -> Iterator[Case]:
    """Each for a reason of its own."""
    yield from _trial()
    yield from _settings()
    yield from _files()


def _setting(name: str, *words: str, says: tuple[str, ...] = (), **more: Any) -> Case:
    return Case("settings", name, given(["run", *TINY, *words]), says=says, **more)


def _file(name: str, content: Content, says: tuple[str, ...] = ("my.toml",), verb: str = "run", **more: Any) -> Case:
    return Case("config", name, given([verb, "my.toml", *TINY], {"my.toml": content}), says=says, **more)


def _trial() -> Iterator[Case]:
    new: dict[str, Any] = {"trial": True}
    yield _setting("rounds=3", "rounds=3", says=("rounds", "train.rounds"), never=("'run'",), **new)
    yield _setting("train=3", "train=3", says=("train",), never=("train.name",), **new)
    yield _setting(
        "gradient_decay, of which there is none",
        "train.gradient_decay=0.1",
        says=("gradient_decay",),
        never=("lr_decay'?", "weight_decay'?"),
        **new,
    )
    alpha = ["partition.name=dirichlet", "partition.min_size=2", "partition.alpha=1e308"]
    yield _setting("alpha that overflows", *alpha, says=("alpha",), never=("use a larger",), **new)
    marked = "\ufeffseed = 1\n"
    yield _file("a byte-order mark alone is no mistake", marked, (), codes=frozenset({0}), table=(), **new)
    yield _file("a byte-order mark and a mistake", "\ufefftrain.runds = 1\n", ("runds",), **new)
    yield Case("config", "a .npz given as config", given(["run", "tiny.npz"]), says=("tiny.npz", "data.name"), **new)
    yield Case(
        "settings",
        "grid.lr",
        given(["compare", *TINY, "--methods", "mean", "--attacks", "none", "grid.lr=[0.1,0.2]"]),
        says=("lr", "train.lr"),
        **new,
    )


def _settings() -> Iterator[Case]:
    for text in ("=5", ".=1", "..=1", "train.=1", ".train=1", "train..lr=1", "train.lr.x=1", "="):
        yield _setting(f"the key of {text}", text)
    yield _setting("a deep key", "a.b.c.d=1", says=("'a'",))
    yield _setting("a value and its section", "seed=1", "seed.x=2", says=("seed",))
    yield _setting("more digits than Python reads", f"seed={DIGITS}")
    yield _setting("a whole number beyond floats for lr", f"train.lr={BEYOND}", says=("lr",))
    yield _setting("a whole number beyond floats for kappa", f"method.kappa={BEYOND}", says=("kappa",))
    yield _setting("lists 5000 deep", "train.lr=" + "[" * 5000 + "]" * 5000)
    yield _setting("2**70 clients", f"partition.clients={HUGE}", says=("clients",))
    yield _setting("2**70 poisoned clients", f"attack.clients={HUGE}", says=("all 4 clients",))
    yield _setting("poisoned id 2**70", f"attack.clients=[{HUGE}]", says=("attack.clients",))
    yield _setting("poisoned id -1", "attack.clients=[-1]", says=("attack.clients",))
    yield _setting("poisoned ids as texts", 'attack.clients=["a"]', says=("attack.clients",))
    yield _setting("all poisoned", "attack.clients=4", says=("all 4 clients",))
    yield _setting("all poisoned by fraction", "attack.fraction=1", says=("all 4 clients",))
    yield _setting("targeted at no class", "attack.name=targeted", f"attack.target={HUGE}", says=("attack.target",))
    yield _setting("targeted at itself", "attack.name=targeted", "attack.source=1", says=("attack.source",))
    yield _setting("shards without any", "partition.name=shards", "partition.shards_per_client=0", says=("shards",))
    yield _setting("2**70 shards", "partition.name=shards", f"partition.shards_per_client={HUGE}", says=("shards",))
    yield _setting("more clients than samples", "partition.clients=61", says=("61",))
    yield _setting(
        "min_size that no draw can reach", "partition.name=dirichlet", "partition.min_size=50", says=("min_size",)
    )
    yield _setting("no client ids", "partition.name=given", says=("given",))
    yield _setting("a device that is none", "train.device=abacus", says=("abacus",))
    yield _setting("a device number that is none", "train.device=cpu:x", says=("cpu:x",))
    yield _setting("the device meta", "train.device=meta", says=("meta",))
    yield _setting("run.name with ..", "run.name=../up", says=("run.name",))
    yield _setting("run.name empty", "run.name=''", says=("run.name",))
    yield _setting("run.name of 300 letters", f"run.name={'a' * 300}")
    yield _setting("run.name with a byte that is no text", "run.name=a\udcff")
    yield _setting("hyper-parameter of a method without any", "method.name=mean", "method.kappa=1", says=("kappa",))
    yield _setting("a scale that is none", "method.scale=fairmena", says=("fairmena",))
    yield _setting("an aggregator that is none", "method.aggregator=meen", says=("meen",))
    yield _setting("a pre-aggregation that is none", "method.pre=nmn", says=("nmn",))
    yield _setting("too many assumed", "method.name=cwtm", "method.f=2", says=("f = 2",))
    yield _setting("theory with local steps", "theory=true", "train.local_steps=2", says=("train.local_steps",))
    yield _setting("data.path with own data", "data.path=x", says=("data.path",))
    yield _setting("sha256 of other data", "data.sha256=0123456789abcdef", says=("sha256",))
    yield _setting("cnn on six numbers", "model.name=cnn", says=("cnn",))
    yield Case(
        "settings",
        "run.dir is a file",
        given(["run", *TINY, "run.dir=taken"], {"taken": "a file"}),
        says=("taken", "run.dir"),
    )
    yield Case(
        "settings",
        "run.dir below a file",
        given(["run", *TINY, "run.dir=taken/below"], {"taken": "a file"}),
        says=("taken", "run.dir"),
        trial=True,
    )
    yield Case(
        "settings",
        "run.dir below a file, in a comparison",
        given(["compare", *TINY, "--methods", "mean", "--attacks", "none", "run.dir=taken/below"], {"taken": "a file"}),
        says=("taken", "run.dir"),
    )


def _files() -> Iterator[Case]:
    yield Case("config", "not there", given(["run", "gone.toml"]), says=("gone.toml",))
    yield Case("config", "a folder", given(["run", "."]), says=("'.'",))
    yield Case("config", "two of them", given(["run", "a.toml", "b.toml"]), says=("b.toml",))
    yield Case("config", "below a file", given(["run", "tiny.npz/my.toml"]), says=("tiny.npz/my.toml",))
    yield Case("config", "a name of 5000 letters", given(["run", "a" * 5000 + ".toml"]))
    yield Case("config", "a name that is no text", given(["run", "\udcff.toml"]))
    yield Case(
        "config", "a grid for run", given(["run", "my.toml"], {"my.toml": "[grid]\nseeds = [1]\n"}), says=("grid",)
    )
    yield _file("not TOML", "this is not TOML")
    yield _file("a section not closed", "[train\nrounds = 3")
    yield _file("a key twice", "seed = 1\nseed = 2")
    yield _file("UTF-16", "seed = 1\n".encode("utf-16"))
    yield _file("Latin-1", "# Größe\nseed = 1\n".encode("latin-1"))
    yield _file("a picture", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    yield _file("NUL bytes", b"seed = 1\n\x00\x00\x00\n")
    yield _file("JSON", '{"seed": 1}')
    yield _file("YAML", "seed: 1\ntrain:\n  rounds: 3\n")
    yield _file("lists 5000 deep", "x = " + "[" * 5000 + "]" * 5000)
    yield _file("more digits than Python reads", f"seed = {DIGITS}")
    yield _file("a section as a list", "[[train]]\nrounds = 3\n", ("train",))
    yield _file("sections as values", "train = 3\nmodel = 'linear'\n", ())
    yield _file("an unknown section", "[trian]\nrounds = 3\n", ("trian",))
    yield _file("an unknown key", "[method]\nname = 'fairmean'\nkapa = 1.0\n", ("kapa",))
    yield _file("a section of a section", "[train.more]\nrounds = 3\n", ("more",))
    yield _file("NUL in run.name", 'run.name = "a\\u0000b"\n', ("run.name",))
    yield _file("NUL in run.dir", 'run.dir = "a\\u0000b"\n', ("run.dir",))
    for key, text, says in (("data.name", "a\\u0000.npz", ".npz"), ("model.name", "a\\u0000:b", "model")):
        words = [word for word in TINY if not word.startswith(key)]
        files = {"my.toml": f'{key} = "{text}"\n'}
        yield Case("config", f"NUL in {key}", given(["run", "my.toml", *words], files), says=(says,))
    for name, text, says in (
        ("a number", "grid = 5", "grid"),
        ("a list", "grid = [1]", "grid"),
        ("seeds that are no list", "[grid]\nseeds = 5", "seeds"),
        ("seeds that are texts", "[grid]\nseeds = ['a']", "seed"),
        ("seeds that are fractions", "[grid]\nseeds = [1.5]", "seed"),
        ("seeds that are lists", "[grid]\nseeds = [[1]]", "seed"),
        ("seeds that are sections", "[grid]\nseeds = [{a = 1}]", "seed"),
        ("negative seeds", "[grid]\nseeds = [-1]", "seed"),
        ("no seeds", "[grid]\nseeds = []", "seeds"),
        ("methods that are numbers", "[grid]\nmethods = [1]", "methods"),
        ("methods that are one text", "[grid]\nmethods = 'mean'", "methods"),
        ("methods that are empty", "[grid]\nmethods = ['']", "method"),
        ("attacks that are lists", "[grid]\nattacks = [['none']]", "attacks"),
        ("an unknown key", '[grid]\n"train.runds" = [1, 2]', "runds"),
        ("an unknown section", "[grid]\nfoo = [1]", "foo"),
        ("values of a wrong type", '[grid]\n"train.lr" = ["a"]', "lr"),
        ("a section as value", '[grid]\n"train" = [3]', "train"),
    ):
        yield Case("config", f"grid: {name}", given(["compare", "my.toml", *TINY], {"my.toml": text}), says=(says,))


def drawn(draw: random.Random) -> Case:
    """One of: a bad value, a misspelled key or name, TOML broken somewhere."""
    return draw.choice([_value, _value, _hyper, _misspelled_key, _misspelled_name, _broken, _broken])(draw)


def _bad_value(draw: random.Random) -> tuple[str, str]:
    kind = draw.choice(["integer", "fraction", "positive", "nonnegative", "text"])
    if kind == "integer":
        key, low = draw.choice(list(INTEGERS.items()))
        bad = [*NO_NUMBER, "nan", "inf", "1.5", "1e308", str(low - 1), f"-{HUGE}"]
    elif kind == "fraction":
        key = draw.choice(FRACTIONS)
        bad = [*NO_NUMBER, "nan", "inf", "-inf", "-1", "1.5", "1e308", HUGE]
    elif kind == "positive":
        key = draw.choice(POSITIVE)
        bad = [*NO_NUMBER, "nan", "inf", "-inf", "-1", "0", "-1e308"]
    elif kind == "nonnegative":
        key = draw.choice(NONNEGATIVE)
        bad = [*NO_NUMBER, "nan", "inf", "-inf", "-1", "-1e308"]
    else:
        key = draw.choice(TEXTS)
        bad = NO_TEXT
    return key, draw.choice(bad)


def _value(draw: random.Random) -> Case:
    key, value = _bad_value(draw)
    return _placed(draw, key, value)


def _placed(draw: random.Random, key: str, value: str, *more: str) -> Case:
    """On the command line, or in a file."""
    says = (key.split(".")[-1],)
    if draw.random() < 0.5:
        return _setting(f"{key}={value}", *more, f"{key}={value}", says=says)
    words = [word for word in TINY if word.partition("=")[0] != key] + list(more)
    if value == "much":
        value = '"much"'
    files = {"my.toml": f"{key} = {value}\n"}
    return Case("config", f"{key} = {value}", given(["run", "my.toml", *words], files), says=says)


def _hyper(draw: random.Random) -> Case:
    """A hyper-parameter of some method, of the wrong type or no number."""
    method = draw.choice(sorted(name for name, named in named_methods().items() if _numbers(named.hyper)))
    key, default = draw.choice(_numbers(named_methods()[method].hyper))
    bad = ["much", "true", "[1]", "{a=1}", "nan", "inf"] + (["1.5", "-1", HUGE] if isinstance(default, int) else [])
    return _placed(draw, f"method.{key}", draw.choice(bad), f"method.name={method}")


def _numbers(hyper: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in hyper.items() if type(value) in (int, float)]


def _misspelled(draw: random.Random, word: str, known: set[str]) -> str:
    while True:
        place = draw.randrange(len(word))
        wrong = draw.choice(
            [
                word[:place] + word[place + 1 :],
                word[:place] + word[place] + word[place:],
                word[:place] + draw.choice("abcdefghijklmnopqrstuvwxyz") + word[place + 1 :],
            ]
        )
        if wrong and wrong not in known:
            return wrong


def _misspelled_key(draw: random.Random) -> Case:
    known = [*INTEGERS, *FRACTIONS, *POSITIVE, *NONNEGATIVE, *TEXTS]
    section, _, key = draw.choice([key for key in known if "." in key]).partition(".")
    if draw.random() < 0.3:
        wrong = _misspelled(draw, section, {"data", "partition", "attack", "model", "method", "train", "run", "grid"})
        return _setting(f"the section {wrong}", f"{wrong}.{key}=1", says=(wrong,))
    keys = {name.partition(".")[2] for name in known} | {"kappa", "scale", "aggregator", "pre", "memory", "sha256"}
    wrong = _misspelled(draw, key, keys | {"clients", "source", "target", "shards_per_client"})
    return _setting(f"the key {section}.{wrong}", f"{section}.{wrong}=1", says=(wrong,))


def _misspelled_name(draw: random.Random) -> Case:
    section, known = draw.choice(
        [
            ("method", sorted(named_methods())),
            ("attack", sorted(ATTACKS)),
            ("partition", ["dirichlet", "iid", "shards", "given"]),
            ("model", ["mlp", "cnn", "linear"]),
            ("data", ["fashion-mnist", "fashion-mnist-mini", "cifar10"]),
        ]
    )
    wrong = _misspelled(draw, draw.choice(known), set(known) | {"auto", "nan", "inf"})
    return _setting(f"{section}.name={wrong}", f"{section}.name='{wrong}'", says=(wrong,))


def _broken(draw: random.Random) -> Case:
    """The starter config with bytes lost, changed or put in, so that it is no TOML any more."""
    whole = starter.text().encode()
    while True:
        at, size = draw.randrange(len(whole)), draw.randrange(1, 40)
        noise = draw.randbytes(draw.randrange(1, 8))
        how, content = draw.choice(
            [
                ("lost", whole[:at] + whole[at + size :]),
                ("put in", whole[:at] + noise + whole[at:]),
                ("changed", whole[:at] + noise + whole[at + len(noise) :]),
            ]
        )
        try:
            tomllib.loads(content.decode())
        except ValueError:
            return _file(f"bytes {how} at {at}", content)
