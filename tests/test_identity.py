"""What a run is: other data, other code or other numerics make another run, and nothing else does."""

from __future__ import annotations

import importlib
import os
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
from fairmean.experiments import identity
from fairmean.experiments.config import parse
from fairmean.experiments.identity import Sources, resolve
from fairmean.experiments.sections import DataConfig
from fairmean.experiments.study import plan
from fairmean.rules.aggregator import AGGREGATORS
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
        digests.append(identity.of_parts(fairmean.method("in-a-cell").parts))
    assert digests[0] == digests[1] != digests[2]
    assert all(digests)


def test_the_source_of_a_notebook_is_the_same_in_every_process():
    """Whatever order Python's sets have there; and what a rule refers to counts, in whatever wrapping."""
    code = """
import functools, torch
from dataclasses import dataclass
from fairmean import LossRule
from fairmean.code_digest import definition_digest

class Helper:
    def __init__(self): self.table = torch.arange(5000.0); self.table[2500] += {extra}
    def scale(self, x): return x * {factor}

@functools.lru_cache
def cached(n): return n + {plus}

HELPER, WORDS = Helper(), {{"alpha", "beta", "gamma"}}

@dataclass(frozen=True)
class Typed(LossRule):
    def weights(self, round):
        if "alpha" in {{"alpha", "beta"}} and "gamma" in WORDS:
            return HELPER.scale(round.losses) * cached(1)
        return round.losses

print(definition_digest(Typed))
"""
    settings = [{}, {}, {"extra": 1}, {"factor": 2}, {"plus": 7}]
    digests = []
    for seed, changed in enumerate(settings):
        text = code.format(**{"extra": 0, "factor": 1, "plus": 0} | changed)
        run = [sys.executable, "-c", text]
        done = subprocess.run(
            run, env=os.environ | {"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True
        )
        digests.append(done.stdout.strip())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_a_rule_that_a_script_executes_is_known_by_its_text():
    """A script's file stays the same, whatever text it executes."""
    Path("executes.py").write_text(
        "import sys\nfrom fairmean.code_digest import definition_digest\n"
        "space = {'__name__': '__main__'}\n"
        "exec('from dataclasses import dataclass\\nfrom fairmean import LossRule\\n@dataclass(frozen=True)\\n'\n"
        "     'class R(LossRule):\\n    def weights(self, round): return round.losses * ' + sys.argv[1], space)\n"
        "print(definition_digest(space['R']))\n"
    )
    runs = [[sys.executable, "executes.py", factor] for factor in ("1", "1", "2")]
    first, again, other = (subprocess.run(run, capture_output=True, text=True, check=True).stdout for run in runs)
    assert first == again != other


def test_a_rule_whose_file_changed_after_its_import_is_said():
    """What is in memory runs, under the digest of what is in memory."""
    write("edited_later", RULE.replace("{}", "1.0"))
    sys.path.insert(0, os.getcwd())
    try:
        importlib.invalidate_caches()
        module = importlib.import_module("edited_later")
        before = identity.of_parts(fairmean.method("tried").parts)
        write("edited_later", RULE.replace("{}", "2.0 * 3.0"))
        with pytest.warns(UserWarning, match=r"edited_later.Tried has changed since.*importlib.reload.edited_later."):
            assert identity.of_parts(fairmean.method("tried").parts) == before
        importlib.reload(module)
        assert identity.of_parts(fairmean.method("tried").parts) != before
    finally:
        sys.path.remove(os.getcwd())


def test_what_is_compiled_is_what_is_digested_whatever_else_a_loader_reads():
    """Data read through the loader, a reload by hand, a look at the source: none of them changes the digest wrongly."""
    Path("with_data").mkdir()
    Path("with_data/t.txt").write_text("data")
    source = "import pkgutil\nDATA = pkgutil.get_data(__name__, 't.txt')\nVALUE = {}\n"
    digests = []
    for value in (1, 2):
        Path("with_data/__init__.py").write_text(source.format(value))
        assert value == fairmean.importing.import_module("with_data").VALUE
        digests.append(fairmean.user_modules.module_digest("with_data"))
    assert digests[0] != digests[1]
    Path("with_data/__init__.py").write_text(source.format(3))
    sys.modules["with_data"].__loader__.get_source("with_data")
    assert fairmean.user_modules.module_digest("with_data") == digests[1]  # which is still in memory
    sys.path.insert(0, os.getcwd())
    try:
        importlib.invalidate_caches()
        assert importlib.reload(sys.modules["with_data"]).VALUE == 3
    finally:
        sys.path.remove(os.getcwd())
    assert fairmean.user_modules.module_digest("with_data") not in digests


def test_a_script_knows_the_helpers_of_its_package():
    Path("app").mkdir()
    Path("app/__init__.py").write_text("")
    Path("app/main.py").write_text(
        "from dataclasses import dataclass\nfrom fairmean import LossRule\n"
        "from fairmean.code_digest import definition_digest\nfrom .helper import C\n\n\n"
        "@dataclass(frozen=True)\nclass R(LossRule):\n    pass\n\n\nprint(definition_digest(R))\n"
    )
    digests = set()
    for value in (1, 2):
        Path("app/helper.py").write_text(f"C = {value}\n")
        done = subprocess.run([sys.executable, "-m", "app.main"], capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 2


def test_files_that_change_while_a_command_runs_are_refused(own):
    file = Path("mine.npz")
    file.write_bytes(Path(own).read_bytes())
    sources = Sources()
    sources.digest(DataConfig("mine.npz"))
    with np.load(file) as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    np.savez(file, **changed | {"y_train": changed["y_train"][::-1]})
    with pytest.raises(UserError, match="is not what it was when the command began"):
        sources.dataset(DataConfig("mine.npz"))


def test_hyper_parameters_keep_all_their_digits():
    exact = 0.12345678901234
    (run,) = plan(None, {}, [fairmean.method("fairmean", kappa=exact)], "none")
    assert run[2].method.hyper["kappa"] == exact
    own = {"method": {"name": "fairmean", "kappa": exact}}
    assert [config.method.hyper["kappa"] for _, _, config in plan(own, {}, "fairmean", "none")] == [exact]


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


def test_data_is_loaded_and_hashed_once_in_a_comparison(own):
    write("counted_data", MADE.replace("def make():", "CALLS = []\n\ndef make():\n    CALLS.append(1)"))
    Path("wrong.txt").write_text("0")
    more = {"methods": ["mean", "fairmean"], "attacks": ["none"], "seeds": [1, 2, 3]}
    fairmean.compare(QUICK, data={"name": "counted_data:make"}, **more)
    assert len(sys.modules["counted_data"].CALLS) == 1
    own_data._digest_of_files.cache_clear()
    fairmean.compare(QUICK, data={"name": own}, **more)
    assert own_data._digest_of_files.cache_info().misses == 1  # the file was read once


def test_a_function_that_returns_other_data_every_time_is_refused():
    write("fickle", "import numpy as np\n\ndef make():\n    x = np.random.rand(40, 3).astype('f4')\n"
          "    return dict(x_train=x, y_train=np.arange(40) % 2, x_test=x, y_test=np.arange(40) % 2)\n")  # fmt: skip
    sources = Sources()
    sources.digest(DataConfig("fickle:make"))
    sources.dataset(DataConfig("fashion-mnist-mini"))  # another one takes its place
    with pytest.raises(UserError, match="is not what it was when the command began"):
        sources.dataset(DataConfig("fickle:make"))


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
