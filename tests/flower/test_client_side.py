"""What happens on a node: its memory, its training, its name, what leaves it."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fairmean.errors import UserError
from fairmean.flower import FairStrategy, fair
from fairmean.flower import client as client_side
from fairmean.flower.client import answer
from fairmean.flower.node_memory import KEPT, NodeMemory
from tests.flower import mini
from tests.flower.local_grid import FIRST, LocalGrid, node_context
from tests.flower.test_faults import all_honest, honest, load_data, make_model, started


def state(value):
    return {"usual": torch.tensor([float(value)]), "last_sent": torch.tensor([value - 1.0])}


def test_a_repeated_round_starts_from_the_memory_before_it(tmp_path):
    memory = NodeMemory(tmp_path, "run", "0")
    assert memory.before(0) is None
    for t in range(3):
        memory.keep(t, state(t))
    assert memory.before(3)["usual"].item() == 2
    assert memory.before(2)["usual"].item() == 1  # round 2 is repeated
    memory.keep(2, state(7))
    assert memory.before(3)["usual"].item() == 7
    assert memory.before(0) is None  # the run begins again
    assert NodeMemory(tmp_path, "other run", "0").before(3) is None


def test_a_server_that_goes_back_too_far_is_told(tmp_path):
    memory = NodeMemory(tmp_path, "run", "0")
    for t in range(KEPT + 3):
        memory.keep(t, state(t))
    with pytest.raises(UserError, match="the server went back to round 1"):
        memory.before(1)


def test_the_first_round_of_a_client_can_be_repeated(tmp_path):
    """It joins in round 5, which is then repeated; it has forgotten nothing, for it remembered nothing."""
    memory = NodeMemory(tmp_path, "run", "0")
    for _ in range(2):
        assert memory.before(5) is None
        memory.keep(5, state(5))
    memory.keep(6, state(6))
    assert memory.before(5) is None
    assert memory.before(6).keys() == state(5).keys()


def test_a_damaged_memory_is_named(tmp_path):
    memory = NodeMemory(tmp_path, "run", "0")
    memory.keep(0, state(0))
    memory.path.write_bytes(memory.path.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged"):
        memory.before(1)


@pytest.mark.parametrize("name", ["../../etc/x", "/abs", "..", "", "a/b", "x" * 300, "é"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    for memory in (NodeMemory(tmp_path, name, "0"), NodeMemory(tmp_path, "run", name)):
        assert memory.path.resolve().is_relative_to(tmp_path)
        assert len(memory.path.relative_to(tmp_path).parts) == 2


def test_the_memory_survives_kill_9(tmp_path):
    """A process that writes without pause is killed: what is there is whole, and of a round that it wrote."""
    code = f"""
        import torch
        from pathlib import Path
        from fairmean.flower.node_memory import NodeMemory
        memory = NodeMemory(Path({str(tmp_path)!r}), "run", "0")
        for t in range(10**6):
            memory.keep(t, {{"x": torch.full((20_000,), float(t))}})
            print(t, flush=True)
    """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    for line in writer.stdout:
        if int(line) >= 20:
            break
    os.kill(writer.pid, signal.SIGKILL)
    last = int(([line, *writer.stdout.read().split()])[-1])
    writer.wait()
    writer.stdout.close()
    kept = NodeMemory(tmp_path, "run", "0").before(10**9)["x"]
    assert kept.unique().tolist() in ([float(last)], [float(last + 1)])


def test_memories_of_a_federation_are_those_of_the_simulator(here):
    """fairmean-recess with a server that is stopped after round 2 and goes on with nodes of other ids."""

    class StopsError(Exception):
        pass

    def stops(message, context):
        if message.content["fairmean"]["round"] == 2:
            raise StopsError
        return answer(message, context, mini.make_model, mini.load_data)

    settings = {"clients": 4, "lr": 0.05, "lr_decay": 0.95, "startup": 0, "report": "clients"}
    grid = LocalGrid.honest(mini.make_model, mini.load_data)
    grid.nodes[FIRST + 3] = stops  # the others have already worked on round 2
    arrays = ArrayRecord(mini.make_model().state_dict())
    with pytest.raises(StopsError):
        FairStrategy("fairmean-recess", **settings).start(grid, arrays, 5)

    def moved(message, context):
        known = node_context(context.node_id, {"partition-id": context.node_id - 5000})
        return answer(message, known, mini.make_model, mini.load_data)

    strategy = FairStrategy("fairmean-recess", **settings)
    strategy.start(LocalGrid({5000 + k: moved for k in range(4)}), arrays, 5)
    run = mini.simulated("fairmean-recess")
    from tests.flower.test_same_as_simulator import same

    same(run, strategy.w, strategy.record.recorder.run.folder, True)
    assert strategy.record.recorder.run.status == "finished"
    checkpoint = torch.load(run.folder / "checkpoint.pt", weights_only=True)
    for k in range(4):
        kept = NodeMemory(here / ".fairmean", strategy.key, str(k)).before(5)
        for name, values in checkpoint["memory"].items():
            np.testing.assert_allclose(
                kept[name].numpy(), values[k : k + 1].numpy(), rtol=1e-5, atol=1e-6, err_msg=name
            )


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("mean", {"local_steps": 3}),
        ("fairmean:kappa=4", {"local_epochs": 2, "client_momentum": 0.5, "proximal": 0.1}),
        ("median", {"local_steps": 3, "client_momentum": 0.5, "weight_decay": 0.1}),
        ("fairmean", {"weight_decay": 0.1}),
    ],
)
def test_local_steps_are_those_of_the_simulator(method, steps, here):
    run = mini.simulated(method, local_lr=0.02, **steps)
    strategy = FairStrategy(
        method, clients=4, lr=0.05, lr_decay=0.95, local_lr=0.02, startup=0, report="clients", **steps
    )
    strategy.start(LocalGrid.honest(mini.make_model, mini.load_data), ArrayRecord(mini.make_model().state_dict()), 5)
    from tests.flower.test_same_as_simulator import same

    same(run, strategy.w, strategy.record.recorder.run.folder, True)


def test_a_training_function_of_ones_own(here):
    """Decorated, it gives what the ready client gives; a client that is out is not asked to train."""
    trained = []

    @fair(make_model, load_data)
    def train(message, context):
        model, lr = make_model(), message.content["config"]["lr"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y, *_ = load_data(context)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(3):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        trained.append(message.content["config"]["server-round"])
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 20})})
        return Message(content, reply_to=message)

    strategy = started(grid=LocalGrid({FIRST + k: train for k in range(4)}), local_steps=3)
    ready = started(local_steps=3, name="ready")
    assert trained == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    torch.testing.assert_close(strategy.w, ready.w, rtol=0, atol=1e-5)


def test_a_training_function_that_returns_something_else(here):
    @fair(make_model, load_data)
    def train(message, context):
        return Message(RecordDict({"arrays": ArrayRecord({})}), reply_to=message)

    with pytest.raises(UserError, match="0 usable replies"):
        started(grid=LocalGrid({FIRST + k: train for k in range(4)}), max_repeats=0)


def test_loaders_and_epochs(here):
    """Two loaders in place of four tensors; an epoch goes through all samples."""

    def loaders(context):
        x, y, test_x, test_y = load_data(context)
        return DataLoader(TensorDataset(x, y), batch_size=7), DataLoader(TensorDataset(test_x, test_y), batch_size=4)

    def node(message, context):
        return answer(message, context, make_model, loaders)

    grid = LocalGrid({FIRST + k: node for k in range(4)})
    strategy = started("fairmean", grid=grid, local_epochs=2, batch=8, report="clients")
    same = started("fairmean", local_epochs=2, batch=8, report="clients", name="tensors")
    other = started("fairmean", local_epochs=1, batch=8, report="clients", name="fewer")
    assert torch.equal(strategy.w, same.w)
    assert not torch.equal(strategy.w, other.w)


def test_clients_with_names(here):
    names = ["mercy", "st anna", "ö-hospital", "north"]

    def named(k):
        def node(message, context):
            x = load_data(node_context(0, {"partition-id": k}))
            return answer(message, node_context(context.node_id, {"client": names[k]}), make_model, lambda _: x)

        return node

    grid = LocalGrid({50 - k: named(k) for k in range(4)})
    strategy = started("fairmean-recess", grid=grid, clients=names, report="clients")
    numbered = started(
        "fairmean-recess",
        grid=LocalGrid({FIRST + k: honest for k in range(4)}),
        clients=4,
        report="clients",
        name="numbered",
    )
    assert torch.equal(strategy.w, numbered.w)
    run = strategy.record.recorder.run
    assert run.client_names == names
    assert set(run.frame()["client"]) == set(names)
    sent = grid.sent[0].content["fairmean"]["roster"]
    assert len(sent) == 4
    assert not set(sent) & set(names)


def test_nothing_of_a_client_leaves_under_sums(here):
    replies = []

    def watched(message, context):
        reply = honest(message, context)
        replies.append(reply.content)
        return reply

    started("fairmean", grid=LocalGrid({FIRST + k: watched for k in range(4)}))
    assert len(replies) == 16  # no further message to measure the last model
    for content in replies:
        assert set(content) == {"message", "fairmean", "statistics"}
        assert dict(content["statistics"]) == {}
        assert set(content["fairmean"]) == {"round", "ticket", "client", "sent"}
    replies.clear()
    started("fedavg", grid=LocalGrid({FIRST + k: watched for k in range(4)}))
    assert all(dict(content["statistics"]) == {"size": 20} for content in replies)


def test_a_message_from_another_server(here):
    message = Message(RecordDict(), dst_node_id=FIRST, message_type="train")
    reply = answer(message, node_context(FIRST), make_model, load_data)
    assert "not from fairmean's strategy" in reply.error.reason


def test_a_shared_parameter_is_trained_under_both_names(here):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.head(self.second(self.first(x)))

    def client(message, context):
        return answer(message, context, Tied, load_data)

    grid = LocalGrid({FIRST + k: client for k in range(3)})
    strategy = FairStrategy("mean", clients=3, lr=0.1, startup=0, pause=0)
    strategy.start(grid, ArrayRecord(Tied().state_dict()), 2, timeout=1)
    parts = strategy.layout.parts(strategy.w)
    assert torch.equal(parts["first.weight"], parts["second.weight"])
    assert not torch.equal(parts["first.weight"], Tied().first.weight)


def test_dropout_is_drawn_anew_in_every_step(here, monkeypatch):
    keys = []
    whole = client_side.one_by_one

    def watched(net, batch, *rest, **named):
        keys.append(batch.key)
        return whole(net, batch, *rest, **named)

    monkeypatch.setattr(client_side, "one_by_one", watched)
    strategy = FairStrategy("mean", clients=2, lr=0.1, startup=0, local_steps=3)
    strategy.start(all_honest(2), ArrayRecord(make_model().state_dict()), 2, timeout=1)
    assert len(keys) == 12
    assert len(set(keys)) == 6  # three steps in two rounds
