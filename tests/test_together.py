"""Comparisons whose runs advance together: the same folders, tables and numbers as one run after the other."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmean.errors import Busy, UserError
from fairmean.experiments import together
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.study import compare

pytestmark = pytest.mark.usefixtures("here")

METHODS = ["mean", "fairmean", "krum:f=1", "fedmgda+", "fedmdfg", "bant", "centered-clipping", "term"]
ATTACKS = ["none", "pairwise", "furthest"]


def settings(own, folder, **more):
    fixed = {"data.name": own, "model.name": "linear", "train.device": "cpu", "train.dtype": "float64"}
    return fixed | {"train.rounds": 8, "partition.clients": 5, "run.dir": folder, "run.eval_every": 3} | more


def rows(folder: str | Path):
    return list(csv.DictReader((Path(folder) / "clients.csv").read_text().splitlines()))


def same(one, other):
    """Records and long tables agree; a sum may round otherwise."""
    for a, b in zip(one.records, other.records, strict=True):
        assert all(a[key] == b[key] for key in ("method", "attack", "seed", "status"))
        np.testing.assert_allclose([a[m] for m in METRICS], [b[m] for m in METRICS], rtol=1e-9)
        for x, y in zip(rows(a["folder"]), rows(b["folder"]), strict=True):
            for key in x:
                if x[key] and y[key]:
                    assert float(x[key]) == pytest.approx(float(y[key]), rel=1e-7, abs=1e-9), key
                else:
                    assert x[key] == y[key]


@pytest.fixture(scope="module")
def alone(own, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("alone"))
    return compare(None, methods=METHODS, attacks=ATTACKS, seeds=[1, 2], together=1, **settings(own, folder))


def test_the_same_as_one_after_the_other(own, alone):
    many = compare(None, methods=METHODS, attacks=ATTACKS, seeds=[1, 2], together=1000, **settings(own, "many"))
    same(alone, many)
    names = {file.name for file in Path(many.records[0]["folder"]).iterdir()}
    assert names == {file.name for file in Path(alone.records[0]["folder"]).iterdir()}


@pytest.mark.parametrize("most", [7, 1000])
def test_in_several_waves(own, alone, most, monkeypatch):
    if most == 1000:  # as many as fit, and nothing fits beside another
        monkeypatch.setattr(together, "memory_of", lambda simulator: 1)
    seen = []
    known = {"methods": METHODS, "attacks": ATTACKS[:2], "seeds": [1]}
    many = compare(None, **known, together=most, report=lambda *a: seen.append(a[0]), **settings(own, "many"))
    assert len(set(seen)) == (3 if most == 7 else 16)
    known = {(r["method"], r["attack"], r["seed"]): r for r in alone.records}
    for record in many.records:
        other = known[record["method"], record["attack"], record["seed"]]
        np.testing.assert_allclose([record[m] for m in METRICS], [other[m] for m in METRICS], rtol=1e-9)


def test_the_same_run_asked_for_twice(own):
    methods = ["fairmean", "fairmean:kappa=1.0"]
    many = compare(None, methods=methods, attacks=["none"], together=10, **settings(own, "many"))
    assert many.records[0]["folder"] == many.records[1]["folder"]
    assert many.records[0]["average"] == many.records[1]["average"]


def test_nothing_is_computed_twice(own):
    known = {"attacks": ["none"], "seeds": [1], "together": 100, **settings(own, "many")}
    first = compare(None, methods=["mean", "krum:f=1"], **known)
    stamps = [(Path(r["folder"]) / "summary.json").stat().st_mtime_ns for r in first.records]
    again = compare(None, methods=["mean", "krum:f=1", "fairmean"], **known)
    assert [(Path(r["folder"]) / "summary.json").stat().st_mtime_ns for r in again.records[:2]] == stamps
    assert again.records[2]["status"] == "finished"


def test_interrupted_and_resumed(own):
    known = {"methods": ["mean", "krum:f=1", "centered-clipping"], "attacks": ["none", "pairwise"], "together": 100}
    whole = compare(None, **known, **settings(own, "whole"))

    def stop(done, total, label, progress):
        if progress.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(None, **known, report=stop, **settings(own, "many"))
    folder = next(path for path in Path("many/compare").iterdir() if path.is_dir())
    assert not (folder / "summary.json").exists()
    assert RunFolder(folder).load("cpu")["round"] == 5  # the round under way was finished first
    many = compare(None, **known, **settings(own, "many"))
    same(whole, many)
    for a, b in zip(whole.records, many.records, strict=True):
        assert torch.equal(*(RunFolder(Path(r["folder"])).load("cpu")["w"] for r in (a, b)))


def test_interrupted_in_the_last_round(own):
    def stop(done, total, label, progress):
        if progress.round == 8:
            raise KeyboardInterrupt

    known = {"methods": ["mean", "krum:f=1"], "attacks": ["none"], "together": 100}
    with pytest.raises(KeyboardInterrupt):
        compare(None, **known, report=stop, **settings(own, "many"))
    whole = compare(None, **known, **settings(own, "whole"))
    many = compare(None, **known, **settings(own, "many"))
    same(whole, many)


def test_stopped_before_the_summary(own):
    """The last checkpoint is there, the summary is not: no further step is taken."""
    known = {"methods": ["mean", "krum:f=1"], "attacks": ["none"], "together": 100}
    whole = compare(None, **known, **settings(own, "many"))
    before = [(RunFolder(Path(r["folder"])).load("cpu")["w"], rows(r["folder"])) for r in whole.records]
    for record in whole.records:
        (Path(record["folder"]) / "summary.json").unlink()
    again = compare(None, **known, **settings(own, "many"))
    for record, (w, table) in zip(again.records, before, strict=True):
        assert torch.equal(RunFolder(Path(record["folder"])).load("cpu")["w"], w)
        assert rows(record["folder"]) == table


def test_resumed_from_different_rounds(own):
    """Some runs were interrupted on their own, others never begun."""
    known = {"attacks": ["none"], "seeds": [1]}

    def stop(done, total, label, progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(None, methods=["fairmean"], **known, report=stop, **settings(own, "many"))
    many = compare(None, methods=["mean", "fairmean"], **known, together=10, **settings(own, "many"))
    whole = compare(None, methods=["mean", "fairmean"], **known, together=10, **settings(own, "whole"))
    same(whole, many)


def test_checkpoints_are_written_on_the_way(own, monkeypatch):
    monkeypatch.setattr(together, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(together, "_CHECKPOINT_SHARE", float("inf"))
    saved = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, c: (saved.append((c["round"], c["w"].clone())), save(self, c)))
    known = {"methods": ["mean", "krum:f=1"], "attacks": ["none"], "seeds": [1]}
    compare(None, **known, together=10, **settings(own, "many"))
    assert {t for t, _ in saved} == set(range(9))
    monkeypatch.setattr(RunFolder, "save", save)
    for t in (3, 6):
        short = compare(None, **known, together=10, **settings(own, f"short{t}", **{"train.rounds": t}))
        ends = [RunFolder(Path(r["folder"])).load("cpu")["w"] for r in short.records]
        for w in ends:
            assert any(torch.equal(w, other) for at, other in saved if at == t)


def test_one_diverges_the_others_do_not(own):
    methods = ["mean", "mean:train.lr=1e38", "krum:f=1:train.lr=1e38", "fairmean"]
    wild = {"train.dtype": "float32", "model.name": "mlp"}
    many = compare(None, methods=methods, attacks=["none"], seeds=[1], together=10, **settings(own, "many", **wild))
    assert [r["status"] for r in many.records] == ["finished", "diverged", "diverged", "finished"]
    assert np.isnan(many.records[1]["average"])


def test_runs_of_different_length(own):
    tree = {"grid": {"train.rounds": [4, 6]}}
    many = compare(tree, methods=["mean"], attacks=["none"], together=10, **settings(own, "many"))
    assert [max(int(row["round"]) for row in rows(r["folder"])) for r in many.records] == [4, 6]


def test_another_process_has_one(own):
    first = compare(None, methods=["mean"], attacks=["none"], together=10, **settings(own, "many"))
    folder = Path(first.records[0]["folder"])
    (folder / "summary.json").unlink()
    with RunFolder(folder), pytest.raises(Busy, match="another process"):
        compare(None, methods=["mean", "fairmean"], attacks=["none"], together=10, **settings(own, "many"))


def test_a_bad_number(own):
    with pytest.raises(UserError, match="together = 0"):
        compare(None, together=0, **settings(own, "many"))
