"""Late, dead, returning and lying nodes, without Flower's processes."""

import csv
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from torch import nn

from fairmean.errors import UserError
from fairmean.experiments.events import Listener
from fairmean.flower import FairStrategy
from fairmean.flower.client import answer
from fairmean.flower.round_lines import RoundLines
from fairmean.randomness import generator
from tests.flower.local_grid import FIRST, LocalGrid, node_context


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def load_data(context):
    random = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x = torch.randn(30, 4, generator=random)
    y = torch.randint(0, 3, (30,), generator=random)
    return x[:20], y[:20], x[20:], y[20:]


def honest(message, context):
    return answer(message, context, make_model, load_data)


def started(method="fairmean", rounds=4, grid=None, clients=4, **more):
    settings = {"startup": 0, "pause": 0, "min_clients": 2, "lr": 0.1, **more}
    strategy = FairStrategy(method, clients=clients, **settings)
    strategy.start(grid or all_honest(), ArrayRecord(make_model().state_dict()), rounds, timeout=1)
    return strategy


def all_honest(n=4):
    return LocalGrid({FIRST + k: honest for k in range(n)})


def rejected(strategy):
    file = strategy.record.recorder.run.folder / "rejected.csv"
    if not file.exists():
        return []
    with open(file, newline="") as table:
        return list(csv.DictReader(table))


def silent(message, context):
    return None


def test_the_round_goes_on_without_a_silent_node(here):
    grid = all_honest()
    grid.nodes[FIRST + 3] = silent
    strategy = started(grid=grid)
    fewer = started(grid=all_honest(3), name="fewer")
    assert torch.equal(strategy.w, fewer.w)
    assert {(row["node"], row["reason"]) for row in rejected(strategy)} == {("1003", "no reply before the timeout")}


