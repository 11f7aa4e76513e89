"""Which model a run trains: by name, for the data at hand, from stored weights, with frozen parts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fairmean
from fairmean.errors import UserError
from fairmean.experiments.config import parse
from fairmean.experiments.identity import resolve
from fairmean.models import MODELS, build, choice, keep
from fairmean.models.weights import read
from fairmean.terminal.main import main

SMALL = {"train": {"rounds": 2, "device": "cpu"}, "partition": {"clients": 3, "name": "iid"}, "attack": {"clients": 1}}


# By name


def test_the_usual_model_for_the_data():
    shapes = {(3, 32, 32): "cnn", (1, 28, 28): "mlp", (28, 28): "mlp", (7,): "mlp"}
    assert {shape: choice(shape) for shape in shapes} == shapes
    assert choice((12,), vocabulary=50) == "transformer"
    assert type(build("auto", (6,), 2, 1, vocabulary=5)).__name__ == "Transformer"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("transformer", {}, "'transformer' is for tokens.*model.name=auto"),
        ("lstm", {}, "'lstm' is for tokens"),
        ("mlp", {"vocabulary": 9}, "'mlp' computes with its inputs.*tokens.*model.name=transformer or lstm"),
        ("resnet18", {}, "'resnet18' needs images of at least 4×4 pixels.*use model.name=mlp"),
        ("transfomer", {}, "did you mean 'transformer'"),
    ],
)
def test_a_model_for_other_data(name, options, says):
    with pytest.raises(UserError, match=says):
        build(name, (6,), 3, 1, **options)


def test_tokens_with_several_numbers_at_a_place():
    with pytest.raises(UserError, match=r"'lstm' is for sequences of tokens.*shape \(6, 2\)"):
        build("lstm", (6, 2), 3, 1, vocabulary=9)


SEEN: dict[str, object] = {}


def _noted(**values):
    SEEN.clear()
    SEEN.update(values)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


FACTORIES = {
    "both": (lambda shape, classes: _noted(a=shape, b=classes), {"a": (6,), "b": 3}),
    "shape alone": (lambda shape: _noted(a=shape), {"a": (6,)}),
    "nothing": (lambda: _noted(), {}),
    "any": (lambda *values: _noted(a=values), {"a": ((6,), 3)}),
    "an option of its own": (lambda shape, *, width=4: _noted(a=shape, b=width), {"a": (6,), "b": 4}),
    "task": (
        lambda shape, outputs, task: _noted(a=shape, b=outputs, c=task),
        {"a": (6,), "b": 3, "c": "classification"},
    ),
    "the vocabulary first": (lambda vocabulary, shape: _noted(a=vocabulary, b=shape), {"a": None, "b": (6,)}),
    "by keyword": (lambda *values, task=None: _noted(a=values, b=task), {"a": ((6,), 3), "b": "classification"}),
    "by position": (lambda shape, outputs, /: _noted(a=shape, b=outputs), {"a": (6,), "b": 3}),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_gets_what_it_takes(name):
    factory, expected = FACTORIES[name]
    build(keep(factory), (6,), 3, 1)
    assert expected == SEEN


class Bag(nn.Module):
    """A user's model of tokens: the mean of their vectors, or their vectors themselves."""

    def __init__(self, vocabulary, outputs, pooled):
        super().__init__()
        self.table, self.head, self.pooled = nn.Embedding(vocabulary, 4), nn.Linear(4, outputs), pooled

    def forward(self, x):
        h = self.table(x)  # whole numbers, or this fails
        return self.head(h.mean(1) if self.pooled else h)


@pytest.mark.parametrize(
    ("task", "pooled", "outputs", "says"),
    [
        ("classification", True, 3, None),
        ("classification", False, 3, r"returns shape \(2, 5, 3\) for 2 samples and 3 classes"),
        ("binary", True, 1, None),
        ("regression", True, 2, r"returns shape \(2, 2\) for 2 samples and regression; it must return \(2, 1\)"),
        ("next-token", False, 8, None),
        ("next-token", True, 8, r"returns shape \(2, 8\) for 2 sequences; it must return \(2, 5, 8\)"),
    ],
)
@pytest.mark.parametrize("example", [None, torch.tensor([[7, 0, 1, 2, 3]])], ids=["made up", "of the data"])
def test_a_users_model_is_tried_on_tokens(task, pooled, outputs, says, example):
    name = keep(lambda shape, _, vocabulary: Bag(vocabulary, outputs, pooled))
    asked = 1 if task == "regression" else outputs
    if says is None:
        assert isinstance(build(name, (5,), asked, 1, example, task=task, vocabulary=8), Bag)
    else:
        with pytest.raises(UserError, match=says):
            build(name, (5,), asked, 1, example, task=task, vocabulary=8)


