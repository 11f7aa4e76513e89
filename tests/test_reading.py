"""Runs that are read again: figures, table, partition, the trained model; finding them by a part of their name."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean import UserError
from fairmean.experiments.building import build_federation
from fairmean.experiments.listing import FORMAT, Entry, differing, entries, find

pytestmark = pytest.mark.usefixtures("here")


def made(own, **more):
    """A small run on tiny data."""
    sections = {"train": {"rounds": 3, "device": "cpu"}, "partition": {"clients": 5, "min_size": 5}}
    for key, values in more.items():
        sections[key] = sections.get(key, {}) | values if isinstance(values, dict) else values
    return fairmean.run(data={"name": own}, **sections)


def test_a_model_loaded_in_a_new_process_has_the_stored_accuracies_to_the_digit(own):
    stored = made(own, model={"name": "mlp"})
    program = """
        import sys, json, torch, fairmean
        from fairmean.experiments.building import build_federation
        run = fairmean.load(sys.argv[1])
        model, clients = run.model(), build_federation(run.config)
        assert not model.training
        with torch.no_grad():
            right = (model(clients.test_x).argmax(1) == clients.test_y).double()
        borders = zip(clients.test_offsets.tolist(), clients.test_offsets[1:].tolist())
        print(json.dumps([100 * right[a:b].sum().item() / (b - a) for a, b in borders]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(stored.folder)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == stored.accuracy.tolist()


def test_convolutions_and_dropout_are_plain_pytorch_again(here):
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8), np.arange(60) % 3
    np.savez("images.npz", x_train=images, y_train=labels, x_test=images[:30], y_test=labels[:30])
    stored = fairmean.run(
        data={"name": "images.npz"},
        model={"name": "cnn"},
        partition={"name": "iid", "clients": 3},
        attack={"name": "none"},
        train={"rounds": 1, "device": "cpu"},
    )
    model = stored.model()
    assert any(type(module) is torch.nn.Dropout for module in model.modules())
    assert all(parameter.is_contiguous() and parameter.storage_offset() == 0 for parameter in model.parameters())
    assert stored.evaluate().tolist() == stored.evaluate(model).tolist() == stored.accuracy.tolist()
    model.train()(torch.zeros(2, 3, 16, 16))  # dropout works outside the engine


def test_a_model_whose_source_has_changed_is_refused(own, here, forget_modules, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    source = "import torch\ndef make(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"
    Path("wide.py").write_text(source)
    stored = made(own, model={"name": "wide:make"})
    assert isinstance(stored.model(), torch.nn.Linear)
    Path("wide.py").write_text(source + "# another one\n")
    with pytest.raises(UserError, match="has changed since the run"):
        fairmean.load(stored.folder).model()


def test_a_run_holds_what_is_in_its_folder(own):
    stored = made(own, theory=True, model={"name": "linear"})
    run = fairmean.load(stored.folder)
    assert run == stored
    assert hash(run) == hash(stored)
    assert run.status == "finished"
    assert run.config == stored.config
    assert run.summary == stored.summary
    assert run.rounds == 3
    assert run.hash == stored.config.hash()
    assert run.environment["torch"] == torch.__version__
    assert run.certificate is not None
    assert run.certificate.rounds == 3
    assert made(own).certificate is None
    assert run.settings["train.rounds"] == 3

    clients = build_federation(run.config)
    assert run.partition.sizes.tolist() == clients.sizes.tolist()
    assert run.partition.test_sizes.sum() == len(clients.test_y)
    for counts, labels in ((run.partition.classes, clients.y), (run.partition.clean_classes, clients.clean_y)):
        for client, (a, b) in enumerate(itertools.pairwise(clients.offsets)):
            assert counts[client].tolist() == np.bincount(labels[a:b], minlength=4).tolist()
    assert (run.partition.classes != run.partition.clean_classes)[~run.regular].any()
    assert (run.partition.classes == run.partition.clean_classes)[run.regular].all()

    rows = [line.split(",") for line in run.table.read_text().splitlines()]
    assert list(run.columns) == rows[0]
    for name, column in zip(rows[0], zip(*rows[1:], strict=True), strict=True):
        wanted = [float(value) if value else np.nan for value in column]
        np.testing.assert_array_equal(run.columns[name].astype(float), wanted)
    assert np.isnan(run.columns["weight"][-5:]).all()


def test_a_folder_of_version_0_1_can_be_read(own):
    stored = made(own)
    accuracy = stored.accuracy
    (stored.folder / "run.json").unlink()
    with np.load(stored.folder / "partition.npz") as whole:
        np.savez(stored.folder / "partition.npz", **{k: v for k, v in whole.items() if "class" not in k})
    run = fairmean.load(stored.folder)
    assert run.partition.classes is None
    assert run.accuracy.tolist() == accuracy.tolist()
    assert run.evaluate().tolist() == accuracy.tolist()


def test_a_folder_of_a_newer_format_is_refused(own):
    stored = made(own)
    (stored.folder / "run.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(UserError, match="newer fairmean"):
        fairmean.load(stored.folder)


def test_runs_are_found_by_a_part_of_their_name(own):
    first, second = made(own), made(own, seed=2)
    os.utime(first.folder / "summary.json", (1, 1))
    for file in first.folder.iterdir():
        os.utime(file, (1, 1))
    assert fairmean.runs() == [first, second]
    assert fairmean.load(second.hash[:6]) == fairmean.load(f"run/{second.hash[:6]}") == second
    assert find(second.folder / "clients.csv") == second.folder
    with pytest.raises(UserError, match="fits 2 runs"):
        find("run/")
    with pytest.raises(UserError, match="there is no run 'zzz'"):
        fairmean.load("zzz")
    with pytest.raises(UserError, match="holds several runs"):
        fairmean.load("runs")
    assert differing(entry.settings for entry in entries()) == ["seed", "partition.seed"]


def test_the_status_of_a_run_says_whether_somebody_is_at_work(own):
    class Look(fairmean.Listener):
        def round_ended(self, event):
            assert event.run.status == "running"
            if event.round == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairmean.run(data={"name": own}, train={"rounds": 3, "device": "cpu"}, listeners=[Look()])
    (run,) = fairmean.runs()
    assert run.status == "interrupted"
    assert run.summary == {}
    assert run.rounds == 2
    assert len(run.columns["round"]) == 20
    with pytest.raises(UserError, match="is interrupted"):
        run.accuracy  # noqa: B018
    (run.folder / "summary.json").write_text("{")
    assert Entry(run.folder).status == "damaged"


def columns_without_evaluations(run):
    keys = ("round", "client", "loss", "weight")
    return {key: run.columns[key][~np.isnan(run.columns["weight"])].tolist() for key in keys}


@pytest.mark.parametrize(
    "more",
    [
        {"method": {"name": "centered-clipping"}},
        {"method": {"name": "fairmean"}, "server": {"name": "momentum"}, "train": {"batch": 8, "participation": 0.6}},
        {"theory": True, "model": {"name": "linear"}},
    ],
    ids=["state", "sampled", "theory"],
)
def test_more_rounds_continue_a_finished_run(own, more):
    train = {"rounds": 4} | more.get("train", {})
    short = made(own, **more | {"train": train})
    heard = []

    class Hear(fairmean.Listener):
        def started(self, event):
            heard.append((event.start, event.resumed))

    train["rounds"] = 7
    settings = {"data": {"name": own}, "partition": {"clients": 5, "min_size": 5}, **more}
    long = fairmean.run(**settings | {"train": {"device": "cpu"} | train}, listeners=[Hear()])
    assert heard == [(4, True)]
    assert long.continues == {"run": short.hash, "rounds": 4}
    fresh = fairmean.run(**settings | {"train": {"device": "cpu"} | train, "run": {"name": "anew"}})
    assert fresh.continues is None
    assert fresh.summary == long.summary
    assert columns_without_evaluations(fresh) == columns_without_evaluations(long)
    for one, other in zip(fresh.model().parameters(), long.model().parameters(), strict=True):
        assert torch.equal(one, other)
    assert fairmean.load(short.folder).summary == short.summary
    assert fairmean.load(long.folder).status == "finished"
    if more.get("theory"):
        assert long.certificate.rounds == fresh.certificate.rounds == 7
        assert (long.folder / "theory.csv").read_text() == (fresh.folder / "theory.csv").read_text()


def test_a_run_whose_steps_depend_on_the_rounds_begins_anew(own, registries):
    made(own, train={"schedule": "cosine"})
    with pytest.warns(UserWarning, match="cosine.*begins anew"):
        long = made(own, train={"schedule": "cosine", "rounds": 5})
    assert long.continues is None

    @fairmean.register_scale("fading")
    @dataclass(frozen=True)
    class Fading(fairmean.Scale):
        """s_i = 1 − t/T."""

        def __call__(self, losses, means, context):
            return torch.ones_like(losses) * (1 - context.t / context.rounds)

    made(own, method={"name": "fading+mean"})
    with pytest.warns(UserWarning, match="scale 'Fading' is told the number of rounds"):
        made(own, method={"name": "fading+mean"}, train={"rounds": 5})


def test_other_runs_are_not_continued(own):
    made(own)
    assert made(own, seed=2, train={"rounds": 5}).continues is None
    assert made(own, train={"rounds": 5, "lr": 0.2}).continues is None
    assert made(own, train={"rounds": 2}).continues is None
    assert made(own, run={"name": "other"}, train={"rounds": 5}).continues is None
    assert made(own, train={"rounds": 5}).continues["rounds"] == 3


def test_a_study_continues_its_runs(own):
    for rounds in (3, 5):
        result = fairmean.compare(
            methods=["mean", "fairmean"],
            attacks="none",
            seeds=range(1, 3),
            data={"name": own},
            train={"rounds": rounds, "device": "cpu"},
            together=4 if rounds == 5 else 1,
        )
    runs = [fairmean.load(record["folder"]) for record in result.records]
    assert [run.continues["rounds"] for run in runs] == [3] * 4