def test_a_dead_node_is_named_though_the_notice_bears_another_id(here):
    def dead(message, context):
        reply = Message(Error(5, "the node is gone"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    grid = all_honest()
    grid.nodes[FIRST + 1] = dead
    rows = rejected(started(grid=grid))
    assert {row["node"] for row in rows} == {"1001"}
    assert all("code 5" in row["reason"] for row in rows)


def test_too_few_replies_repeat_the_round_and_never_step(here):
    """Round 1 has one usable reply in two attempts, and all in the third: the model is that of an undisturbed run."""
    tries = []

    def sometimes(message, context):
        if message.content["fairmean"]["round"] == 1 and len(tries) < 6:
            tries.append(1)
            return None
        return honest(message, context)

    grid = all_honest()
    for k in (1, 2, 3):
        grid.nodes[FIRST + k] = sometimes
    strategy = started(grid=grid)
    assert torch.equal(strategy.w, started(name="calm").w)
    assert [(row["round"], row["attempt"]) for row in rejected(strategy)] == [("1", "0")] * 3 + [("1", "1")] * 3


def test_a_round_is_not_repeated_for_ever_and_can_be_gone_on_with(here):
    grid = all_honest()
    order = iter(range(100))

    def fails_later(message, context):
        return honest(message, context) if next(order) < 6 else None

    for k in (1, 2, 3):
        grid.nodes[FIRST + k] = fails_later
    with pytest.raises(UserError, match=r"round 2: 1 usable replies in the last of 2 attempts, where 2 are needed"):
        started(grid=grid, max_repeats=1)
    strategy = started(max_repeats=1)
    assert torch.equal(strategy.w, started(name="calm").w)


def test_a_rule_that_needs_more_clients_waits_for_them(here):
    counted = []

    def late(message, context):
        counted.append(1)
        return None if len(counted) <= 2 else honest(message, context)

    grid = all_honest()
    grid.nodes[FIRST + 2] = grid.nodes[FIRST + 3] = late
    strategy = started("cwtm:f=1", grid=grid, min_clients=2)
    assert torch.equal(strategy.w, started("cwtm:f=1", name="calm").w)
    assert [(row["round"], row["attempt"]) for row in rejected(strategy)] == [("0", "0")] * 2


def test_too_few_nodes_are_named(here):
    with pytest.raises(UserError, match="only 1 nodes are connected"):
        started(grid=all_honest(1))


def test_a_replayed_reply(here):
    first = []

    def replaying(message, context):
        reply = honest(message, context)
        if not first:
            first.append(reply.content)
            return reply
        content = first[0]
        told = dict(content["fairmean"]) | {"round": message.content["fairmean"]["round"]}
        content["fairmean"] = ConfigRecord(told)
        return Message(content, reply_to=message)

    grid = all_honest()
    grid.nodes[FIRST] = replaying
    rows = rejected(started(grid=grid))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert {(row["client"], row["reason"]) for row in rows} == {("0", "replayed reply: it answers an earlier message")}


def test_two_nodes_that_claim_to_be_one_client(here):
    """Neither is believed at first; who was it before stays it."""

    def as_zero(message, context):
        return honest(message, node_context(context.node_id, {"partition-id": 0}))

    grid = all_honest()
    grid.nodes[FIRST + 7] = as_zero
    strategy = started(grid=grid)
    assert {row["reason"] for row in rejected(strategy)} == {"2 nodes claim to be client '0'"}
    assert {row["node"] for row in rejected(strategy)} == {"1000", "1007"}
    joins_later = LocalGrid({FIRST + k: honest for k in range(4)})

    class Joins(Listener):
        def round_ended(self, event):
            joins_later.nodes[FIRST + 7] = as_zero

    strategy = started(grid=joins_later, name="later", listeners=[Joins()])
    assert {(row["node"], row["reason"]) for row in rejected(strategy)} == {
        ("1007", "claims to be client '0', which node 1000 is")
    }
    assert torch.equal(strategy.w, started(name="calm").w)


def test_a_node_that_rejoins_under_another_id(here):
    grid = all_honest()

    def rejoined(message, context):
        return honest(message, node_context(context.node_id, {"partition-id": 3}))

    class Moves(Listener):
        def round_ended(self, event):
            if event.round == 1:
                del grid.nodes[FIRST + 3]
                grid.nodes[FIRST + 50] = rejoined

    strategy = started(grid=grid, listeners=[Moves()])
    assert rejected(strategy) == []
    assert torch.equal(strategy.w, started(name="calm").w)


def test_a_node_that_changes_who_it_is(here):
    def changing(message, context):
        number = 0 if message.content["fairmean"]["round"] == 0 else 1
        return honest(message, node_context(context.node_id, {"partition-id": number}))

    grid = all_honest()
    grid.nodes[FIRST] = changing
    del grid.nodes[FIRST + 1]
    rows = rejected(started(grid=grid))
    assert {row["reason"] for row in rows} == {"claims to be client '1', and was another one before"}


def test_a_reply_that_nobody_asked_for_and_a_second_one(here):
    def twice(message, context):
        return [honest(message, context), honest(message, context)]

    def stray(message, context):
        reply = honest(message, context)
        reply.metadata.__dict__["_src_node_id"] = 77
        return [reply, honest(message, context)]

    grid = all_honest()
    grid.nodes[FIRST], grid.nodes[FIRST + 1] = twice, stray
    strategy = started(grid=grid)
    assert {(row["node"], row["reason"]) for row in rejected(strategy)} == {
        ("1000", "second reply of the same node"),
        ("77", "reply from a node that was not asked"),
    }
    assert torch.equal(strategy.w, started(name="calm").w)


def test_errors_of_clients_are_told_in_words(here):
    def nameless(message, context):
        return honest(message, node_context(context.node_id, {"colour": "blue"}))

    def other_model(message, context):
        return answer(message, context, lambda: nn.Linear(4, 3), load_data)

    grid = all_honest()
    grid.nodes[FIRST], grid.nodes[FIRST + 1] = nameless, other_model
    reasons = {row["reason"] for row in rejected(started(grid=grid))}
    assert any("this node has no name; start it with --node-config" in reason for reason in reasons)
    assert any("the server's model and this node's differ in" in reason for reason in reasons)


def test_side_sums_are_checked(here):
    def change(key, value):
        def apply(message, context):
            reply = honest(message, context)
            content = reply.content
            content["side"] = ArrayRecord({**dict(content["side"]), key: value})
            return Message(content, reply_to=message)

        return apply

    from flwr.app import Array

    grid = all_honest()
    grid.nodes[FIRST + 2] = change("labels", Array(np.full(3, np.nan)))
    grid.nodes[FIRST + 3] = change("more", Array(np.zeros(1)))
    strategy = started("fairmean-recess", grid=grid)
    reasons = {row["reason"] for row in rejected(strategy)}
    assert all("side sum" in reason or "unexpected array" in reason for reason in reasons), reasons
    assert {row["node"] for row in rejected(strategy)} == {"1002", "1003"}


def test_infinite_numbers_do_not_reach_the_table(here):
    def boasting(message, context):
        reply = honest(message, context)
        content = reply.content
        content["statistics"] = MetricRecord({**dict(content["statistics"]), "loss": math.inf})
        return Message(content, reply_to=message)

    grid = all_honest()
    grid.nodes[FIRST] = boasting
    strategy = started("drfl", grid=grid)
    assert {row["reason"] for row in rejected(strategy)} == {"its loss is inf"}
    assert np.isfinite(
        strategy.record.recorder.run.columns["loss"][strategy.record.recorder.run.columns["client"] > 0]
    ).all()


def test_some_clients_take_part(here):
    """Once everybody is known, they are the clients that the simulator would draw."""
    grid = all_honest()
    strategy = started(grid=grid, participation=0.5, rounds=40, min_clients=None)
    sent = {}
    for message in grid.sent:
        sent.setdefault(int(message.content["fairmean"]["round"]), set()).add(message.metadata.dst_node_id - FIRST)
    assert all(len(clients) == 2 for clients in sent.values())
    drawn = {t: set(generator(1, "participation", t).permutation(4)[:2].tolist()) for t in sent}
    assert [t for t in sent if sent[t] != drawn[t]] == [] or max(t for t in sent if sent[t] != drawn[t]) < 20
    assert strategy.min_clients == 2
    assert set(strategy.nodes) == {0, 1, 2, 3}


def test_methods_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="fedmdfg: its server tries out models"):
        FairStrategy("fedmdfg", clients=4)
    with pytest.raises(UserError, match="report = 'sums': the server of median sees every message"):
        FairStrategy("median", clients=4, report="sums")
    with pytest.raises(UserError, match="unknown report 'everything'"):
        FairStrategy("mean", clients=4, report="everything")
    with pytest.raises(UserError, match="each client needs a name of its own"):
        FairStrategy("mean", clients=["a", "a"])
    with pytest.raises(UserError, match="min_clients = 5: there are 4 clients"):
        FairStrategy("mean", clients=4, min_clients=5)
    with pytest.raises(UserError, match="unknown method 'meen'"):
        FairStrategy("meen", clients=4)


ODD = {"a lone surrogate": "\ud800", "very long": "x" * 200_000, "lines of its own": "x\nfairmean: round 4/4"}


@pytest.mark.parametrize("name", ODD.values(), ids=ODD.keys())
def test_names_that_would_break_the_record(here, name, capsys):
    """They come from a hostile node; the table and the log stay whole, and the run ends as it should."""

    def hostile(message, context):
        reply = honest(message, context)
        reply.content[name] = MetricRecord({})
        return Message(reply.content, reply_to=message)

    grid = all_honest()
    grid.nodes[FIRST + 3] = hostile
    strategy = started(grid=grid, listeners=[RoundLines()])
    assert strategy.record.recorder.run.summary["status"] == "finished"
    found = rejected(strategy)
    assert len(found) == 4
    assert all("unexpected record" in row["reason"] and len(row["reason"]) <= 300 for row in found)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("fairmean: round ") for line in lines) == 4


