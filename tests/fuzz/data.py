"""Bad data of the user's own: files, folders, functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.fuzz.case import TINY, Case, Content, arrays, given, npy, npz, tiny

X, Y = arrays()["x_train"], arrays()["y_train"]
TEST_X, TEST_Y = arrays()["x_test"], arrays()["y_test"]
NAMES = ("x_train", "y_train", "x_test", "y_test")


def _with(array: Any, value: Any, dtype: Any = None) -> Any:
    """A copy with another first entry."""
    copy = np.array(array, dtype=dtype or array.dtype)
    copy.flat[0] = value
    return copy


def _file(name: str, content: Content, *words: str, says: tuple[str, ...] = ("mine.npz",), **more: Any) -> Case:
    argv = ["run", *TINY, "data.name=mine.npz", *words]
    return Case("data", name, given(argv, {"mine.npz": content}), says=says, **more)


def _arrays(name: str, *words: str, says: tuple[str, ...] = (), trial: bool = False, **changed: Any) -> Case:
    return _file(name, npz(arrays(**changed)), *words, says=("mine.npz", *says), trial=trial)


def handwritten() -> Iterator[Case]:
    """Each for a reason of its own."""
    yield _arrays("a label of 2**40", y_train=_with(Y, 2**40, np.int64), says=("y_train",), trial=True)
    yield _arrays("a label of 1000 with 3 classes", y_train=_with(Y, 1000), trial=True)
    yield _arrays("a test label of 1000 with 3 classes", y_test=_with(TEST_Y, 1000))
    yield from _shapes()
    yield from _clients()
    yield from _files()
    yield from _folders()
    yield from _functions()


def _shapes() -> Iterator[Case]:
    for name in NAMES:
        missing: dict[str, Any] = {name: None}
        yield _arrays(f"{name} missing", says=(name,), **missing)
    yield _arrays("inputs NaN", says=("x_train",), x_train=_with(X, np.nan))
    yield _arrays("test inputs infinite", says=("x_test",), x_test=_with(TEST_X, np.inf))
    yield _arrays("inputs beyond float32", says=("x_train",), x_train=_with(X, 1e300, np.float64))
    yield _arrays("inputs that are whole numbers", says=("x_train",), x_train=X.astype(np.int64))
    yield _arrays("inputs complex", says=("x_train",), x_train=X.astype(complex))
    yield _arrays("inputs texts", says=("x_train",), x_train=X.astype(str))
    yield _arrays("inputs dates", says=("x_train",), x_train=X.astype("datetime64[D]"))
    yield _arrays("inputs true or false", says=("x_train",), x_train=X > 0)
    yield _arrays("inputs records", says=("x_train",), x_train=np.zeros((60, 6), dtype=[("a", float)]))
    yield _file("inputs objects", npz(arrays(x_train=X.astype(object))))
    yield _arrays("inputs a single number", says=("x_train",), x_train=np.float32(3))
    yield _arrays("inputs in one dimension", says=("x_train",), x_train=X[:, 0])
    yield _arrays("inputs without features", says=("x_train",), x_train=X[:, :0])
    yield _arrays("no samples", says=("x_train",), x_train=X[:0], y_train=Y[:0])
    yield _arrays("no test samples", says=("x_test",), x_test=TEST_X[:0], y_test=TEST_Y[:0])
    yield _arrays("test inputs of another shape", says=("x_test",), x_test=TEST_X[:, :5])
    yield _arrays("test inputs of another type", says=("x_test",), x_test=np.zeros((30, 6), np.uint8))
    yield _arrays("too few labels", says=("y_train",), y_train=Y[:-1])
    yield _arrays("labels one-hot", says=("y_train",), y_train=np.eye(3)[Y])
    yield _arrays("labels a column", says=("y_train",), y_train=Y[:, None])
    yield _arrays("labels a single number", says=("y_train",), y_train=np.int64(1))
    yield _arrays("labels fractions", says=("y_train",), y_train=Y / 2)
    yield _arrays("labels texts", says=("y_test",), y_test=TEST_Y.astype(str))
    yield _arrays("labels complex", says=("y_train",), y_train=Y.astype(complex))
    yield _file("labels objects", npz(arrays(y_train=Y.astype(object))))
    yield _arrays("a negative label", says=("y_train",), y_train=_with(Y, -1))
    yield _arrays("a label of 2**63", says=("y_train",), y_train=_with(Y, 2**63, np.uint64))
    yield _arrays("a label of 2**62", says=("y_train",), y_train=_with(Y, 2**62, np.int64))
    yield _arrays("labels from 1000 on", y_train=Y + 1000, y_test=TEST_Y + 1000)
    yield _file("one class, poisoned", npz(arrays(y_train=Y * 0, y_test=TEST_Y * 0)), says=("one class",))


def _clients() -> Iterator[Case]:
    ids = np.arange(60) % 4

    def given_ids(name: str, clients: Any, *says: str, test: Any = None) -> Case:
        words = ["partition.name=given", "partition.clients=4"]
        changed = {"clients_train": clients} | ({} if test is None else {"clients_test": test})
        return _file(name, npz(arrays(**changed)), *words, says=says)

    yield given_ids("client ids with a gap", np.where(ids == 2, 5, ids), "given")
    yield given_ids("client ids from 1 on", ids + 1, "given")
    yield given_ids("five clients instead of four", np.arange(60) % 5, "partition.clients")
    yield given_ids("a client id of 2**40", _with(ids, 2**40), "clients")
    yield given_ids("a negative client id", _with(ids, -1), "clients_train")
    yield given_ids("client ids fractions", ids / 2, "clients_train")
    yield given_ids("client ids objects", ids.astype(object))
    yield given_ids("too few client ids", ids[:-1], "clients_train")
    yield given_ids("client ids in two dimensions", ids[:, None], "clients_train")
    yield given_ids("test ids of no client", ids, "clients_test", test=np.arange(30) % 5)


def _files() -> Iterator[Case]:
    yield Case("data", "not there", given(["run", *TINY, "data.name=gone.npz"]), says=("gone.npz",))
    yield Case("data", "a folder not there", given(["run", *TINY, "data.name=some/where"]), says=("some/where",))
    yield Case(
        "data", "the home of nobody", given(["run", *TINY, "data.name=~nobody-here/x.npz"]), says=("nobody-here",)
    )
    yield Case("data", "below a file", given(["run", *TINY, "data.name=tiny.npz/x.npz"]), says=("tiny.npz/x.npz",))
    yield Case("data", "a name of 5000 letters", given(["run", *TINY, f"data.name={'a' * 5000}.npz"]))
    yield Case(
        "data", "a table", given(["run", *TINY, "data.name=mine.csv"], {"mine.csv": "1,2\n"}), says=("mine.csv",)
    )
    yield Case("data", "a .npy", given(["run", *TINY, "data.name=mine.npy"], {"mine.npy": npy(X)}), says=("mine.npy",))
    yield _file("an empty .npz", b"")
    yield _file("a .npz that is a .npy", npy(X))
    yield _file("a .npz that is a text", "x_train,y_train\n")
    yield _file("a .npz without arrays", npz({}))
    yield _file("a .npz that is half there", tiny()[: len(tiny()) // 2])
    yield _file("a .npz with a changed byte", _changed(tiny(), tiny().index(b"\x93NUMPY") + 400))
    yield _file("an archive of no arrays", _archive({"x_train": b"no array"}))
    yield _file("an array that claims 10**13 numbers", _archive({"x_train.npy": _claims(10**13)}))


def _changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


def _archive(files: dict[str, bytes]) -> bytes:
    import io
    import zipfile

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _claims(rows: int) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 6)}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\x00" * 64


def _folders() -> Iterator[Case]:
    whole: dict[str, Content] = {f"mine/{name}.npy": npy(array) for name, array in arrays().items()}

    def folder(name: str, *says: str, **changed: Content) -> Case:
        files = whole | {f"mine/{key}.npy": content for key, content in changed.items()}
        return Case("data", f"folder: {name}", given(["run", *TINY, "data.name=mine"], files), says=says)

    yield folder("garbage", "x_train.npy", x_train=b"garbage")
    yield folder("an empty file", "y_test.npy", y_test=b"")
    yield folder("a file half there", "x_train.npy", x_train=npy(X)[:300])
    yield folder("objects", "y_train.npy", y_train=npy(Y.astype(object)))
    yield folder("a .npz inside", "x_test.npy", x_test=tiny())
    yield folder("an array that claims 10**13 numbers", "x_train.npy", x_train=_claims(10**13))
    some = {name: content for name, content in whole.items() if "y_train" not in name}
    yield Case("data", "folder: labels missing", given(["run", *TINY, "data.name=mine"], some), says=("y_train",))
    nested = some | {"mine/y_train.npy/inside": b"x"}
    argv = ["run", *TINY, "data.name=mine"]
    yield Case("data", "folder: labels are a folder", given(argv, nested), says=("y_train",))
    yield Case("data", "folder: empty", given(argv, {"mine/readme": "nothing"}), says=("mine", "x_train"))


def _functions() -> Iterator[Case]:
    number = iter(range(1000))

    def function(name: str, body: str, *says: str, attribute: str = "make", **more: Any) -> Case:
        module = f"fuzz_data_{next(number)}"
        files = {f"{module}.py": f"import numpy as np\n\n{body}\n"}
        argv = ["run", *TINY, f"data.name={module}:{attribute}"]
        return Case("data", f"function: {name}", given(argv, files), says=(module, *says), **more)

    def returns(name: str, expression: str, *says: str) -> Case:
        return function(name, f"def make():\n    return {expression}", *says)

    mapping = (
        "{'x_train': np.zeros((9, 2)), 'y_train': np.array([0, 1, 2] * 3), 'x_test': np.zeros((9, 2)), 'y_test': %s}"
    )
    yield function("raises", "def make():\n    raise ValueError('no\\ngood')", "ValueError", "no good")
    yield function("raises without words", "def make():\n    raise KeyError", "KeyError")
    yield function("raises an error that cannot be shown", f"{UNSHOWABLE}\ndef make():\n    raise Odd")
    yield function("leaves", "import sys\ndef make():\n    sys.exit(0)")
    yield function("recurses", "def make():\n    return make()", "RecursionError")
    yield returns("gives nothing", "None", "NoneType")
    yield returns("gives a list", "[1, 2]", "list")
    yield returns("gives other names", "{'x': 1}", "x_train")
    yield returns("gives a number as labels", mapping % "3", "y_test")
    yield returns("gives ragged lists", mapping % "[[1], [2, 3]]", "y_test")
    yield returns("gives functions", mapping % "make", "y_test")
    yield function("does not parse", "def make(:\n    pass", ".py", "3", never=("frozen",))
    yield function("fails on import", "1 / 0", "ZeroDivisionError")
    yield function("leaves on import", "import sys\nsys.exit(0)")
    yield function("needs a package that is not there", "import nosuchpackage", "nosuchpackage")
    yield function("not in the module", "def other():\n    pass", "make")
    yield function("is a number", "make = 3", "make")
    yield function("wants arguments", "def make(a, b):\n    return {}", "TypeError")
    yield function(
        "gives a Dataset of too few classes",
        "from fairmean.data import Dataset\n\ndef make():\n    x, y = np.zeros((9, 2), np.float32), np.arange(9) % 3\n"
        "    return Dataset(name='d', train_x=x, train_y=y, test_x=x, test_y=y, classes=2)",
        "classes",
    )
    yield Case("data", "function: no module", given(["run", *TINY, "data.name=nosuch:make"]), says=("nosuch",))


UNSHOWABLE = "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError('even this fails')\n\n"


def drawn(draw: random.Random) -> Case:
    """An archive cut or filled at random, or an array of a random wrong type or shape."""
    return draw.choice([_cut, _noise, _typed, _shaped, _shaped])(draw)


def _cut(draw: random.Random) -> Case:
    at = draw.randrange(len(tiny()))
    return _file(f"a .npz cut at byte {at}", tiny()[:at])


def _noise(draw: random.Random) -> Case:
    size = draw.randrange(1, 3000)
    start = draw.choice([b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
    return _file(f"{size} bytes of noise after {start!r}", start + draw.randbytes(size))


def _typed(draw: random.Random) -> Case:
    name = draw.choice(NAMES)
    bad: dict[str, Callable[[Any], Any]] = {
        "complex": lambda a: a.astype(complex),
        "texts": lambda a: a.astype(str),
        "bytes": lambda a: a.astype("S4"),
        "dates": lambda a: a.astype("datetime64[D]"),
        "true or false": lambda a: a > 0,
    }
    what = draw.choice(sorted(bad))
    return _arrays(f"{name} is {what}", says=(name,), **{name: bad[what](arrays()[name])})


def _shaped(draw: random.Random) -> Case:
    name = draw.choice(NAMES)
    array = arrays()[name]
    bad: dict[str, Callable[[Any], Any]] = {
        "a single number": lambda a: a.flat[0],
        "empty": lambda a: a[:0],
        "one short": lambda a: a[:-1],
        "twice as long": lambda a: np.concatenate([a, a]),
        "one number a sample": lambda a: a[..., 0] if a.ndim > 1 else a[:1],
    }
    what = draw.choice(sorted(bad))
    other = {"x_train": "y_train", "x_test": "y_test"}.get(name, name)  # the labels are measured by the inputs
    says = other if what in ("one short", "twice as long") else name
    return _arrays(f"{name} is {what}", says=(says,), **{name: bad[what](array)})
