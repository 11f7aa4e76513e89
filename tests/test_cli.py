"""The command line: bad input is one line and leaves nothing behind; lists, data, new, progress."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import fairmean
from fairmean import data
from fairmean.data.registry import SPECS
from fairmean.data.sources import Source, UnavailableError
from fairmean.experiments.config import parse
from fairmean.experiments.events import Progress
from fairmean.terminal import main as cli
from fairmean.terminal import starter
from fairmean.terminal.catalogue import CATALOGUE
from fairmean.terminal.main import main
from fairmean.terminal.progress import Live
from fairmean.terminal.verbs import reproduce

pytestmark = pytest.mark.usefixtures("here")

QUICK = ["train.rounds=2", "model.name=linear", "train.device=cpu"]


@pytest.fixture
def here(here, monkeypatch):
    """The cache is outside the working folder, where nothing may be left behind."""
    work = here / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


def refused(capsys, here, arguments, *says, code=2):
    """Exit code 2, one line that says these things, nothing printed, nothing written."""
    before = everything(here)
    got = main([str(word) for word in arguments])
    out, err = capsys.readouterr()
    assert got == code, err
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("fairmean: ")
    assert "Traceback" not in err
    for words in says:
        assert words in err, err
    assert everything(here) == before
    return err


BAD_SETTINGS = {
    "unknown key": (["train.runds=5"], "runds", "rounds"),
    "unknown key of the method": (["method.kapa=1"], "kapa", "kappa"),
    "hyper-parameter of a method without any": (["method.name=mean", "method.kappa=1"], "kappa", "mean"),
    "unknown section": (["trian.rounds=5"], "trian", "train"),
    "unknown top-level key": (["seeds=3"], "seeds", "seed"),
    "a section set to a value": (["train=5"], "train", "5"),
    "a value used as a section": (["seed=1", "seed.x=2"], "seed"),
    "an empty key": (["=5"],),
    "kappa < 0": (["method.kappa=-1"], "kappa", "-1"),
    "kappa nan": (["method.kappa=nan"], "kappa", "nan"),
    "kappa inf": (["method.kappa=inf"], "kappa", "inf"),
    "kappa of wrong type": (["method.kappa=much"], "kappa", "much"),
    "tau = 0": (["method.tau=0"], "tau", "0"),
    "tau < 0": (["method.tau=-0.5"], "tau", "-0.5"),
    "alpha = 0": (["partition.alpha=0"], "partition.alpha", "0"),
    "alpha < 0": (["partition.alpha=-2"], "partition.alpha", "-2"),
    "alpha nan": (["partition.alpha=nan"], "partition.alpha", "nan"),
    "alpha inf": (["partition.alpha=inf"], "partition.alpha", "inf"),
    "poisoned id too large": (["attack.clients=[3,10]"], "attack.clients", "10", "9"),
    "poisoned id negative": (["attack.clients=[-1]"], "attack.clients", "-1"),
    "poisoned ids that are not whole": (["attack.clients=[0.5]"], "attack.clients", "0.5"),
    "all poisoned by list": (["attack.clients=0,1,2", "partition.clients=3"], "all 3 clients"),
    "all poisoned by count": (["attack.clients=10"], "all 10 clients"),
    "more poisoned than there are": (["attack.clients=99"], "all 10 clients"),
    "all poisoned by fraction": (["attack.fraction=1.0"], "all 10 clients"),
    "negative count of poisoned": (["attack.clients=-1"], "attack.clients", "-1"),
    "fraction > 1": (["attack.fraction=1.5"], "attack.fraction", "1.5"),
    "own data not there": (["data.name=mine.npz"], "mine.npz"),
    "own folder not there": (["data.name=some/where"], "some/where"),
    "unknown data": (["data.name=fashion-mnst"], "fashion-mnst", "fashion-mnist"),
    "path of the files not there": (["data.name=fashion-mnist", "data.path=nowhere"], "nowhere"),
    "no client ids given": (["partition.name=given"], "given", "fashion-mnist-mini"),
    "unknown method": (["method.name=fairmaen"], "fairmaen", "fairmean"),
    "unknown attack": (["attack.name=pairwize"], "pairwize", "pairwise"),
    "unknown partition": (["partition.name=dirichlett"], "dirichlett", "dirichlet"),
    "unknown model": (["model.name=mpl"], "mpl", "mlp"),
    "unknown module": (["model.name=nosuchmodule:make"], "nosuchmodule"),
    "rho > 1": (["attack.rho=1.5"], "attack.rho", "1.5"),
    "rho < 0": (["attack.rho=-0.1"], "attack.rho", "-0.1"),
    "rho nan": (["attack.rho=nan"], "attack.rho", "nan"),
    "lr < 0": (["train.lr=-0.1"], "train.lr", "-0.1"),
    "lr nan": (["train.lr=nan"], "train.lr", "nan"),
    "batch a text": (["train.batch=ten"], "train.batch", "ten"),
    "batch a fraction": (["train.batch=1.5"], "train.batch", "1.5"),
    "batch a truth value": (["train.batch=true"], "train.batch"),
    "batch < 0": (["train.batch=-1"], "train.batch", "-1"),
    "rounds = 0": (["train.rounds=0"], "train.rounds", "0"),
    "local_steps = 0": (["train.local_steps=0"], "train.local_steps", "0"),
    "participation = 0": (["train.participation=0"], "train.participation", "0"),
    "participation > 1": (["train.participation=1.1"], "train.participation", "1.1"),
    "unknown schedule": (["train.schedule=cosin"], "cosin", "cosine"),
    "unknown engine": (["train.engine=fats"], "fats", "fast"),
    "no such device": (["train.device=abacus"], "train.device", "abacus"),
    "no clients": (["partition.clients=0"], "partition.clients", "0"),
    "more clients than samples": (["partition.clients=6001"], "6001"),
    "seed a fraction": (["seed=1.5"], "seed", "1.5"),
    "targeted at no class": (["attack.name=targeted", "attack.target=10"], "attack.target", "10"),
    "targeted at itself": (["attack.name=targeted", "attack.source=1"], "attack.source", "1"),
    "config not there": (["gone.toml"], "gone.toml"),
    "two config files": (["a.toml", "b.toml"], "b.toml"),
    "the config is a folder": (["."], "'.'"),
}


@pytest.mark.parametrize(("arguments", "says"), [(a, s) for a, *s in BAD_SETTINGS.values()], ids=BAD_SETTINGS)
def test_bad_setting(arguments, says, capsys, here):
    refused(capsys, here, ["run", *arguments], *says)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.runds=5", "runds"),
        ("method.kappa=-1", "-1"),
        ("data.name=my.npz", "my.npz"),
        ("attack.clients=10", "all 10"),
    ],
)
def test_a_dry_run_finds_bad_input_too(setting, says, capsys, here):
    refused(capsys, here, ["run", "--dry-run", setting], says)


def test_a_step_size_beyond_float32_diverges_or_is_refused(capsys):
    """It must not end in a traceback, whichever of the two."""
    code = main(["run", "train.lr=1e39", *QUICK])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) in ((1, 1), (2, 1))
    assert "1e+39" in err


@pytest.mark.parametrize("name", ["iid", "shards", "dirichlet"])
def test_a_negative_seed_works_or_is_refused(name, capsys, here):
    """It must not end in a traceback, whichever of the two."""
    code = main(["run", "--dry-run", "seed=-1", f"partition.name={name}", *QUICK])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) in ((0, 0), (2, 1))


@pytest.mark.parametrize("text", ["this is not TOML", "[train\nrounds = 3", "seed = 1\nseed = 2"])
def test_config_that_is_not_toml(text, capsys, here):
    (here / "my.toml").write_text(text)
    refused(capsys, here, ["run", "my.toml"], "my.toml", "not TOML")


def test_config_that_is_not_text(capsys, here):
    (here / "my.toml").write_bytes(b"\xff\xfe\x00\x01")
    refused(capsys, here, ["run", "my.toml"], "my.toml", "not TOML")


def test_unknown_key_in_a_file(capsys, here):
    (here / "my.toml").write_text("[method]\nname = 'fairmean'\nkapa = 1.0\n")
    refused(capsys, here, ["run", "my.toml"], "kapa", "kappa")


@pytest.mark.parametrize("verb", [["run"], ["compare", "--methods", "mean", "--attacks", "none"]], ids=lambda v: v[0])
@pytest.mark.parametrize("place", ["taken", "taken/below"])
def test_results_folder_cannot_be_written(verb, place, capsys, here):
    (here / "taken").write_text("a file, not a folder")
    refused(capsys, here, [*verb, *QUICK, f"run.dir={place}"], "taken", "run.dir")
    assert (here / "taken").read_text() == "a file, not a folder"


def test_run_refuses_a_grid(capsys, here):
    (here / "my.toml").write_text("[grid]\nseeds = [1, 2]\n")
    refused(capsys, here, ["run", "my.toml"], "grid", "compare")


BAD_COMPARISONS = {
    "seeds a word": (["--seeds", "many"], "many"),
    "seeds empty": (["--seeds", ""], "--seeds"),
    "seeds a fraction": (["--seeds", "1.5"], "1.5"),
    "seeds backwards": (["--seeds", "3-1"], "3-1"),
    "seeds half a range": (["--seeds", "1-"], "1-"),
    "unknown method": (["--methods", "mean,fairmaen"], "fairmaen", "fairmean"),
    "method with half a setting": (["--methods", "fairmean:kappa"], "kappa", "key=value"),
    "method with bad setting": (["--methods", "fairmean:kappa=-1"], "kappa", "-1"),
    "method with unknown setting": (["--methods", "fairmean:kapa=1"], "kapa", "kappa"),
    "unknown aggregator of a pair": (["--methods", "fairmean+fedav"], "fedav", "fedavg"),
    "unknown attack": (["--attacks", "pairwize"], "pairwize", "pairwise"),
    "attack with bad setting": (["--attacks", "pairwise:rho=2"], "attack.rho", "2"),
    "all poisoned": (["--attacks", "pairwise:clients=10", "--methods", "mean"], "all 10 clients"),
    "grid not a list": (["grid.seeds=5"], "grid.seeds", "5"),
    "grid empty": (["grid.seeds=[]"], "grid.seeds"),
    "grid no section": (["grid=5"], "grid"),
    "grid of methods that are no names": (["grid.methods=[1]"], "1"),
    "grid of attacks that are no names": (["grid.attacks=[1]"], "1"),
    "grid of an unknown key": (['grid."train.runds"=[1,2]'], "runds"),
    "two config files": (["a.toml", "b.toml"], "b.toml"),
    "unknown key": (["train.runds=5"], "runds", "rounds"),
}


@pytest.mark.parametrize(("arguments", "says"), [(a, s) for a, *s in BAD_COMPARISONS.values()], ids=BAD_COMPARISONS)
def test_bad_comparison(arguments, says, capsys, here, monkeypatch):
    def ran(config, report, sources):
        raise AssertionError(f"a run was started with {config}")

    if "all 10 clients" not in says:  # that one shows when the clients are built
        monkeypatch.setattr("fairmean.experiments.study.run_to_an_end", ran)
    refused(capsys, here, ["compare", *QUICK, *arguments], *says)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 a zip that was cut off"])
def test_corrupted_cache(name, content, capsys, here, tmp_path):
    (tmp_path / "cache").mkdir()
    file = tmp_path / "cache" / f"{name}.npz"
    file.write_bytes(content)
    refused(capsys, here, ["run", f"data.name={name}"], str(file), f"fairmean data get {name}")
    assert file.read_bytes() == content


def nowhere(name, monkeypatch):
    """Leave a data set with one source, that cannot serve."""

    def fetch(scratch, progress):
        raise UnavailableError("the network is down")

    monkeypatch.setitem(SPECS, name, dataclasses.replace(SPECS[name], sources=(Source("the moon", fetch),)))


@pytest.mark.parametrize("verb", [["run", "data.name=cifar10"], ["data", "get", "cifar10"]], ids=["run", "get"])
def test_data_not_obtainable(verb, capsys, here, monkeypatch, tmp_path):
    nowhere("cifar10", monkeypatch)
    refused(capsys, here, verb, "cifar10", "the moon", "the network is down", "data.path")
    assert not list((tmp_path / "cache").glob("*"))


def write_module(here, name, body):
    (here / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n\n\ndef make(shape, classes):\n    {body}\n")
    return f"model.name={name}:make"


@pytest.mark.usefixtures("forget_modules")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, classes))",
            ["BatchNorm1d", "GroupNorm"],
        ),
        ("return 'a text'", ["str", "Module"]),
        ("raise ValueError('no good')", ["ValueError", "no good"]),
    ],
    ids=["batch norm", "no module", "raises"],
)
def test_bad_model(body, says, capsys, here):
    setting = write_module(here, "bad_model_of_a_user", body)
    refused(capsys, here, ["run", *QUICK, setting], "bad_model_of_a_user:make", *says)


@pytest.mark.usefixtures("forget_modules")
def test_own_model(capsys, here):
    setting = write_module(
        here, "good_model_of_a_user", "return nn.Sequential(nn.Flatten(), nn.LayerNorm(784), nn.Linear(784, classes))"
    )
    assert main(["run", "--json", *QUICK, setting]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["list", "nothing"],
        ["run", "--fast"],
        ["list", "methods", "mean", "x=1"],
        ["compare", "--method"],
        ["data"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments, capsys, here):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert everything(here) == []


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip()


# Settings


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.rounds=3", "--dry-run", "model.name=linear"],
        ["--dry-run", "train.rounds=3", "model.name=linear"],
        ["train.rounds=3", "model.name=linear", "--dry-run"],
        ["my.toml", "--dry-run", "train.rounds=3"],
        ["--dry-run", "my.toml", "--quiet", "train.rounds=3"],
    ],
    ids=" ".join,
)
def test_settings_anywhere_in_run(arguments, capsys, here):
    (here / "my.toml").write_text("[model]\nname = 'linear'\n[train]\nrounds = 7\n")
    assert main(["run", *arguments]) == 0
    config = parse(tomllib.loads(capsys.readouterr().out))
    assert config.train.rounds == 3
    assert config.model.name == "linear"
    assert everything(here) == ["my.toml"]


def test_settings_after_options_in_compare(capsys):
    assert main(["compare", "--methods", "mean", "train.rounds=3", "--attacks", "none", *QUICK[1:], "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["method"], record["attack"], record["status"]) == ("mean", "none", "finished")
    with open(os.path.join(record["folder"], "config.toml"), "rb") as file:
        assert tomllib.load(file)["train"]["rounds"] == 3


def test_dry_run_says_what_and_writes_nothing(capsys, here):
    assert main(["run", "--dry-run", *QUICK, "method.kappa=3"]) == 0
    out = capsys.readouterr().out
    assert parse(tomllib.loads(out)).method.hyper == {"kappa": 3.0, "tau": 1.0}
    assert "7,850 parameters" in out
    assert everything(here) == []


def test_run_prints_a_table_or_json(capsys, here):
    assert main(["run", *QUICK]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "fashion-mnist-mini · 10 clients" in out
    assert "(poisoned)" in out
    for word in ("average", "variance", "worst", "worst_tenth", "jain", "gini"):
        assert word in out
    assert main(["run", *QUICK, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert f"details: {summary['folder']}" in out
    assert f"{summary['average']:.4g}" in out


# Lists, data, new


@pytest.mark.parametrize("what", CATALOGUE)
def test_list(what, capsys, here):
    assert main(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert all(row.keys() == rows[0].keys() and row["name"] for row in rows)
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    indent = "  " if what == "methods" else ""  # methods stand below what their server sees
    first = [line.split()[0] for line in lines if line.startswith(indent) and line[len(indent) :][:1].strip()]
    assert [word for word in first if word not in ("name", "All")] == [row["name"] for row in rows]
    assert everything(here) == []


NAMES = {
    "methods": {"mean", "fedavg", "qffl", "qffl-normalised", "fairmean", "fairmean-normalised"},
    "attacks": {
        "none",
        "pairwise",
        "random",
        "random_class",
        "targeted",
        "look-alike",
        "confused",
        "furthest",
        "adaptive",
    },
    "datasets": {"fashion-mnist-mini", "fashion-mnist", "cifar10"},
    "models": {"mlp", "cnn", "linear", "resnet18", "transformer", "lstm", "module:factory"},
    "partitions": {"dirichlet", "iid", "shards", "given"},
}


@pytest.mark.parametrize("what", NAMES)
def test_list_has_what_the_issue_names(what):
    assert {row["name"] for row in CATALOGUE[what]()} >= NAMES[what]


def test_list_methods_as_json_has_the_ladder():
    rungs = [row["rung"] for row in CATALOGUE["methods"]()]
    assert rungs == sorted(rungs)


def test_data_list(capsys, tmp_path):
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["fashion-mnist-mini"]["where"] == "embedded"
    assert rows["fashion-mnist-mini"]["train"] == 6000
    assert rows["cifar10"]["where"] == "not downloaded"
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "fashion-mnist-mini" in out
    assert str(tmp_path / "cache") in out


@pytest.mark.parametrize("action", ["path", "get"])
def test_data_path_and_get_of_embedded_data(action, capsys):
    assert main(["data", action, "fashion-mnist-mini"]) == 0
    file = capsys.readouterr().out.strip()
    assert file == str(data.path("fashion-mnist-mini"))
    assert main(["data", action, "fashion-mnist-mini", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "fashion-mnist-mini", "path": file}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["path"], ["data path", "data list"]),
        (["get"], ["data get", "data list"]),
        (["path", "fashion-mnst"], ["fashion-mnst", "fashion-mnist"]),
        (["get", "fashion-mnst"], ["fashion-mnst", "fashion-mnist"]),
        (["path", "cifar10"], ["cifar10", "fairmean data get cifar10"]),
        (["get", "cifar10", "--from", "nowhere"], ["nowhere"]),
        (["get", "fashion-mnist-mini", "--from", "nowhere"], ["nowhere"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_data_errors(arguments, says, capsys, here):
    refused(capsys, here, ["data", *arguments], *says)


def test_new_prints_and_writes_the_defaults(capsys, here):
    assert main(["new"]) == 0
    assert capsys.readouterr().out == starter.text()
    assert everything(here) == []
    assert main(["new", "my.toml"]) == 0
    assert "my.toml" in capsys.readouterr().out
    assert parse(tomllib.loads((here / "my.toml").read_text(encoding="utf-8"))) == parse({})
    assert everything(here) == ["my.toml"]


def test_new_does_not_overwrite(capsys, here):
    (here / "my.toml").write_text("seed = 7\n")
    refused(capsys, here, ["new", "my.toml"], "my.toml", "exists")
    assert (here / "my.toml").read_text() == "seed = 7\n"


def test_new_where_nothing_can_be_written(capsys, here):
    refused(capsys, here, ["new", "no/such/folder/my.toml"], "no/such/folder/my.toml")


def test_the_starter_config_runs(capsys, here):
    assert main(["new", "my.toml"]) == 0
    assert main(["run", "my.toml", "--json", *QUICK]) == 0


# Progress

PROGRESS = Progress(3, 10, 2.0, {"average": 81.25, "variance": 9.5, "worst": 70.0})


def test_progress_is_silent_when_nobody_looks(capsys):
    with Live() as live:
        live.run(PROGRESS)
        live.study(0, 2, "mean · none · seed 1", PROGRESS)
        live.line("downloading 10 %")
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch, columns=200):
    """Let stderr be a terminal, and keep what is written to it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_progress_on_a_terminal(capsys, monkeypatch):
    screen = terminal(monkeypatch)
    with Live() as live:
        live.run(PROGRESS)
    shown = screen.getvalue()
    assert "round 3/10" in shown
    assert "2.0 rounds/s" in shown
    assert "0:04 left" in shown  # 7 rounds at 2 a second, rounded to the even 4
    assert "avg 81.2 var 9.5 worst 70.0" in shown
    assert shown.endswith("\r\033[K")
    assert capsys.readouterr().out == ""