def test_a_large_scale_does_not_pass_the_bound_on_messages(here):
    """On the rungs above 0 the server multiplies by the scale."""

    def hostile(message, context):
        reply = honest(message, context)
        if message.content["fairmean"]["train"]:
            reply.content["statistics"] = MetricRecord({**dict(reply.content["statistics"]), "scale": 1.9})
        return Message(reply.content, reply_to=message)

    grid = all_honest()
    grid.nodes[FIRST] = hostile
    plain = started("fairmean+krum:f=1", grid=grid, rounds=1, name="a")
    assert rejected(plain) == []
    norms = [float(one.message.norm()) for one in plain.accepted]
    strategy = started("fairmean+krum:f=1", grid=grid, rounds=1, max_norm=1.5 * max(norms), name="b", min_clients=3)
    assert "norm of its message" in rejected(strategy)[0]["reason"]
    strategy = started("krum:f=1", grid=grid, rounds=1, name="c", min_clients=3)
    assert "the method's largest" in rejected(strategy)[0]["reason"]


def test_under_sums_a_refusal_tells_no_number_of_a_client(here):
    def failing(message, context):
        return Message(Error(2, "<class 'ValueError'>:<could not convert 'Jane Doe'>"), reply_to=message)

    def large(message, context):
        reply = honest(message, context)
        if message.content["fairmean"]["train"]:
            reply.content["statistics"] = MetricRecord({**dict(reply.content["statistics"]), "size": 4711})
        return Message(reply.content, reply_to=message)

    grid = all_honest()
    grid.nodes |= {FIRST: failing, FIRST + 1: large}
    reasons = [row["reason"] for row in rejected(started("fedavg", grid=grid, rounds=1, max_size=100))]
    assert len(reasons) == 2
    assert not any("Jane" in reason or "4711" in reason for reason in reasons)
    told = started("fedavg", grid=grid, rounds=1, max_size=100, report="clients", name="told")
    assert any("4711" in row["reason"] for row in rejected(told))


