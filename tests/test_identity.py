"""What a run is: other data, other code or other numerics make another run, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean import LossRule, Scale, UserError, register, register_scale
from fairmean.data import own as own_data
from fairmean.rules.aggregator import AGGREGATORS
from fairmean.runs import identity
from fairmean.runs.config import parse
from fairmean.runs.identity import Sources, resolve
from fairmean.terminal.main import main

pytestmark = pytest.mark.usefixtures("here", "forget_modules", "registries")

QUICK = {"model": {"name": "linear"}, "train": {"rounds": 2, "device": "cpu"}}

RULE = """
from dataclasses import dataclass
import fairmean


@fairmean.register("tried", reference="a test", when="")
@dataclass(frozen=True)
class Tried(fairmean.LossRule):
    '''λ = c/n.'''

    def weights(self, round):
        return (round.losses >= 0).double() * {} / len(round.losses)
"""


def write(name, text, **values):
    Path(f"{name}.py").write_text(textwrap.dedent(text).format(**values) if values else text)


# Rules


def test_an_edited_rule_is_another_run_in_another_process(own):
    """The first bug a reader of docs/add-a-method.md met: the edited rule returned the old table."""
    outputs = []
    for factor in ("1.0", "-5.0"):
        write("edited_rule", RULE.replace("{}", factor))
        command = [sys.executable, "-m", "fairmean", "run", "--import", "edited_rule", "method.name=tried", "--json"]
        command += [f"data.name={own}", "model.name=linear", "train.rounds=2", "train.device=cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        outputs.append(done.stdout)
    assert outputs[0] != outputs[1]
    assert len(list(Path("runs/run").iterdir())) == 2


def test_an_edited_rule_is_another_run_in_one_process(own):
    """Edited within a second, to a text of the same length: a byte-code cache would not notice."""
    averages = []
    for factor in ("+1.", "-5."):
        write("rule_of_mine", RULE.replace("{}", factor))
        assert main(["list", "methods", "--import", "rule_of_mine"]) == 0
        result = fairmean.run(QUICK, data={"name": own}, method={"name": "tried"}, train={"rounds": 5})
        averages.append(result.summary["average"])
        assert result.config.method.sha256
    assert averages[0] > averages[1] + 10


def test_a_helper_of_a_rule_belongs_to_it(own):
    write("helper_of_mine", "FACTOR = 1.0\n")
    write("rule_with_helper", "from helper_of_mine import FACTOR\n" + RULE.replace("{}", "FACTOR"))
    hashes = []
    for factor in ("1.0", "2.0"):
        write("helper_of_mine", f"FACTOR = {factor}\n")
        fairmean.importing.import_module("rule_with_helper")
        hashes.append(resolve(parse({"method": {"name": "tried"}, "data": {"name": own}})).hash())
    assert hashes[0] != hashes[1]


def test_what_is_not_a_part_of_a_run_does_not_change_it(own):
    write("rule_of_others", RULE.replace("{}", "1.0"))
    config = parse({"data": {"name": own}})
    before = resolve(config).hash()
    fairmean.importing.import_module("rule_of_others")
    assert resolve(config).hash() == before
    assert resolve(config).method.sha256 is None


def typed_in(factor):
    """A rule as a notebook defines it: its module has no file."""
    space = {"__name__": "__main__notebook", "LossRule": LossRule}
    exec(
        "from dataclasses import dataclass\n"
        f"FACTOR = {factor}\n"
        "def helper(losses): return FACTOR * losses\n"
        "@dataclass(frozen=True)\n"
        "class InACell(LossRule):\n"
        "    def weights(self, round): return helper(round.losses)\n",
        space,
    )
    return space["InACell"]


def test_a_rule_of_a_notebook_has_a_source_too():
    digests = []
    for factor in (1, 1, 2):
        register("in-a-cell", reference="a test")(typed_in(factor))  # the cell is run again: that is no other rule
        digests.append(identity.of_method(fairmean.method("in-a-cell")))
    assert digests[0] == digests[1] != digests[2]
    assert all(digests)


@pytest.mark.parametrize("name", ["mean", "fairmean", "krum"])
def test_a_name_that_is_taken_is_refused(name):
    cls = typed_in(1)
    with pytest.raises(UserError, match=f"'{name}' is there already.*replace=True"):
        register(name, reference="a test")(cls)
    assert name not in AGGREGATORS or AGGREGATORS[name].rule is not cls
    register(name, reference="a test", replace=True)(cls)
    assert AGGREGATORS[name].rule is cls


def test_a_scale_that_is_taken_is_refused():
    with pytest.raises(UserError, match="scale 'qffl' is there already"):

        @register_scale("qffl")
        @fairmean.rules.scales.dataclass(frozen=True)
        class Other(Scale):
            pass


def test_a_rule_needs_defaults():
    with pytest.raises(UserError, match="'q' has no default"):

        @register("without-default", reference="a test")
        @fairmean.rules.scales.dataclass(frozen=True)
        class WithoutDefault(LossRule):
            q: float


# Data


MADE = """
import numpy as np


