"""'fairmean doctor': what it finds, what it says of what is broken, and that it never breaks itself."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairmean import data
from fairmean.terminal import doctor
from fairmean.terminal.main import main

pytestmark = pytest.mark.usefixtures("here")
ROOT = Path(__file__).parents[2]


def findings(capsys, *arguments, code=0):
    assert main(["doctor", "--json", *arguments]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (code == 0)
    return {finding["what"]: finding for finding in answer["findings"]}


def test_a_whole_installation(capsys, here):
    found = findings(capsys)
    for what in ("fairmean", "Python", "torch", "numpy", "device", "data fashion-mnist-mini", "results folder"):
        assert found[what]["state"] == "ok", found[what]
    assert found["data fashion-mnist"]["state"] == "optional"
    assert found["data fashion-mnist"]["remedy"] == "fairmean data get fashion-mnist"
    assert list(here.iterdir()) == []


def test_for_people(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "Everything that is needed is there." in text
    assert "fairmean data get cifar10" in text


def test_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {f"{name}>={least}" for name, least in doctor.NEEDED.items()}
    installed = {install for install, _ in doctor.PARTS.values()}
    assert set(project["dependencies"]) <= needed | installed
    assert set(project["optional-dependencies"]["plot"]) <= installed
    assert project["requires-python"] == ">=" + ".".join(map(str, doctor.PYTHON))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "not installed"),
        (ImportError("libcudart.so.12: cannot open", name="torch._C"), "does not load (ImportError: libcudart.so.12"),
        (OSError("a shared object is broken"), "does not load (OSError"),
        (None, "2.5.1+cpu, and 2.6 or newer is needed"),
    ],
)
def test_a_library_that_is_needed(error, says, monkeypatch, capsys):
    usual = importlib.import_module

    def imported(name, package=None):
        if name != "torch":
            return usual(name, package)
        if error is not None:
            raise error
        return type("Torch", (), {"__version__": "2.5.1+cpu", "get_num_threads": staticmethod(lambda: 1)})

    monkeypatch.setattr(doctor.importlib, "import_module", imported)
    if says == "not installed":
        monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    found = findings(capsys, code=1)
    assert found["torch"]["state"] == "missing"
    assert says in found["torch"]["detail"]
    assert found["torch"]["remedy"] == "pip install 'torch>=2.6'"
    assert main(["doctor"]) == 1
    assert "missing: torch" in capsys.readouterr().out


def test_results_that_cannot_be_written(capsys, here):
    (here / "file").write_text("")
    found = findings(capsys, "--dir", "file/runs", code=1)
    assert "'file/runs' cannot be written" in found["results folder"]["detail"]
    assert "run.dir" in found["results folder"]["remedy"]


def test_a_cache_that_cannot_be_written_is_no_catastrophe(capsys, here, monkeypatch):
    (here / "file").write_text("")
    monkeypatch.setenv("FAIRMEAN_DATA", str(here / "file"))
    found = findings(capsys)
    assert found["cache of data sets"]["state"] == "optional"
    assert "FAIRMEAN_DATA" in found["cache of data sets"]["remedy"]


def test_a_check_that_breaks_is_a_finding(capsys, monkeypatch):
    def broken():
        raise RuntimeError("surprise")

    monkeypatch.setattr(data, "describe", broken)
    found = findings(capsys)
    assert "surprise" in found["data sets"]["detail"]


def test_an_optional_part_that_is_missing(capsys, monkeypatch):
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "scipy" else find(name))
    found = findings(capsys)
    assert found["scipy"]["remedy"] == "pip install 'scipy>=1.11'"
    assert found["pillow"]["state"] == "ok"


def test_without_any_library(here):
    """In a Python that has nothing but the standard library, the doctor still answers."""
    python = [sys.executable, "-S", "-m", "fairmean", "doctor"]
    answer = subprocess.run(
        python, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "pip install 'torch>=2.6'" in answer.stdout