def test_a_repeated_round_asks_other_clients(here):
    """One of four always fails; with half of them in a round, it must not block the federation."""

    def failing(message, context):
        return Message(Error(2, "no"), reply_to=message)

    grid = all_honest()
    grid.nodes[FIRST + 2] = failing
    strategy = started("mean", grid=grid, participation=0.5, min_clients=2, max_repeats=20, rounds=6)
    assert strategy.record.recorder.run.summary["status"] == "finished"
    assert rejected(strategy)


def test_replies_that_flower_cannot_read_repeat_the_round(here):
    grid, times = all_honest(), []
    whole = grid.send_and_receive

    def unreadable(messages, *, timeout=None):
        times.append(1)
        if len(times) == 2:
            raise TypeError("shape is null")
        return whole(messages, timeout=timeout)

    grid.send_and_receive = unreadable
    strategy = started("mean", grid=grid, rounds=3)
    torch.testing.assert_close(strategy.w, started("mean", rounds=3, name="undisturbed").w)
    assert len(times) == 4


def test_a_few_nodes_with_nan_cannot_end_a_run(here):
    def spoiled(message, context):
        reply = honest(message, context)
        first, *others = reply.content["message"].items()
        grown = {first[0]: Array(first[1].numpy() * np.nan), **dict(others)}
        reply.content["message"] = ArrayRecord(grown)
        return Message(reply.content, reply_to=message)

    grid = LocalGrid({FIRST: spoiled, FIRST + 1: spoiled, FIRST + 2: silent, FIRST + 3: silent})
    with pytest.raises(UserError, match="usable replies"):
        started("mean", grid=grid, max_repeats=1)
    resumed = started("mean")
    assert resumed.record.recorder.run.summary["status"] == "finished"


def test_side_sums_that_no_client_can_have(here):
    def hostile(message, context):
        reply = honest(message, context)
        side = {name: array.numpy() for name, array in reply.content["side"].items()} if "side" in reply.content else {}
        if reply.content["fairmean"]["sent"]:
            side["shares"] = np.array([1e308, -1e308, 0.0])
            reply.content["side"] = ArrayRecord({name: Array(value) for name, value in side.items()})
        return Message(reply.content, reply_to=message)

    grid = all_honest(6)
    grid.nodes[FIRST] = hostile
    strategy = started("fairmean-recess", grid=grid, clients=6, rounds=3)
    assert "the side sum 'shares' has values outside" in rejected(strategy)[0]["reason"]
    assert strategy.state.broadcast["shares"].min() >= 0


def test_too_few_clients_for_what_they_add_up():
    with pytest.raises(UserError, match="at least 3 clients in a round"):
        started("fairmean-recess", clients=2, rounds=1)
