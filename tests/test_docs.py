"""What the docs show runs as shown."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), space)


def test_readme_commands_parse(tmp_path, monkeypatch, capsys):
    """Every simulator command of the README is one that the program takes; runs are not started."""
    from fairmean.cli import main

    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^fairmean (.*?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = command.split()
        if words[0] in ("run", "compare"):
            words.append("--dry-run")
            words = [word for word in words if not word.startswith("data.name=")]
        if words[:2] != ["data", "get"]:
            assert main(words) == 0, command


@pytest.mark.parametrize("name", ["transform", "methods", "study"])
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"fairmean.{name}"))
    assert result.attempted
    assert not result.failed
