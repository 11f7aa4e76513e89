"""Several ranks do what one process does; a rank that dies ends the job, and what is left resumes on any number."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import fairmean
from fairmean import models
from fairmean.data import Dataset
from fairmean.data.federation import build
from fairmean.data.tasks import TASKS
from fairmean.engine import Simulator, Training
from fairmean.engine.participation import Presence
from fairmean.engine.ranks import ALONE, Ranks, World, borders
from fairmean.errors import Lost, UserError
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import resolve
from fairmean.experiments.run import run_config
from fairmean.terminal.main import main
from fairmean.terminal.words import settings_of
from tests.engine.test_paths import METHODS
from tests.engine.test_tasks import OBJECTIVES
from tests.engine.test_tasks import simulator as task_simulator

MODES = {
    "full": {},
    "minibatch": {"batch": 16, "lr_decay": 0.9},
    "local": {"batch": 16, "local_steps": 3, "local_lr": 0.05},
    "partial": {"participation": 0.5, "batch": 16},
    "local, partial": {"participation": 0.5, "local_steps": 2},
}
ALONE_IN_ROUND = {"one client": {"participation": 0.2}, "one client, local": {"participation": 0.2, "local_steps": 2}}
LONG_TRAINING = {"local_epochs": 2, "client_momentum": 0.5, "proximal": 0.1, "weight_decay": 0.01}
EPOCHS = {
    "epochs": {"batch": 16, **LONG_TRAINING},
    "epochs, linear": {"batch": 16, "participation": 0.8, **LONG_TRAINING},
}
PRESENT = {
    "available": {"participation": 0.5, "presence": Presence("markov", spell=2), "batch": 16},
    "often nobody": {"participation": 0.2, "presence": Presence("markov", spell=1)},
    "by size": {"participation": 0.5, "presence": Presence("size"), "local_steps": 2},
    "by loss": {"participation": 0.34, "presence": Presence("power-of-choice")},
}
SOME = ["fairmean", "fairmean-normalised", "term-hierarchical", "krum", "cwtm", "centered-clipping", "fedmdfg", "bant"]


# In one process and in several: the same models


def small(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, classes))


def stacked(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 12), nn.ReLU(), nn.Linear(12, classes))


def federation(clients=6):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(300, 6)).astype(np.float32), np.arange(300) % 4
    x[np.arange(300), y] += 2
    data = Dataset("tiny", x[:210], y[:210], x[210:], y[210:], 4)
    options = {"min_size": 3}
    poisoned = np.array([1, 2])
    return build(data, clients=clients, partition_options=options, attack="furthest", poisoned=poisoned, trust=20)


def simulate(job, world=ALONE):
    """(w, state, losses and weights of the last round, losses and accuracies after it)."""
    name, mode, clients = job
    if mode in OBJECTIVES:  # a task
        simulator = task_simulator(mode, OBJECTIVES[mode][0], name, TASKS[mode].attacks[1], world=world)
    else:
        fed = federation(clients)
        training = Training(lr=0.1, rounds=10, **(MODES | ALONE_IN_ROUND | EPOCHS | PRESENT)[mode])
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(models.MODELS, "small", stacked if mode == "epochs, linear" else small)
            model = models.build("small", fed.shape, fed.classes, 3)
        simulator = Simulator(fed, model, METHODS[name], training, dtype=torch.float64, seed=3, world=world, chunk=40)
    assert simulator.agree(7 * (1 + world.rank)) == 7
    steps = [simulator.step(t) for t in range(2)]
    weights = steps[-1].weights
    return {
        "w": simulator.w.clone(),
        "losses": steps[-1].losses,
        "weights": torch.zeros(0) if weights is None else weights,
        "next": simulator.losses(2),
        "accuracy": torch.from_numpy(np.stack(simulator.evaluate())),
        "details": torch.from_numpy(np.stack(list(simulator.details().values()))),
        **simulator.state.rule,
    }


def work(rank, size, place, jobs):
    world = Ranks(torch.distributed.FileStore(f"{place}/store", size), rank, size, timeout=60)
    results = {job: simulate(job, world) for job in jobs}
    assert world.first(rank) == 0
    world.wait()
    torch.save(results, f"{place}/{rank}.pt")
    world.leave(0)


@pytest.fixture(scope="module", autouse=True)
def loopback():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fairmean.__file__).parents[1]), *filter(None, sys.path)]))
        yield


def assert_like_one_process(jobs, size, place):
    mp.spawn(work, (size, str(place), jobs), nprocs=size)
    ranks = [torch.load(place / f"{rank}.pt", weights_only=True) for rank in range(size)]
    for job in jobs:
        alone, first = simulate(job), ranks[0][job]
        assert alone.keys() == first.keys()
        for key, value in alone.items():
            assert torch.allclose(first[key], value, rtol=1e-9, atol=1e-9, equal_nan=True), (job, key)
            for other in ranks[1:]:
                assert other[job][key].numpy().tobytes() == first[key].numpy().tobytes(), (job, key)


def test_two_ranks_for_every_method_and_mode(tmp_path):
    assert_like_one_process([(name, mode, 6) for name in METHODS for mode in MODES], 2, tmp_path)


def test_two_ranks_whoever_takes_part(tmp_path):
    rules = ["fairmean", "term", "turns", "median", "rfa", "centered-clipping", "bant"]
    assert_like_one_process([(name, mode, 6) for name in rules for mode in PRESENT], 2, tmp_path)


def test_two_ranks_for_every_task_and_for_local_epochs(tmp_path):
    rules = ("fairmean", "term", "krum", "centered-clipping")
    jobs = [(rule, task, 6) for rule in rules for task in OBJECTIVES]
    names = [*SOME, "turns", "turns+loss", "turns+rfa", "turns+median", "weights+loss"]
    jobs += [(name, mode, 6) for name in names for mode in EPOCHS]
    assert_like_one_process(jobs, 2, tmp_path)


def test_four_ranks_also_with_fewer_clients(tmp_path):
    jobs = [(name, mode, 6) for name in SOME for mode in ("full", "local, partial")]
    jobs += [(name, mode, 6) for name in ("fairmean", "term", "adafed", "fedmdfg", "bant") for mode in ALONE_IN_ROUND]
    few = ["fairmean", "fairmean-normalised", "term", "entropy", "entropy+loss", "rfa"]
    jobs += [(name, mode, 3) for name in few for mode in ("full", "local")]
    assert_like_one_process(jobs, 4, tmp_path)


def test_borders_are_balanced():
    draw = np.random.default_rng(0)
    for _ in range(200):
        n, ranks = draw.integers(1, 30), draw.integers(1, 9)
        sizes = draw.integers(1, 100, n)
        ends = borders(sizes, ranks)
        assert (len(ends), ends[0], ends[-1]) == (ranks + 1, 0, n)
        loads = [sizes[a:b].sum() for a, b in pairwise(ends)]
        assert min(loads) >= 0
        assert abs(np.array(loads) - sizes.sum() / ranks).max() <= sizes.max()


class Gone(World):
    """Two ranks, of which the other cannot be reached after so many exchanges."""

    size = 2

    def __init__(self, after):
        self.left = after

    def first(self, value):
        return self._alone(value)

    def join(self, bounds, *columns):
        whole = [None if c is None else torch.cat([c, c.new_zeros(int(bounds[-1]) - len(c))]) for c in columns]
        return self._alone(whole)

    def _alone(self, value):
        self.left -= 1
        if self.left < 0:
            raise Lost("gone")
        return value


def test_the_reference_engine_is_for_one_process():
    with pytest.raises(UserError, match=r"train\.engine"):
        Simulator(federation(), None, METHODS["mean"], Training(), engine="reference", world=Gone(0))


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 7])
def test_a_loss_at_any_exchange_keeps_the_round(here, after):
    """The model that is saved belongs to the round that is saved, also when a resumed run loses a rank at once."""
    config = resolve(parse(gather(None, settings_of([*OWN, "train.rounds=9", "method.name=mean"])[1])))

    def stop(progress):
        if progress.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(config, stop)
    before = torch.load(only("runs") / "checkpoint.pt", weights_only=True)
    with pytest.raises(Lost) as lost:
        run_config(config, None, Gone(after))
    saved = torch.load(only("runs") / "checkpoint.pt", weights_only=True)
    assert saved["round"] == before["round"] + max(0, after - 4) // 2  # an evaluation and a round are one exchange each
    assert torch.equal(saved["w"], before["w"]) == (saved["round"] == before["round"])
    assert (lost.value.place != "") == (after >= 3)  # before: is it the same config, has it ended, and still not?


# The command


@pytest.fixture
def here(here, own):
    shutil.copy(own, "own.npz")
    return here


OWN = ["data.name=own.npz", "train.device=cpu", "train.dtype=float64", "model.name=linear"]


def free_port():
    """Below those that the system gives to whoever asks for any, so that it stays free until it is used."""
    for port in random.sample(range(10_000, 32_000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@contextlib.contextmanager
def torchrun(ranks, *arguments, **env):
    """The command under torchrun, which ends its ranks when it is ended."""
    launcher = ["-m", "torch.distributed.run", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    command = [sys.executable, *launcher, f"--nproc-per-node={ranks}", "-m", "fairmean", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | env, text=True, **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=60)


def ended(process):
    """(exit code, what was printed, the lines that are ours, the ranks' exit codes)."""
    out, err = process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if line.startswith("fairmean:")]
    return process.returncode, out, lines, sorted(map(int, re.findall(r"exitcode\s+: (-?\d+)", err)))


