"""What the docs show runs as shown."""

import csv
import doctest
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import fairmean
from fairmean.importing import import_module
from fairmean.rules.plugins import load_plugins
from fairmean.terminal.main import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_python_blocks_run(here):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), space)


def test_readme_commands_parse(tmp_path, monkeypatch, capsys):
    """Every simulator command of the README is one that the program takes; runs are not started."""
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^fairmean ((?:run|compare|list|data|new) .*?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = command.split()
        if words[0] in ("run", "compare"):
            words.append("--dry-run")
            words = [word for word in words if not word.startswith("data.name=")]
        if words[:2] != ["data", "get"]:
            assert main(words) == 0, command


def test_the_methods_page_is_the_registry():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    make_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_docs)
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == make_docs.page()
    stored = ROOT / "src" / "fairmean" / "terminal" / "catalogue.json"
    assert stored.read_text(encoding="utf-8") == make_docs.stored(), "run python scripts/make_docs.py"


ADD = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
IMPORTS, *BLOCKS = re.findall(r"```python\n(.*?)```", ADD, re.DOTALL)
FILES = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\w+)\.py\n", block))}


def write(here, name):
    (here / f"{name}.py").write_text(IMPORTS + FILES[name], encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_each_part_of_ones_own_is_one_file(name, here, own, forget_modules, registries, capsys):
    """The files of the page work, in the commands that the page shows."""
    write(here, name)
    commands = re.findall(r"^# fairmean (.*)$", FILES[name], re.MULTILINE)
    assert commands
    for command in commands:
        words = command.split()
        if words[0] != "list":
            words += [f"data.name={own}", "train.rounds=4"]
            words += [] if "model.name" in command else ["model.name=linear"]
            words += ["--attacks", "none"] if words[0] == "compare" else []
        assert main(words) == 0, command
        out, err = capsys.readouterr()
        assert err == ""
        assert "†" not in out


def test_the_examples_do_what_they_say(here, own, forget_modules, registries):
    for name in FILES:
        write(here, name)
        import_module(name)
    direction = fairmean.aggregate("worst-half", torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(direction, torch.tensor([0.0, 0.0, 0.5, 0.5]))
    for share, rests in ((0.0, False), (0.99, True)):
        method = {"name": "rested+mean", "share": share}
        result = fairmean.run(data={"name": own}, model={"name": "linear"}, method=method, train={"rounds": 4})
        rows = list(csv.DictReader(result.table.read_text().splitlines()))
        assert {float(row["weight"]) == 0 for row in rows if row["round"] == "1"} == {False, rests}
        assert all(float(row["weight"]) > 0 for row in rows if row["round"] in "02")
    layer, x, out = sys.modules["gain"].Gain(3), torch.randn(5, 3), torch.zeros(2, 3)
    sys.modules["gain"].gain(layer, x, torch.ones(5, 3), [0, 2, 5], [out])
    torch.testing.assert_close(out, torch.stack([x[:2].sum(0), x[2:].sum(0)]))


def test_the_server_by_itself():
    (block,) = (block for block in BLOCKS if block not in FILES.values())
    space: dict[str, object] = {}
    exec(compile(block, "add-a-method.md", "exec"), space)
    assert space["w"].norm() > 0


def test_add_a_method(here, forget_modules, registries, capsys):
    write(here, "worst_half")
    import_module("worst_half")
    result = fairmean.compare(methods=["mean", "worst-half:q=0.8", "fairmean+worst-half"], train={"rounds": 3})
    assert result.methods == ["mean", "worst-half q=0.8", "fairmean+worst-half"]
    assert main(["list", "methods"]) == 0
    assert "worst-half q=0.5" in capsys.readouterr().out
    assert main(["list", "methods", "worst-half"]) == 0
    assert "you, today" in capsys.readouterr().out
    assert str(result).startswith("  ")
    assert "worst-half q=0.8" in str(result)


def test_listen_to_a_run(here, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "listen.md").read_text(), re.DOTALL)
    exec(compile(block, "listen.md", "exec"), {"__name__": "listen"})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "fairmean: 10 clients, rounds 0 to 2"
    assert [line.split(":")[0] for line in said[1:]] == ["round 0", "round 1", "round 2", "finished"]


def test_a_module_that_is_not_there(here, forget_modules, registries, capsys):
    write(here, "worst_half")
    words = ["compare", "--methods", "mean,worst-half", "--attacks", "none", "train.rounds=2", "model.name=linear"]
    assert main([*words, "--import", "worst_halv"]) == 2
    assert "no module 'worst_halv'" in capsys.readouterr().err


def test_another_package_adds_a_method(tmp_path, monkeypatch, registries):
    (tmp_path / "their_rules.py").write_text(
        "from dataclasses import dataclass\nimport fairmean, torch\n"
        "@fairmean.register('theirs', reference='them')\n@dataclass(frozen=True)\n"
        "class Theirs(fairmean.SumRule):\n    'The first client alone.'\n"
        "    def weights(self, round):\n        return torch.eye(len(round.sizes), dtype=torch.float64)[0]\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fairmean.methods]\ntheirs = their_rules\nbroken = no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    with pytest.warns(UserWarning, match=r"plug-in 'broken'"):
        theirs = fairmean.method("theirs")
    torch.testing.assert_close(fairmean.aggregate(theirs, torch.eye(3), torch.ones(3)), torch.eye(3)[0])
    load_plugins.cache_clear()
    monkeypatch.undo()


@pytest.mark.parametrize(
    "name",
    [
        "transform",
        "rules.named",
        "engine.one_round",
        "engine.server",
        "rules.optimisers",
        "experiments.study",
        "experiments.statistics",
        "engine.ranks",
    ],
)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"fairmean.{name}"))
    assert result.attempted
    assert not result.failed
