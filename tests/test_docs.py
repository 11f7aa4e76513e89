"""What the docs show runs as shown."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import fairmean
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


def test_add_a_method(here, forget_modules, registries, capsys):
    rule, objective = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add-a-method.md").read_text(), re.DOTALL)
    space: dict[str, object] = {"__name__": "add_a_method"}
    exec(compile(rule, "add-a-method.md", "exec"), space)
    assert space["result"].methods == ["mean", "worst-half q=0.8", "fairmean+worst-half"]
    direction = fairmean.aggregate(fairmean.method("worst-half"), torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(direction, torch.tensor([0.0, 0.0, 0.5, 0.5]))
    assert main(["list", "methods"]) == 0
    assert "you, today" in capsys.readouterr().out
    assert str(space["result"]).startswith("  ")
    assert "worst-half q=0.8" in str(space["result"])
    exec(compile(objective, "add-a-method.md", "exec"), space)
    assert "fairmean objective=gce q=0.5" in capsys.readouterr().out


def test_listen_to_a_run(here, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "listen.md").read_text(), re.DOTALL)
    exec(compile(block, "listen.md", "exec"), {"__name__": "listen"})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "fairmean: 10 clients, rounds 0 to 2"
    assert [line.split(":")[0] for line in said[1:]] == ["round 0", "round 1", "round 2", "finished"]


def test_a_module_of_ones_own_from_the_command_line(here, forget_modules, registries, capsys):
    block, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add-a-method.md").read_text(), re.DOTALL)
    (here / "my_rules.py").write_text(block[: block.index("result =")])
    words = [
        "compare",
        "--methods",
        "mean,worst-half:q=0.8",
        "--attacks",
        "none",
        "train.rounds=2",
        "model.name=linear",
    ]
    assert main([*words, "--import", "my_rules"]) == 0
    assert "worst-half q=0.8" in capsys.readouterr().out
    assert main([*words, "--import", "my_rulez"]) == 2
    assert "no module 'my_rulez'" in capsys.readouterr().err


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
        "runs.study",
        "runs.statistics",
        "engine.ranks",
    ],
)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"fairmean.{name}"))
    assert result.attempted
    assert not result.failed