def pid_of(process, rank):
    """The process of a rank."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"no rank {rank}")


def wait_for_round(process, folder, t):
    """Until the table has that round."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit and process.poll() is None:
        for table in Path(folder).glob("*/*/clients.csv.part"):
            last = table.read_text().rpartition("\n")[0].rpartition("\n")[2].split(",")[0]  # of the last whole line
            if last.isdigit() and int(last) >= t:
                return
        time.sleep(0.02)
    raise AssertionError((process.poll(), process.communicate(timeout=60)))


def alone(*arguments):
    assert main([*arguments, "run.dir=alone", "--quiet"]) == 0


def only(folder):
    (found,) = (path for path in Path(folder).glob("*/*") if path.is_dir())
    return found


def assert_same_result(one, other):
    """The same run, to rounding errors."""
    assert one.name == other.name
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    first, second = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (one, other))
    assert first["round"] == second["round"]
    torch.testing.assert_close(first["w"], second["w"], rtol=1e-9, atol=1e-9)
    tables = [np.genfromtxt(folder / "clients.csv", delimiter=",", skip_header=1) for folder in (one, other)]
    np.testing.assert_allclose(*tables, rtol=1e-9, atol=1e-9)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    for key, value in summaries[0].items():
        assert summaries[1][key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key
    with np.load(one / "partition.npz") as a, np.load(other / "partition.npz") as b:
        assert all((a[name] == b[name]).all() for name in a.files)


def test_run(here, capsys):
    settings = [*OWN, "train.rounds=5", "method.name=cwtm", "method.f=2"]
    alone("run", *settings)
    printed = capsys.readouterr().out
    with torchrun(2, "run", *settings) as process:
        code, out, lines, _ = ended(process)
    assert (code, lines) == (0, [])
    assert out == printed.replace("alone", "runs")
    assert_same_result(only("runs"), only("alone"))
    assert json.loads((only("runs") / "environment.json").read_text())["ranks"] == 2
    assert json.loads((only("alone") / "environment.json").read_text())["ranks"] == 1


def test_compare(here, capsys):
    settings = [
        *OWN,
        "train.rounds=3",
        "--methods",
        "mean,krum:f=1,mean",
        "--attacks",
        "none,pairwise",
        "--seeds",
        "1,2",
    ]
    alone("compare", *settings)
    printed = capsys.readouterr().out
    with torchrun(2, "compare", *settings) as process:
        code, out, lines, _ = ended(process)
    assert (code, lines) == (0, [])
    assert out == printed.replace("alone", "runs")
    tables = [(Path(folder) / "compare/table.csv").read_text() for folder in ("runs", "alone")]
    assert tables[0] == tables[1].replace("alone", "runs")


def test_bad_input_is_told_once(here):
    with torchrun(2, "run", *OWN, "train.runds=5") as process:
        code, out, lines, codes = ended(process)
    assert (code, out, codes) == (1, "", [2, 2])
    assert len(lines) == 1
    assert "runds" in lines[0]
    assert not Path("runs").exists()


def test_divergence_is_told_once(here):
    with torchrun(2, "run", *OWN, "model.name=mlp", "train.lr=1e9", "train.rounds=60") as process:
        code, out, lines, codes = ended(process)
    assert (code, out, codes) == (1, "", [1, 1])
    assert len(lines) == 1
    assert "non-finite" in lines[0]
    assert json.loads((only("runs") / "summary.json").read_text())["status"] == "diverged"


LONG = [*OWN, "train.rounds=300", "run.eval_every=100"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the rank to kill in /proc")
@pytest.mark.parametrize(
    ("ranks", "victim", "again", "method"),
    [
        (3, 1, 2, "fairmean"),
        pytest.param(4, 2, 1, "krum", marks=pytest.mark.exhaustive),
        (2, 0, 1, "fairmean"),
    ],
)
def test_a_rank_that_dies(here, ranks, victim, again, method):
    settings = [*LONG, f"method.name={method}", *(["method.f=1"] if method == "krum" else [])]
    with torchrun(ranks, "run", *settings) as process:
        wait_for_round(process, "runs", 49)
        os.kill(pid_of(process, victim), signal.SIGKILL)
        began = time.monotonic()
        code, out, lines, codes = ended(process)
    assert time.monotonic() - began < 20
    assert (code, out) == (1, "")
    assert codes == [-9, *[4] * (ranks - 1)]
    assert len(lines) == 1, lines
    told = re.match(
        rf"fairmean: rank {victim} of {ranks} was lost in round (\d+) \(.*\); the last checkpoint is ", lines[0]
    )
    assert told, lines
    assert lines[0].endswith("; run the same command again, with any number of ranks, to go on")
    saved = torch.load(only("runs") / "checkpoint.pt", weights_only=True)["round"]
    assert f"the last checkpoint is round {saved} in {only('runs')}" in lines[0]
    if victim:
        assert saved == int(told[1]) >= 50  # nothing is lost
    if again == 1:
        assert main(["run", *settings]) == 0
    else:
        with torchrun(again, "run", *settings) as process:
            assert ended(process)[::2] == (0, [])
    alone("run", *settings)
    assert_same_result(only("runs"), only("alone"))


def test_a_run_begun_by_one_process_goes_on_with_two_and_stops_at_a_signal(here):
    settings = [*LONG, "train.participation=0.5"]

    def stop(progress):
        if progress.round == 20:
            raise KeyboardInterrupt

    config = resolve(parse(gather(None, settings_of(settings)[1])))
    with pytest.raises(KeyboardInterrupt):
        run_config(config, stop)
    for number in (signal.SIGINT, signal.SIGTERM):
        before = torch.load(only("runs") / "checkpoint.pt", weights_only=True)["round"]
        assert before >= 20
        with torchrun(2, "run", *settings) as process:
            wait_for_round(process, "runs", before + 49)
            process.send_signal(number)
            code, out, lines, _ = ended(process)
        assert code != 0
        assert out == ""
        assert lines == ["fairmean: interrupted; the same command continues where it stopped"]
        assert torch.load(only("runs") / "checkpoint.pt", weights_only=True)["round"] >= before + 50
    assert main(["run", *settings]) == 0
    alone("run", *settings)
    assert_same_result(only("runs"), only("alone"))
