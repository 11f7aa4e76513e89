"""What people meet first: answers at once, runs that can be listed and shown, objects as data and models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean import UserError
from fairmean.experiments.comparison_table import in_colour
from fairmean.terminal.main import main

pytestmark = pytest.mark.usefixtures("here")

QUICK = ["train.rounds=2", "model.name=linear", "train.device=cpu"]
AT_ONCE = {
    "--help": 0,
    "--version": 0,
    "run --help": 0,
    "compare --help": 0,
    "list methods": 0,
    "list methods fairmean-split": 0,
    "list attacks --json": 0,
    "list datasets": 0,
    "ls": 0,
    "new": 0,
    "new --all": 0,
    "data list": 0,
    "ls --csv": 0,
    "list methods --csv": 0,
    "watch": 0,
    "watch --json": 0,
    "completion bash": 0,
    "doctor --help": 0,
    "export --help": 0,
    "nonsense": 2,
    "run --methods mean": 2,
    "run tran.lr=3": 2,
    "run train.lrr=3": 2,
    "run train.lr=-1": 2,
    "run attack.name=bad": 2,
    "compare --seeds x": 2,
    "show nothing": 2,
    "watch nothing": 2,
    "export nothing --to tensorboard": 2,
}


def test_help_lists_and_mistakes_do_not_wait_for_pytorch(here):
    """All in one process, since a command that imported PyTorch would leave it there."""
    program = """
        import contextlib, io, json, sys
        from fairmean.terminal.main import main
        for words, wanted in json.loads(sys.argv[1]).items():
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                try:
                    code = main(words.split())
                except SystemExit as end:
                    code = end.code
            assert code == wanted, (words, code)
            assert "torch" not in sys.modules, words
    """
    text = "\n".join(line[8:] for line in program.splitlines())
    subprocess.run([sys.executable, "-c", text, json.dumps(AT_ONCE)], check=True, cwd=here)


def test_parts_of_ones_own_are_listed_on_a_fresh_command_line(here):
    rule = """
        from dataclasses import dataclass
        import fairmean

        @fairmean.register("first-only", reference="me")
        @dataclass(frozen=True)
        class FirstOnly(fairmean.LossRule):
            'The first client alone.'
            def weights(self, round):
                return (round.clients == 0).double()
    """
    (here / "mine.py").write_text("\n".join(line[8:] for line in rule.splitlines()))
    words = [sys.executable, "-m", "fairmean", "list"]
    for what in ("methods", "aggregators"):
        done = subprocess.run([*words, what, "--import", "mine"], check=True, cwd=here, capture_output=True, text=True)
        assert "first-only" in done.stdout


def test_every_public_name_is_there_and_typed():
    for name in fairmean.__all__:
        assert getattr(fairmean, name) is not None
    assert set(fairmean._HOME_OF) == set(fairmean.__all__) - {"__version__"}
    imported = [
        line.split(" import ")[1].split(", ")
        for line in Path(fairmean.__file__).read_text(encoding="utf-8").splitlines()
        if line.startswith("    from fairmean.")
    ]
    assert {name.strip() for names in imported for name in names} == set(fairmean._HOME_OF)
    assert set(fairmean.__all__) <= set(dir(fairmean))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fairmean.nothing  # noqa: B018
    assert fairmean.data.load("fashion-mnist-mini").classes == 10


def test_ls_shows_what_differs(own, capsys):
    for words in (["seed=1"], ["seed=2", "method.kappa=4"], ["method.name=mean", "train.lr=0.2"]):
        assert main(["run", f"data.name={own}", *QUICK, *words]) == 0
    capsys.readouterr()
    assert main(["ls"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "name", "method", "attack", "seed", "settings", "status", "avg", "worst", "age"]
    assert [line.split()[2:5] for line in lines] == [
        ["fairmean", "pairwise", "1"],
        ["fairmean", "pairwise", "2"],
        ["mean", "pairwise", "1"],
    ]
    assert ["kappa=1" in lines[0], "kappa=4" in lines[1], "lr=0.2" in lines[2]] == [True] * 3
    assert all("finished" in line and "rounds=" not in line for line in lines)
    assert main(["ls", "nobody"]) == 0
    assert "There is no run that begins with 'nobody'" in capsys.readouterr().out
    assert main(["ls", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["settings"]["seed"] for record in records] == [1, 2, 1]
    assert all(0 <= record["worst"] <= record["average"] <= 100 for record in records)


def test_ls_of_many_runs_shows_the_newest(own, capsys, monkeypatch):
    assert (
        main(["compare", f"data.name={own}", *QUICK, "--methods", "mean", "--attacks", "none", "--seeds", "1-3"]) == 0
    )
    monkeypatch.setattr("fairmean.terminal.verbs.ls._SHOWN", 2)
    capsys.readouterr()
    assert main(["ls"]) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "… 1 more (--all shows them)"
    assert len(lines) == 2
    assert main(["ls", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_show_has_every_client(own, capsys):
    run = fairmean.run(data={"name": own}, train={"rounds": 2, "device": "cpu"}, partition={"clients": 6})
    assert main(["show", run.hash[:6], "--clients", "4"]) == 0
    out = capsys.readouterr().out
    assert f"run runs/run/{run.hash}" in out
    assert "settings: data.name=" in out
    assert "partition.clients=6" in out
    assert "train.lr=" not in out
    assert "… 2 more (--clients 6 shows them)" in out
    assert main(["show", run.hash, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [client["accuracy"] for client in shown["clients"]] == run.accuracy.tolist()
    assert [client["samples"] for client in shown["clients"]] == run.partition.sizes.tolist()
    last = run.columns["weight"][~np.isnan(run.columns["weight"])][-6:]
    assert [client["weight"] for client in shown["clients"]] == last.tolist()
    assert main(["show", "zz"]) == 2
    assert "there is no run 'zz'" in capsys.readouterr().err


def test_the_next_line_carries_the_settings(own, capsys):
    words = ["compare", f"data.name={own}", *QUICK, "--methods", "mean,fairmean:kappa=4", "--attacks", "none"]
    assert main(words) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    command = line.removeprefix("next: ").split("   ·   ")[0]
    assert command == " ".join(["fairmean", *words, "--seeds", "1-5"])
    assert main([*words, "--seeds", "1,2"]) == 0
    assert "--seeds" not in capsys.readouterr().out.rpartition("next: ")[2]


def test_colour_where_it_is_wanted(monkeypatch):
    for no, force, wanted in ((None, None, False), (None, "1", True), ("1", "1", False), ("", "1", True)):
        for name, value in (("NO_COLOR", no), ("FORCE_COLOR", force)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        assert in_colour() == wanted


def test_a_studys_table_has_its_settings_and_stays(own, here):
    def table(lr):
        settings = {"data": {"name": own}, "train": {"rounds": 2, "device": "cpu"}}
        grid = {"train.lr": lr}
        return fairmean.compare({"grid": grid, **settings}, methods="mean", attacks="none").table

    first, second = table([0.1, 0.2]), table([0.3])
    assert first != second
    header, *rows = (line.split(",") for line in first.read_text().splitlines())
    assert header[:3] == ["method", "attack", "seed"]
    assert [row[header.index("train.lr")] for row in rows] == ["0.1", "0.2"]
    assert {row[header.index("train.rounds")] for row in rows} == {"2"}
    assert (here / "runs/compare/table.csv").read_text() == second.read_text()


def arrays(seed=0):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(120, 4)).astype(np.float32), np.arange(120) % 3
    x[np.arange(120), y] += 2
    return {"x_train": x[:90], "y_train": y[:90], "x_test": x[90:], "y_test": y[90:]}


SMALL = {
    "partition": {"name": "iid", "clients": 3},
    "attack": {"name": "none"},
    "train": {"rounds": 3, "device": "cpu"},
}


def test_arrays_and_modules_from_python():
    run = fairmean.run(data=arrays(), model=torch.nn.Linear(4, 3), **SMALL)
    same = fairmean.run(data=tuple(arrays().values()), model={"name": run.config.model.name}, **SMALL)
    assert same == run
    assert fairmean.run(data=arrays(seed=1), model={"name": run.config.model.name}, **SMALL) != run
    np.savez("same.npz", **arrays())
    by_file = fairmean.run(data="same.npz", model={"name": run.config.model.name}, **SMALL)
    assert by_file.accuracy.tolist() == run.accuracy.tolist()


def test_a_module_begins_with_its_own_parameters():
    module = torch.nn.Linear(4, 3)
    before = module.weight.detach().clone()
    name = fairmean.run(data=arrays(), model=module, **SMALL).config.model.name
    assert torch.equal(module.weight, before)
    with torch.no_grad():
        module.weight += 1
    assert fairmean.run(data=arrays(), model=module, **SMALL).config.model.name != name


def test_functions_that_make_models():
    def maker(width):
        def make(shape, classes):
            return torch.nn.Sequential(torch.nn.Linear(*shape, width), torch.nn.ReLU(), torch.nn.Linear(width, classes))

        return make

    narrow, wide = (fairmean.run(data=arrays(), model=maker(width), **SMALL) for width in (2, 16))
    assert narrow != wide
    assert narrow == fairmean.run(data=arrays(), model=maker(2), **SMALL)
    assert narrow.model()[0].out_features == 2
    assert fairmean.compare(data=arrays(), model=maker(2), methods="mean", attacks="none", **SMALL).methods == ["mean"]


@pytest.mark.parametrize(
    ("data", "model", "says"),
    [
        (3, None, "a int is not data"),
        ((1, 2), None, "2 arrays were given"),
        ({"x_train": np.zeros((3, 2), np.float32)}, None, "lacks y_train"),
        (arrays(), 3, "neither a torch.nn.Module nor a function"),
        (arrays(), lambda: 3, "returned a int"),
        ("in-memory-0123", None, "was passed as arrays from Python"),
        (arrays(), "in-memory-0123", "was passed from Python"),
    ],
)
def test_objects_that_are_neither(data, model, says):
    with pytest.raises(UserError, match=says):
        fairmean.run(data=data, **({} if model is None else {"model": model}), **SMALL)


def test_inputs_that_nobody_scaled_are_noticed():
    data = arrays()
    data["x_train"], data["x_test"] = data["x_train"] * 500 + 300, data["x_test"] * 500 + 300
    with pytest.warns(UserWarning, match="data.scale=standard"):
        raw = fairmean.run(data=data, **SMALL)
    scaled = fairmean.run(data=data | {"scale": "standard"}, **SMALL)  # and no warning
    assert scaled != raw
    assert scaled.summary["average"] > raw.summary["average"]
    x = data["x_train"].astype(np.float64)
    wanted = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    from fairmean.experiments.building import build_federation

    clients = build_federation(scaled.config)
    np.testing.assert_allclose(clients.x.numpy(), wanted[clients.rows], rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="are bytes, which are scaled already"):
        fairmean.run(data={"scale": "standard"}, **SMALL)


def test_groups_of_every_kind():
    losses = torch.tensor([1.0, 3.0, 2.0])
    wanted = fairmean.fair_objective(losses, torch.tensor([7, 7, 4]))
    for groups in (["b", "b", "a"], ("b", "b", "a"), np.array([7, 7, 4]), np.array(["b", "b", "a"], dtype=object)):
        assert fairmean.fair_objective(losses, groups) == wanted
    pandas = pytest.importorskip("pandas")
    for series in (pandas.Series(["b", "b", "a"]), pandas.Series(["b", "b", "a"], index=[5, 9, 1], dtype="category")):
        assert fairmean.fair_objective(losses, series) == wanted