# The page about models


@pytest.mark.usefixtures("forget_modules")
def test_the_page_about_models(here):
    """Its blocks run in tests/test_docs.py; here is the command in a comment, and whether the table is complete."""
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    (here / "my_model.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], encoding="utf-8")
    command = re.findall(r"^# fairmean (run .*)$", page, re.MULTILINE)[0]
    assert main([*command.split(), "train.rounds=1"]) == 0
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(MODELS)


# Stored weights

TYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.int64: "I64"}


def safetensors(path, tensors):
    """The format, written out."""
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        content = bytes(value.contiguous().view(torch.uint8).numpy()) if value.dim() else value.numpy().tobytes()
        header[name] = {
            "dtype": TYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(body), len(body) + len(content)],
        }
        body += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_the_format_of_safetensors(here):
    tensors = {
        "a": torch.randn(3, 2),
        "b": torch.randn(4, dtype=torch.float64),
        "c": torch.randn(2, 2).bfloat16(),
        "d": torch.tensor(7),
        "e": torch.empty(0, 3),
    }
    safetensors(here / "some.safetensors", tensors)
    stored = read("some.safetensors")
    assert stored.keys() == tensors.keys()
    for name, value in tensors.items():
        assert stored[name].dtype == value.dtype
        assert torch.equal(stored[name], value)


@pytest.mark.parametrize("kind", ["safetensors", "state_dict"])
def test_a_run_begins_with_stored_weights(kind, own, here):
    before = build("mlp", (6,), 4, 9).state_dict()
    if kind == "safetensors":
        safetensors(here / "start", before)
    else:
        torch.save(before, here / "start")
    loaded = build("mlp", (6,), 4, 1, weights="start")
    assert all(torch.equal(value, before[key]) for key, value in loaded.state_dict().items())
    plain = fairmean.run(SMALL, data=own, model="mlp")
    run = fairmean.run(SMALL, data=own, model={"name": "mlp", "weights": "start", "frozen": 1})
    assert run != plain
    assert run.config.model.weights_sha256
    (here / "start").unlink()  # the run's own folder has all that it needs
    again = fairmean.load(run.folder)
    assert again.config.model.frozen == ["1"]
    assert torch.equal(again.model()[1].weight, before["1.weight"])
    assert not torch.equal(again.model()[5].weight, before["5.weight"])
    assert again.evaluate().tolist() == again.accuracy.tolist()


def test_other_weights_are_another_run(own, here):
    hashes = set()
    for seed in (1, 2):
        torch.save(build("linear", (6,), 4, seed).state_dict(), "start.pt")
        config = resolve(parse(SMALL | {"data": {"name": own}, "model": {"name": "linear", "weights": "start.pt"}}))
        hashes.add(config.hash())
    assert len(hashes) == 2
    torch.save(build("linear", (6,), 4, 3).state_dict(), "start.pt")
    with pytest.raises(UserError, match=r"start.pt.*is not the model.weights_sha256.*leave model.weights_sha256 out"):
        resolve(config)
    with pytest.raises(UserError, match=r"start.pt.*has changed.*put the old file back"):
        build("linear", (6,), 4, 1, weights="start.pt", weights_sha256=config.model.weights_sha256)