def test_progress_of_a_study(monkeypatch):
    screen = terminal(monkeypatch)
    with Live() as live:
        live.study(1, 4, "mean · none · seed 1", PROGRESS)
    assert "[2/4] mean · none · seed 1 · round 3/10" in screen.getvalue()
    assert "0:14 left" in screen.getvalue()  # 7 rounds, and 2 × 10 more: 27 rounds at 2 a second


def test_quiet_progress_on_a_terminal(monkeypatch):
    screen = terminal(monkeypatch)
    with Live(quiet=True) as live:
        live.run(PROGRESS)
    assert screen.getvalue() == ""


def test_progress_before_the_first_evaluation_on_a_narrow_terminal(monkeypatch):
    screen = terminal(monkeypatch, columns=20)
    with Live() as live:
        live.run(Progress(1, 10, 2.0, {}))
    assert screen.getvalue().split("\r\033[K")[1] == "round 1/10 · 2.0 ro"


def test_run_on_a_terminal_shows_rounds_per_second(capsys, monkeypatch):
    screen = terminal(monkeypatch)
    assert main(["run", *QUICK]) == 0
    assert "rounds/s" in screen.getvalue()
    assert "rounds/s" not in capsys.readouterr().out
    for option in ("--json", "--quiet"):
        screen = terminal(monkeypatch)
        assert main(["run", *QUICK, "seed=2", option]) == 0
        assert screen.getvalue() == ""


