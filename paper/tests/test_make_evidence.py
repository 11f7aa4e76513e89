"""The script that makes and merges the parts of the evidence."""

import importlib.util
import sys
from pathlib import Path

import pytest

from paper import evidence, tuning

ROOT = Path(__file__).parent.parent.parent
TINY = [
    "data.name=fashion-mnist-mini",
    "model.name=linear",
    "train.rounds=2",
    "train.dtype=float32",
    "train.device=cpu",
]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Called with words of a command line; its results folder is a temporary one."""
    spec = importlib.util.spec_from_file_location("make_evidence", ROOT / "paper" / "make_evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setitem(evidence.TRUST, "fashion-mnist", 50)
    (tmp_path / "results").mkdir()

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["make_evidence.py", *words])
        module.main()
        return tmp_path / "results"

    call.module = module
    return call


def part(tmp_path, name):
    (tmp_path / name).mkdir()
    return ["--out", str(tmp_path / name), f"run.dir={tmp_path / 'runs'}", *TINY]


def test_parts_of_the_evidence_are_merged(script, tmp_path, capsys):
    script("run", "fashion-mnist", "--methods", "mean", "--seeds", "1001-1002", *part(tmp_path, "a"))
    script("run", "fashion-mnist", "--methods", "fairmean", "--seeds", "1001-1002", *part(tmp_path, "b"))
    script("three", "fashion-mnist", "--methods", "fairmean", "--seeds", "1001", *part(tmp_path, "c"))
    assert "8 runs" in capsys.readouterr().out
    files = [str(tmp_path / name / "evidence-fashion-mnist.csv.gz") for name in "bca"]
    results = script("merge", "fashion-mnist", *files)
    merged = evidence.read(results / "evidence-fashion-mnist.csv.gz", "fashion-mnist")
    assert merged.methods == ["mean", "fairmean"]  # in the order of the table, not of the parts
    assert len(merged.records) == 2 * 4 * 2 + 1
    before = (results / "evidence-fashion-mnist.csv.gz").read_bytes()
    script("merge", "fashion-mnist", *files)
    assert (results / "evidence-fashion-mnist.csv.gz").read_bytes() == before


def test_some_attacks(script, tmp_path):
    some = ["--methods", "mean", "--attacks", "none,pairwise", "--seeds", "1001"]
    script("run", "fashion-mnist", *some, *part(tmp_path, "a"))
    found = evidence.read(tmp_path / "a" / "evidence-fashion-mnist.csv.gz", "fashion-mnist")
    assert [record["attack"] for record in found.records] == ["none", "pairwise"]


def test_settings_are_not_mixed(script, tmp_path):
    script("run", "fashion-mnist", "--methods", "mean", "--seeds", "1001", *part(tmp_path, "a"))
    more = [word for word in part(tmp_path, "b") if word != "train.rounds=2"]
    script("run", "fashion-mnist", "--methods", "mean", "--seeds", "1002", *more, "train.rounds=3")
    script("merge", "fashion-mnist", str(tmp_path / "a" / "evidence-fashion-mnist.csv.gz"))
    with pytest.raises(SystemExit, match="would mix settings, precision or rounds of mean"):
        script("merge", "fashion-mnist", str(tmp_path / "b" / "evidence-fashion-mnist.csv.gz"))
    with pytest.raises(SystemExit):
        script("run", "fashion-mnist", "train.rounds=3")  # changed settings need a folder of their own


def test_tuning_goes_on_where_it_stopped(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(tuning.TUNING, "fashion-mnist", {"mean": {"train.lr": [0.1, 0.2]}})
    monkeypatch.setattr(tuning, "precision", lambda method, dataset: "float32")
    script("tune", "fashion-mnist", "--seeds", "901-902", *part(tmp_path, "a"))
    results = script("merge", "fashion-mnist", str(tmp_path / "a" / "tuning-fashion-mnist.csv"))
    assert len(tuning.read(results / "tuning-fashion-mnist.csv")) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(evidence.TUNED, "fashion-mnist", {})
        table = str(tmp_path / "a" / "tuning-fashion-mnist.csv")
        words = ["--methods", "mean", "--seeds", "1001", "--tuning", table]
        script("run", "fashion-mnist", *words, *part(tmp_path, "c"))
        made = evidence.read(tmp_path / "c" / "evidence-fashion-mnist.csv.gz", "fashion-mnist")
        assert made.spec("mean")[0] == tuning.choose(tuning.read(Path(table)))["mean"]
    monkeypatch.setitem(tuning.TUNING, "fashion-mnist", {"mean": {"train.lr": [0.2, 0.4]}})
    capsys.readouterr()
    script("tune", "fashion-mnist", "--seeds", "901-902", *part(tmp_path, "b"))
    assert "2 runs" in capsys.readouterr().out
    script("tune", "fashion-mnist", "--seeds", "902-903", *part(tmp_path, "d"))
    assert "4 runs" in capsys.readouterr().out  # draw 903 of 0.2 is missing, though 901 and 902 are there
    script("merge", "fashion-mnist", str(tmp_path / "b" / "tuning-fashion-mnist.csv"))
    kept = {record["spec"] for record in tuning.read(results / "tuning-fashion-mnist.csv")}
    assert kept == {"mean:train.lr=0.2", "mean:train.lr=0.4"}  # the grid no longer has 0.1


def test_the_map_has_mean_beside_it(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script.module, "KAPPAS", (1.0, 4.0))
    monkeypatch.setattr(script.module, "TAUS", (1.0,))
    script("map", "fashion-mnist", "--seeds", "1001-1002", *part(tmp_path, "a"))
    mapped = evidence.read(tmp_path / "a" / "map-fashion-mnist.csv.gz", "fashion-mnist")
    assert len(mapped.records) == 3 * 2 * 2
    assert sum(method.startswith("mean:") for method in mapped.methods) == 1
