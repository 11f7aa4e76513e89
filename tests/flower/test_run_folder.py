"""A federation's run is read by the same commands as a simulator's, and survives kill -9."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord

import fairmean
from fairmean.errors import UserError
from fairmean.experiments.events import Listener
from fairmean.flower import FairStrategy, state_dict, stay_offline
from fairmean.terminal.main import main
from tests.flower.local_grid import FIRST
from tests.flower.test_faults import all_honest, make_model, silent, started

ROOT = Path(__file__).parents[2]


def command(capsys, *words):
    assert main(list(words)) in (0, None)
    return capsys.readouterr().out


@pytest.mark.parametrize(("method", "report"), [("fairmean", "sums"), ("fairmean", "clients"), ("median", "clients")])
def test_commands_read_it(method, report, here, capsys):
    grid = all_honest()
    grid.nodes[FIRST + 3] = silent
    folder = started(method, grid=grid, report=report).record.recorder.run.folder
    assert "finished" in command(capsys, "ls")
    shown = command(capsys, "show", folder.name)
    more = report == "clients"  # the silent node was also asked to measure the last model
    assert f"{4 + more} replies were not used" in shown
    assert ("stayed with the clients" in shown) == (report == "sums")
    command(capsys, "report", str(folder))
    assert Path("report.html").stat().st_size > 10_000
    assert "No run is at work" in command(capsys, "watch", "--once")


def test_watch_sees_a_federation_at_work(here, capsys):
    seen = []

    class Looks(Listener):
        def checkpointed(self, event):
            if event.round == 2:
                seen.append(command(capsys, "watch", "--once"))

    started("fairmean", report="clients", listeners=[Looks()])
    assert "2/4" in seen[0].replace(" ", "") or "fairmean" in seen[0]


def test_listeners_hear_of_a_federation(here):
    heard = []

    class Notes(Listener):
        def started(self, event):
            heard.append(("started", event.clients))

        def round_ended(self, event):
            heard.append((event.round, len(event.clients), event.accuracy is not None))

        def ended(self, event):
            heard.append(event.summary["status"])

    started("fairmean", report="clients", rounds=2, listeners=[Notes()])
    assert heard == [("started", 4), (0, 4, True), (1, 4, True), "finished"]


def test_the_model_can_be_had_again(here):
    strategy = started("fairmean")
    folder = strategy.record.recorder.run.folder
    model = make_model()
    model.load_state_dict(state_dict(folder))
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), strategy.w)
    with pytest.raises(UserError, match="is of a federation, whose model is your own"):
        fairmean.load(folder).model()


def test_whole_numbers_are_carried_along(here):
    arrays = ArrayRecord(make_model().state_dict())
    arrays["steps"] = Array(torch.tensor(7).numpy())

    class Counting(torch.nn.Sequential):
        def __init__(self):
            super().__init__(*make_model())
            self.register_buffer("steps", torch.tensor(0))

    from fairmean.flower.client import answer
    from tests.flower.local_grid import LocalGrid
    from tests.flower.test_faults import load_data

    grid = LocalGrid({FIRST + k: lambda m, c: answer(m, c, Counting, load_data) for k in range(4)})
    strategy = FairStrategy("mean", clients=4, startup=0, lr=0.1)
    result = strategy.start(grid, arrays, 2)
    assert result.arrays["steps"].numpy() == 7
    assert state_dict(strategy.record.recorder.run)["steps"] == 7


def test_a_finished_run_is_not_made_again(here):
    first = started("fairmean")
    grid = all_honest()
    strategy = FairStrategy("fairmean", clients=4, startup=0, pause=0, min_clients=2, lr=0.1)
    result = strategy.start(grid, ArrayRecord(make_model().state_dict()), 4)
    assert grid.sent == []
    assert torch.equal(strategy.layout.flat(result.arrays), first.w)


@pytest.mark.parametrize("method", ["fairmean-recess", "centered-clipping"])
def test_a_server_that_is_killed_goes_on(method, here):
    """kill -9 in the middle of round 3, with momentum and memories: the model and the table are as without it."""
    code = f"""
        import os, signal
        from tests.flower import conftest
        from tests.flower.test_faults import *

        def deadly(message, context):
            if message.content["fairmean"]["round"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return honest(message, context)

        grid = all_honest()
        grid.nodes[FIRST + 3] = deadly
        started({method!r}, grid=grid, rounds=6, report="clients", optimiser="momentum:beta=0.5")
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    went_on = started(method, rounds=6, report="clients", optimiser="momentum:beta=0.5")
    calm = started(method, rounds=6, report="clients", optimiser="momentum:beta=0.5", name="calm")
    assert torch.equal(went_on.w, calm.w)
    runs = [strategy.record.recorder.run for strategy in (went_on, calm)]
    assert runs[0].table.read_text() == runs[1].table.read_text()


def test_a_run_that_diverges_says_so(here, capsys):
    """Every client's numbers become infinite: the round is not repeated, and nobody is to blame."""
    strategy = started("fairmean:kappa=64", lr=3e38, pause=60, rounds=6, report="clients")
    run = strategy.record.recorder.run
    assert run.summary["status"] == "diverged"
    assert "diverged" in command(capsys, "ls")


def test_nothing_calls_home_unless_it_is_told_to():
    environment = stay_offline({"RAY_USAGE_STATS_ENABLED": "1"})
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["RAY_USAGE_STATS_ENABLED"] == "1"  # the user's own


def test_flower_is_named_where_it_is_missing(here):
    code = """
        import sys
        sys.modules["flwr"] = None
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "flwr" else find(name, *more)
        import fairmean, fairmean.flower
        fairmean.flower.FairStrategy
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert 'pip install "fairmean[flower]"' in done.stderr.splitlines()[-1]


def test_the_core_does_not_import_flower():
    code = "import fairmean, fairmean.flower, fairmean.terminal.main, sys; sys.exit('flwr' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0