def test_a_model_with_buffers_needs_its_weights_again(own, here):
    class Shifted(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.head = nn.Linear(shape[0], classes)
            self.register_buffer("shift", torch.zeros(shape))

        def forward(self, x):
            return self.head(x + self.shift)

    torch.save({**Shifted((6,), 4).state_dict(), "shift": torch.full((6,), 5.0)}, "start.pt")
    run = fairmean.run(SMALL, data=own, model={"name": Shifted, "weights": "start.pt"})
    assert (run.model().shift == 5).all()
    torch.save(Shifted((6,), 4).state_dict(), "start.pt")
    with pytest.raises(UserError, match="has changed"):
        fairmean.load(run.folder).model()


def _damaged(path):
    header = b'{"1.weight": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 40)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


WRONG = {
    "no file": (lambda path: None, "there is no such file"),
    "a folder": (lambda path: path.mkdir(), "cannot be read"),
    "free text": (lambda path: path.write_text("weights of mine"), "is no state_dict"),
    "nothing": (lambda path: path.write_bytes(b""), "is no state_dict"),
    "code": (lambda path: torch.save({"1.weight": Evil()}, path), "without executing code"),
    "a checkpoint": (lambda path: torch.save({"epoch": 3}, path), "something else than tensors"),
    "cut off": (_damaged, "is damaged"),
    "other names": (
        lambda path: torch.save({"weight": torch.zeros(4, 6), "bias": torch.zeros(4)}, path),
        "'1.weight', '1.bias' of the model are missing; 'weight', 'bias' are not in the model",
    ),
    "other shapes": (
        lambda path: torch.save({"1.weight": torch.zeros(4, 7), "1.bias": torch.zeros(4)}, path),
        r"'1.weight' has shape \(4, 7\) there, and \(4, 6\) in model 'linear'",
    ),
    "NaN": (
        lambda path: torch.save({"1.weight": torch.full((4, 6), torch.nan), "1.bias": torch.zeros(4)}, path),
        "'1.weight' holds NaN",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_no_weights_of_this_model(name, own, here, capsys):
    write, says = WRONG[name]
    write(here / "start")
    settings = ["model.name=linear", "model.weights=start", "train.rounds=1", "partition.clients=3"]
    assert main(["run", f"data.name={own}", *settings]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "executed" not in told.out + told.err
    with pytest.raises(UserError, match=says):
        build("linear", (6,), 4, 1, weights="start")
    assert not (here / "runs").exists()


# Frozen parts


@pytest.mark.parametrize(
    ("frozen", "names"),
    [
        (["1"], {"1.weight", "1.bias"}),
        (["*.bias"], {"1.bias", "3.bias", "5.bias"}),
        (["3.weight", "1"], {"1.weight", "1.bias", "3.weight"}),
        (["[13]"], {"1.weight", "1.bias", "3.weight", "3.bias"}),
    ],
)
def test_names_and_patterns(frozen, names):
    model = build("mlp", (6,), 4, 1, frozen=frozen)
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == names


@pytest.mark.parametrize(
    ("frozen", "says"),
    [
        (["9"], "model.frozen = '9': model 'mlp' has no parameters there; its parts are '1', '3', '5'"),
        (["2"], "model.frozen = '2'"),  # a ReLU has none
        (["*"], "nothing of model 'mlp' is left to train"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything(frozen, says):
    with pytest.raises(UserError) as error:
        build("mlp", (6,), 4, 1, frozen=frozen)
    assert says in str(error.value)


def test_frozen_layers_on_the_command_line(own, here, capsys):
    words = ["run", "--json", f"data.name={own}", "train.rounds=3", "partition.clients=3", "model.name=mlp"]
    for text, frozen in (("model.frozen=1", ["1"]), ("model.frozen=1,3", ["1", "3"]), ('model.frozen=["1"]', ["1"])):
        assert main([*words, text]) == 0
        run = fairmean.load(json.loads(capsys.readouterr().out)["folder"])
        assert run.config.model.frozen == frozen
    assert len(list((here / "runs" / "run").iterdir())) == 2  # written in two ways, the first run is one
    assert main([*words, "model.frozen=7"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_weights_and_frozen_parts_a_run_is_what_it_was():
    plain = parse(SMALL)
    assert "weights" not in plain.to_dict()["model"]
    assert "frozen" not in plain.to_dict()["model"]
    assert resolve(parse(SMALL | {"model": {"frozen": []}})).hash() == resolve(plain).hash()
    assert resolve(parse(SMALL | {"model": {"frozen": ["1"]}})).hash() != resolve(plain).hash()


def test_a_module_of_ones_own_with_a_frozen_part(own, here):
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    before = module[0].weight.detach().clone()
    run = fairmean.run(SMALL, data=own, model={"name": module, "frozen": ["0"]})
    assert torch.equal(run.model()[0].weight, before)
    assert not torch.equal(run.model()[2].weight, module[2].weight)
