"""``fairmean list methods NAME``: one method, and what travels in its rounds."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fairmean
from fairmean.rules.named import named_methods
from fairmean.rules.servers.means import Mean
from fairmean.rules.travels import travels
from fairmean.terminal.catalogue import CATALOGUE, one_method
from fairmean.terminal.main import main
from tests.own import turns

pytestmark = pytest.mark.usefixtures("here")


def told(capsys, *words):
    """What is printed: as text, whose lines fit into 100 columns, and as JSON."""
    assert main(["list", *words]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert main(["list", *words, "--json"]) == 0
    return text, json.loads(capsys.readouterr().out)


def sizes(facts, key):
    return {item["name"]: item["numbers"] for item in facts["travels"][key]}


@pytest.mark.parametrize("name", named_methods())
def test_every_method(name, capsys):
    text, facts = told(capsys, "methods", name)
    row = next(row for row in CATALOGUE["methods"]() if row["name"] == name)
    shared = ("name", "rung", "server sees", "assumes", "hyper-parameters", "reference")
    assert {key: facts[key] for key in shared} == {key: row[key] for key in shared}
    assert facts["when"].split()[0] in text
    assert sizes(facts, "a client sends")["message"] == "d"
    assert ("loss" in sizes(facts, "a client sends")) == (facts["rung"] > 0)
    assert ("secure aggregation" in text) == (facts["rung"] == 0)
    kept = {"fednoro": ["shares", "rounds", "last_sent"], "antiflipper": ["last_sent"]}  # most others keep nothing
    kept["fairmean-recess"] = ["evidence", "times", "asked_at", "tested", "last_sent"]
    assert [item["name"] for item in facts["travels"]["a client remembers"]] == kept.get(name, [])


def test_a_normalised_scale(capsys):
    text, facts = told(capsys, "methods", "fairmean-split")
    assert sizes(facts, "a client sends") == {"message": "d", "divisor": 1}
    assert sizes(facts, "a client measures for itself") == {"loss": 1, "entropy": 1}
    assert sizes(facts, "the server sends") == {"model": "d"}
    assert "divisor  1 number   s_i: the server divides by the sum of these" in text
    assert "the server remembers: nothing" in text


@pytest.mark.parametrize(
    ("name", "sends"),
    [
        ("mean", {"message": "d"}),
        ("fedavg", {"message": "d", "divisor": 1}),
        ("fairmean-split+fedavg", {"message": "d", "divisor": 1}),
        ("fairmean-split+krum", {"message": "d", "scale": 1, "loss": 1}),
        ("fairmean+nnm+mean", {"message": "d"}),  # the server sees messages, but its rule does not look at losses
        ("term-hierarchical", {"message": "d", "count": 1, "loss": 1}),
        ("fedmdfg", {"message": "d", "loss": 1, "trial loss": 1}),
    ],
)
def test_what_a_client_sends(name, sends):
    assert sizes(one_method(name), "a client sends") == sends


@pytest.mark.parametrize(
    ("name", "keeps"),
    [("bant", {"trust": "n"}), ("centered-clipping", {"centre": "d"}), ("fedmdfg", {"expected": "n", "rounds": "n"})],
)
def test_what_the_server_remembers(name, keeps):
    assert sizes(one_method(name), "the server remembers") == keeps


def test_a_composed_method_with_settings(capsys):
    text, facts = told(capsys, "methods", "fairmean+nnm+cwtm:kappa=4:f=1")
    assert facts["hyper-parameters"] == {"kappa": 4.0, "tau": 1.0, "f": 1}
    assert facts["parts"] == {"objective": "cross-entropy", "scale": "fairmean", "pre": ["nnm"], "aggregator": "cwtm"}
    assert "pre-aggregation nnm" in text
    assert "Yin et al. 2018" in text
    assert one_method("fairmean+cwtm:kappa=4:f=1:pre=nnm") == facts


@pytest.mark.usefixtures("forget_modules", "registries")
def test_a_method_of_ones_own(capsys):
    shutil.copy(turns.__file__, "my_turns.py")
    text, facts = told(capsys, "methods", "turns+mean:objective=turns", "--import", "my_turns")
    assert sizes(facts, "a client sends") == {"message": "d", "divisor": 1, "shares": 10}
    assert sizes(facts, "the server sends") == {"model": "d", "shares": 10}
    assert sizes(facts, "a client measures for itself") == {"loss": 1, "odd": 1, "shares": 10}
    assert sizes(facts, "a client remembers") == {"odd": 1, "last_sent": 1}
    assert "shares     10 numbers  one per class" in text
    assert "A client whose scale is 0 sends nothing" in " ".join(text.split())
    assert main(["list", "methods", "turns+mean", "--import", "my_turns"]) == 2  # its scale needs its objective
    assert "scale 'turns+mean' (Trusted) failed (KeyError" in capsys.readouterr().err


@dataclass(frozen=True)
class Pairs(fairmean.Scale):
    """Clients add a matrix over classes, and one number; the server waits for five of them."""

    fewest = 5

    def __call__(self, losses, means, context):
        return torch.ones_like(losses)

    def side(self, scales, means, context):
        return {key: value.expand(len(scales), *value.shape) for key, value in context.broadcast.items()}

    def start(self, classes):
        return {"pairs": torch.zeros(classes, classes), "one": torch.zeros(())}


@dataclass(frozen=True)
class Odd(fairmean.LossRule):
    """It makes its state in a round, and needs a round unlike the one that is made up."""

    def __call__(self, round, state):
        return round.losses[99], {"more": round.losses}


def test_sizes_that_are_not_one_per_class():
    facts = travels(fairmean.Method("pairs", Pairs(), Mean()))
    assert [(item.name, item.numbers, item.about) for item in facts.server_sends[1:]] == [
        ("pairs", 100, "with 10 classes; made of the last round's sums"),
        ("one", 1, "made of the last round's sums"),
    ]
    assert facts.client_sends[1].about == "1: the server divides by their number"
    assert "fewer than 5 clients" in facts.needs[-1]


def test_a_state_that_cannot_be_foreseen():
    (state,) = travels(fairmean.Method("odd", Pairs(), Odd())).server_remembers
    assert state.numbers == "?"


@pytest.mark.parametrize("what", CATALOGUE)
def test_one_of_every_catalogue(what, capsys):
    name = CATALOGUE[what]()[0]["name"]
    text, facts = told(capsys, what, name)
    assert facts["name"] == name
    assert text.split()[:2] == ["name", name]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["methods", "fairmaen"], "unknown method 'fairmaen': did you mean 'fairmean'?"),
        (["methods", "fairmean+fedav"], "unknown aggregator 'fedav': did you mean 'fedavg'?"),
        (["methods", "fairmean:kapa=4"], "'kapa': did you mean 'kappa'?"),
        (["methods", "fairmean:kappa=-1"], "kappa = -1"),
        (["methods", "x=1"], "unknown method 'x=1'"),
        (["methods", ""], "unknown method ''"),
        (["attacks", "pairwize"], "unknown attack 'pairwize': did you mean 'pairwise'?"),
        (["optimisers", "adm"], "unknown optimiser 'adm': did you mean 'adam'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_name(words, says, capsys):
    assert main(["list", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
    assert not Path("runs").exists()


def test_the_help_says_what_there_is(capsys):
    with pytest.raises(SystemExit):
        main(["list", "--help"])
    words = capsys.readouterr().out
    assert "fairmean list methods" in " ".join(words.split())
    assert all(what in words for what in CATALOGUE)