def test_ctrl_c_waits_for_the_round_and_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    with Live() as live:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            live.run(PROGRESS)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait():
    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with Live(), pytest.raises(KeyboardInterrupt):
        twice()


def test_the_command_ends_quietly_when_its_reader_does():
    """``fairmean list methods | head -0``."""
    code = "import sys; from fairmean.terminal.main import main; sys.exit(main(['list', 'methods']))"
    read, write = os.pipe()
    os.close(read)
    env = os.environ | {"PYTHONPATH": str(Path(fairmean.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=env)
    os.close(write)
    assert "Traceback" not in done.stderr


def test_a_warning_of_ours_is_one_line():
    assert cli._in_one_line("few images", UserWarning, cli.__file__, 7) == "fairmean: few images\n"
    assert "test_cli.py:7: UserWarning: odd" in cli._in_one_line("odd", UserWarning, __file__, 7)
    assert main(["list", "attacks"]) == 0
    assert warnings.formatwarning is cli._in_one_line


def test_a_paper_of_ones_own_is_not_taken_for_ours(here):
    """python -m fairmean has the working folder on its path: a paper.py there was executed."""
    Path("paper.py").write_text("raise SystemExit('executed')")
    command = [sys.executable, "-m", "fairmean", "reproduce", "--help"]
    env = os.environ | {"PYTHONPATH": str(Path(fairmean.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert (done.returncode, "executed" in done.stderr) == (0, False)
    assert "table1" in done.stdout


def test_the_papers_verb_leaves_the_search_path_as_it_was(monkeypatch):
    """Also where the checkout is first on it, as in a process that pytest or a user started there."""
    checkout = str(Path(__file__).parents[1])
    for path in ([checkout, *sys.path], [*sys.path, checkout], [p for p in sys.path if p != checkout]):
        monkeypatch.setattr(sys, "path", list(path))
        assert reproduce.papers_verb() is not None
        assert sys.path == path
