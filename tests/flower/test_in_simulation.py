"""Flower's own simulation: the same as in our simulator; hostile clients; nothing left behind."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from tests.flower import hostile, mini, own_parts
from tests.flower.in_simulation import FEW, MORE
from tests.flower.test_same_as_simulator import same

ROOT = Path(__file__).parents[2]


def simulation(kind, folder):
    """Run one to its end, in a process of its own; no process that it started may be there afterwards."""
    home = folder / "flwr-home"
    environment = os.environ | {"FLWR_HOME": str(home), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.flower.in_simulation", kind],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    end = time.monotonic() + 20
    while left := started_with(str(home)):
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.2)


def started_with(home):
    """The processes whose Flower has this home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={home}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # gone, or somebody else's
            continue
    return found


def run_of(name):
    (folder,) = Path("runs").joinpath(name).iterdir()
    return fairmean.load(folder)


def numbers_in(folder):
    """Every number that a run folder holds, but for the model, by file."""
    numbers = {}
    for file in folder.iterdir():
        if file.suffix == ".csv":
            rows = csv.reader(file.read_text().splitlines()[1:])
            numbers[file.name] = [float(cell) for row in rows for cell in row if cell.replace(".", "").isdigit()]
        elif file.suffix == ".json":
            numbers[file.name] = list(_numbers(json.loads(file.read_text())))
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    kept = {key: value for key, value in checkpoint.items() if key != "w"}
    numbers["checkpoint.pt"] = list(_numbers(kept))
    return numbers


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, torch.Tensor):
        yield from value.double().flatten().tolist()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@pytest.mark.parametrize(
    ("kind", "methods"), [("few", FEW), pytest.param("more", MORE, marks=pytest.mark.exhaustive)], ids=["few", "more"]
)
def test_the_same_federation(here, registries, kind, methods):
    own_parts.register()
    simulation(kind, here)
    for method in methods["clients"]:
        run = run_of(f"clients/{method}")
        same(mini.simulated(method), _w(run), run.folder, True)
    for method in methods["sums"]:
        run, simulated = run_of(f"sums/{method}"), mini.simulated(method)
        same(simulated, _w(run), run.folder, False)
        assert run.status == "finished"
        assert run.summary["accuracy"] == [None] * 4
        secrets = [simulated.columns[name] for name in simulated.columns if name not in ("round", "client", "regular")]
        values = np.concatenate(secrets)
        values = values[np.isfinite(values)]
        values = values[values != np.round(values)]  # a weight of 1 or 0 is no secret
        assert len(values) > 50
        for name, numbers in numbers_in(run.folder).items():
            for number in numbers:
                assert not np.isclose(values, number, rtol=1e-6, atol=0).any(), (name, number)


def _w(run):
    return torch.load(run.folder / "checkpoint.pt", weights_only=True)["w"]


def test_hostile_clients(here):
    simulation("attacked", here)
    run = run_of("hostile")
    with open(run.folder / "rejected.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for number in hostile.HOSTILE:
        for t in range(hostile.ROUNDS):
            reason = hostile.kind(number, t)
            assert any(reason in row["reason"] and int(row["round"]) == t for row in rows), (t, reason)
    kinds = {hostile.kind(number, t) for number in hostile.HOSTILE for t in range(hostile.ROUNDS)}
    assert kinds == {*hostile.KINDS, *hostile.WHOLE}
    assert len(kinds) >= 14
    nodes = {row["node"] for row in rows}
    assert len(nodes) == len(hostile.HOSTILE)  # the honest ones have no row
    assert len(rows) == len(hostile.HOSTILE) * (hostile.ROUNDS + 1)  # and once more, when the last model is measured
    taught = run.columns
    assert set(taught["client"][np.isfinite(taught["loss"])]) == {0, 1}
    np.testing.assert_allclose(_w(run), by_the_honest_alone(), rtol=0, atol=1e-5)


def by_the_honest_alone():
    """The model that clients 0 and 1 make by themselves, in plain PyTorch."""
    model = mini.make_model()
    clients = [mini.samples(k)[:2] for k in (0, 1)]
    sizes = torch.tensor([float(len(x)) for x, _ in clients])
    for _ in range(hostile.ROUNDS):
        losses = torch.stack([torch.nn.functional.cross_entropy(model(x), y) for x, y in clients])
        gradients = torch.autograd.grad((losses * sizes / sizes.sum()).sum(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.05 * gradient
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", [*hostile.KINDS, *hostile.WHOLE])
def test_every_kind_is_sent(kind):
    assert any(hostile.kind(n, t) == kind for n in hostile.HOSTILE for t in range(hostile.ROUNDS))