def make():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(400, 6)).astype(np.float32), np.arange(400) % 4
    x[np.arange(400), y] += 2
    wrong = np.loadtxt("wrong.txt", dtype=int)
    y[:wrong] = 3 - y[:wrong]
    return dict(x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
"""


def test_data_behind_a_function_is_known_by_what_it_returns():
    """Labels were mended; the function's source is the same, and so was the result."""
    write("made_data", MADE)
    averages = []
    for wrong in ("300", "0"):
        Path("wrong.txt").write_text(wrong)
        result = fairmean.run(QUICK, data={"name": "made_data:make"}, train={"rounds": 20, "lr": 0.5})
        averages.append(result.summary["average"])
    assert averages[1] > averages[0] + 10


def test_the_same_data_from_another_text_is_the_same_run():
    write("made_data", MADE)
    Path("wrong.txt").write_text("0")
    first = resolve(parse({"data": {"name": "made_data:make"}}))
    write("made_data", MADE + "\n# a comment\n")
    assert resolve(parse({"data": {"name": "made_data:make"}})).hash() == first.hash()


def test_data_is_loaded_and_hashed_once_in_a_comparison(own, monkeypatch):
    write("counted_data", MADE.replace("def make():", "CALLS = []\n\ndef make():\n    CALLS.append(1)"))
    Path("wrong.txt").write_text("0")
    more = {"methods": ["mean", "fairmean"], "attacks": ["none"], "seeds": [1, 2, 3]}
    fairmean.compare(QUICK, data={"name": "counted_data:make"}, **more)
    assert len(sys.modules["counted_data"].CALLS) == 1
    reads = []
    original = own_data._digest_of_files.__wrapped__
    monkeypatch.setattr(own_data, "_digest_of_files", lambda stamps: reads.append(stamps) or original(stamps))
    fairmean.compare(QUICK, data={"name": own}, **more)
    assert len(reads) == 1


def test_a_function_that_returns_other_data_every_time_is_refused():
    write("fickle", "import numpy as np\n\ndef make():\n    x = np.random.rand(40, 3).astype('f4')\n"
          "    return dict(x_train=x, y_train=np.arange(40) % 2, x_test=x, y_test=np.arange(40) % 2)\n")  # fmt: skip
    sources = Sources()
    sources.digest("fickle:make")
    sources.dataset("fashion-mnist-mini")  # another one takes its place
    with pytest.raises(UserError, match="returned other data"):
        sources.dataset("fickle:make")


def test_a_folder_called_like_a_known_data_set_changes_nothing():
    before = resolve(parse({})).hash()
    Path("fashion-mnist-mini").mkdir()
    np.save("fashion-mnist-mini/x_train.npy", np.zeros(3))
    assert resolve(parse({})).hash() == before


@pytest.mark.parametrize("section", ["data", "model", "method"])
def test_a_given_digest_that_does_not_fit_is_refused(section, own):
    write("model_here", "from torch import nn\n\ndef make(shape, classes):\n    return nn.Linear(shape[0], classes)\n")
    write("rule_here", RULE.replace("{}", "1.0"))
    fairmean.importing.import_module("rule_here")
    names = {"data": own, "model": "model_here:make", "method": "tried"}
    tree = {key: {"name": name} for key, name in names.items()}
    fits = resolve(parse(tree))
    assert all(getattr(fits, key).sha256 for key in names)
    assert resolve(fits) == fits
    tree[section]["sha256"] = "0123456789abcdef"
    with pytest.raises(
        UserError, match=rf"{section} '.*{section}\.sha256 = 0123456789abcdef.*leave {section}\.sha256 out"
    ):
        resolve(parse(tree))


# Models


def test_the_model_that_runs_is_the_model_that_was_hashed(own):
    """Edited in one process: the new hash must be of the new code, and the run of it too."""
    sizes = {}
    for width in (4, 16):
        text = "from torch import nn\n\ndef make(shape, classes):\n"
        text += f"    return nn.Sequential(nn.Linear(shape[0], {width}), nn.ReLU(), nn.Linear({width}, classes))\n"
        write("edited_model", text)
        result = fairmean.run(QUICK, data={"name": own}, model={"name": "edited_model:make"})
        w = torch.load(result.folder / "checkpoint.pt", weights_only=True)["w"]
        sizes[width] = len(w)
        assert len(w) == 6 * width + width + width * 4 + 4
    assert sizes[4] != sizes[16]


def test_a_helper_of_a_model_belongs_to_it(own):
    write("model_in_two", "from width_of_it import W\nfrom torch import nn\n\ndef make(shape, classes):\n"
          "    return nn.Sequential(nn.Linear(shape[0], W), nn.ReLU(), nn.Linear(W, classes))\n")  # fmt: skip
    lengths = set()
    for width in (4, 8):
        write("width_of_it", f"W = {width}\n")
        result = fairmean.run(QUICK, data={"name": own}, model={"name": "model_in_two:make"})
        lengths.add(len(torch.load(result.folder / "checkpoint.pt", weights_only=True)["w"]))
    assert len(lengths) == 2


def test_a_package_of_models(own):
    Path("models_of_mine").mkdir()
    Path("models_of_mine/__init__.py").write_text("")
    Path("models_of_mine/parts.py").write_text("WIDTH = 3\n")
    Path("models_of_mine/net.py").write_text(
        "from torch import nn\nfrom .parts import WIDTH\n\ndef make(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(shape[0], WIDTH), nn.Linear(WIDTH, classes))\n"
    )
    config = parse({"data": {"name": own}, "model": {"name": "models_of_mine.net:make"}})
    before = resolve(config)
    Path("models_of_mine/parts.py").write_text("WIDTH = 5\n")
    after = resolve(config)
    assert before.model.sha256 != after.model.sha256
    assert before.hash() != after.hash()


# Numerics


def test_the_numerics_version_is_part_of_a_run(monkeypatch):
    before = parse({}).hash()
    monkeypatch.setattr(identity, "NUMERICS", identity.NUMERICS + 1)
    assert parse({}).hash() != before


def test_the_version_of_the_package_is_not(monkeypatch):
    """A release that gives the same results keeps them."""
    before = parse({}).hash()
    monkeypatch.setattr("fairmean._version.__version__", "9.9")
    monkeypatch.setattr("fairmean.__version__", "9.9")
    assert parse({}).hash() == before
