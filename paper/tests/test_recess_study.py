"""The study of fairmean-recess: what its rows hold, and clients that lie about their label shares."""

from __future__ import annotations

import json

import torch

from fairmean.experiments.building import build_simulator
from paper import recess

TINY = {
    "data.name": "fashion-mnist-mini", "model.name": "linear", "attack.name": "pairwise", "train.batch": 16,
    "train.rounds": 20, "train.lr": 0.1, "attack.clients": [2, 7],
}  # fmt: skip


def test_a_row_has_figures_and_what_clients_measured():
    row, federation = recess.one(TINY, "fairmean-recess", 3)
    assert 0 < row["worst"] <= row["average"] <= 100
    assert json.loads(row["poisoned"]) == [2, 7]
    assert len(json.loads(row["trust"])) == len(json.loads(row["excess"])) == 10
    again, shared = recess.one(TINY, "fairmean-recess", 3, like=federation)
    assert {**again, "seconds": 0} == {**row, "seconds": 0}
    assert shared.x is federation.x


def test_the_oracle_is_the_same_under_every_attack():
    rows = [recess.one({**TINY, "attack.name": name}, recess.ORACLE, 3)[0] for name in ("pairwise", "adaptive")]
    assert rows[0]["average"] == rows[1]["average"]


def test_liars_tell_the_shares_of_their_labels_before_the_attack():
    simulator = recess.stale(build_simulator(recess.configured(TINY, "fairmean-recess", 3)))
    honest = build_simulator(recess.configured(TINY, "fairmean-recess", 3))
    scales, means = torch.ones(10, dtype=torch.float64), {"labels": torch.full((10, 10), 0.1, dtype=torch.float64)}
    shares = simulator.method.scale.side(scales, means, _context(simulator))["shares"]
    federation = simulator.federation
    counts = torch.from_numpy(federation.class_counts(federation.clean_y)).double()
    torch.testing.assert_close(shares[[2, 7]], (counts / counts.sum(1, keepdim=True))[[2, 7]])
    assert (shares[[0, 1, 3, 4, 5, 6, 8, 9]] == 0.1).all()
    for t in range(3):
        simulator.step(t)
        honest.step(t)
    told, true = (one.state.broadcast["shares"] for one in (simulator, honest))
    assert (told - true).abs().max() > 0.01


def test_a_table_for_every_part(monkeypatch, tmp_path):
    monkeypatch.setattr(recess, "FILE", tmp_path / "recess.csv")
    monkeypatch.setattr(
        recess, "PARTS", {"small": recess.Part({"pairwise": TINY}, ("mean", "oracle", "fairmean-recess"), 3)}
    )
    for share in ((1, 2), (2, 2)):  # the draws of two processes are all draws
        recess.run(recess.Asked(["small"], 3, share=share))
    recess.run(recess.Asked(["small"], 3))  # what is there is not made again
    rows = recess.read(tmp_path / "recess.csv")
    assert len(rows) == 9
    text = "\n".join(recess.show(rows))
    assert "**small**" in text
    assert text.count("| pairwise |") == 3


def test_runs_that_advance_together_have_the_same_rows(monkeypatch, tmp_path):
    attacks = {name: {**TINY, "attack.name": name, "train.dtype": "float64"} for name in ("pairwise", "adaptive")}
    parts = {"few": recess.Part(attacks, ("mean", recess.ORACLE, "fairmean-recess", "fednoro:warm=5"), 3)}
    monkeypatch.setattr(recess, "PARTS", parts)
    files = [tmp_path / name for name in ("alone.csv", "together.csv")]
    recess.run(recess.Asked(["few"], 2, file=files[0]))
    recess.run_together(recess.Asked(["few"], 1, file=files[1]), 5)
    recess.run_together(recess.Asked(["few"], 2, file=files[1]), 5)
    alone, together = (
        sorted(({**row, "seconds": ""} for row in recess.read(file)), key=lambda row: str(row.values()))
        for file in files
    )
    assert len(alone) == 16
    assert together == alone


def test_oracles_of_other_clients_stay_apart(monkeypatch, tmp_path):
    known = {**TINY, "attack.name": "pairwise", "train.dtype": "float64"}
    settings = {f"{count} poisoned": {**known, "attack.clients": count} for count in (1, 2)}
    monkeypatch.setattr(recess, "PARTS", {"few": recess.Part(settings, (recess.ORACLE,), 3)})
    files = [tmp_path / name for name in ("alone.csv", "together.csv")]
    recess.run(recess.Asked(["few"], 1, file=files[0]))
    recess.run_together(recess.Asked(["few"], 1, file=files[1]), 5)
    alone, together = ([{**row, "seconds": ""} for row in recess.read(file)] for file in files)
    assert together == alone
    assert alone[0]["average"] != alone[1]["average"]


def test_the_page_has_the_tables_of_the_stored_rows():
    page = recess.PAGE.read_text(encoding="utf-8")
    assert recess.written(page, recess.read(recess.FILE)) == page


def _context(simulator):
    from fairmean.rules.context import Context

    return Context(
        t=torch.zeros((), dtype=torch.float64), rounds=20, clients=torch.arange(10),
        sizes=torch.ones(10, dtype=torch.float64), memory=simulator.memory, broadcast=simulator.state.broadcast,
    )  # fmt: skip
