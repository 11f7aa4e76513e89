"""Config: parsing, overrides, TOML and back, the hash that names a run."""

from __future__ import annotations

import dataclasses
import re
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmean.engine.precision import PRECISIONS
from fairmean.errors import UserError
from fairmean.experiments.config import gather, literal, parse, read, to_toml
from fairmean.experiments.keys import SECTIONS
from fairmean.experiments.sections import DTYPES, Config
from fairmean.terminal.starter import text


def test_defaults():
    config = parse({})
    assert config.data.name == "fashion-mnist-mini"
    assert (config.partition.name, config.partition.clients, config.partition.alpha) == ("dirichlet", 10, 0.5)
    assert (config.attack.name, config.attack.clients, config.attack.rho) == ("pairwise", 2, 1.0)
    assert (config.method.name, config.method.hyper) == ("fairmean", {"kappa": 1.0, "tau": 1.0})
    assert config.seed == 1


def test_the_starter_is_the_defaults():
    assert parse(tomllib.loads(text())) == parse(tomllib.loads(text(everything=True))) == parse({})


def test_every_key_is_described_with_its_default():
    described = {(section.name, key.name): key.default for section in SECTIONS for key in section.keys}
    there = {}
    for field in dataclasses.fields(Config):
        value = getattr(Config(), field.name)
        if dataclasses.is_dataclass(value):
            there |= {(field.name, f.name): getattr(value, f.name) for f in dataclasses.fields(value)}
        else:
            there["", field.name] = value
    assert described == {place: value for place, value in there.items() if place[1] != "hyper"}
    for section, key in described:
        assert re.search(rf"^(# )?{key} = ", text(everything=True), flags=re.M), f"{section}.{key}"


def test_the_number_formats_are_those_of_the_engine():
    assert tuple(PRECISIONS) == DTYPES


def test_the_starter_shows_every_key_of_the_contract():
    contract = {
        "data": ["name"],
        "partition": ["name", "alpha", "clients", "seed"],
        "attack": ["name", "clients", "fraction", "rho"],
        "model": ["name"],
        "method": ["name", "kappa", "tau"],
        "train": ["rounds", "lr", "lr_decay", "batch", "local_steps", "participation", "device"],
        "run": ["name", "dir"],
    }
    sections = re.split(r"^\[(\w+)\]$", text(), flags=re.M)
    shown = dict(zip(sections[1::2], sections[2::2], strict=True))
    for section, keys in contract.items():
        for key in keys:
            assert re.search(rf"^(# )?{key} = ", shown[section], flags=re.M), f"{section}.{key}"


VALUES = {
    "3": 3,
    "0.5": 0.5,
    "1e-3": 1e-3,
    "true": True,
    "8,9": [8, 9],
    "[8, 9]": [8, 9],
    "mean": "mean",
    '"mean"': "mean",
    "my.npz": "my.npz",
    "module:function": "module:function",
    "": "",
    "a,b": "a,b",
    "/some/where": "/some/where",
    "two\nlines": "two\nlines",
}


@pytest.mark.parametrize(("text", "value"), VALUES.items(), ids=map(repr, VALUES))
def test_literal(text, value):
    got = literal(text)
    assert got == value
    assert type(got) is type(value)


def test_numbers_of_numpy_are_numbers():
    config = parse({"seed": np.int64(3), "train": {"lr": np.float64(0.5), "rounds": np.int32(4)}})
    assert config == parse({"seed": 3, "train": {"lr": 0.5, "rounds": 4}})
    assert parse(tomllib.loads(to_toml(config))) == config


@given(st.text())
def test_literal_never_fails(text):
    literal(text)


@given(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans())
def test_literal_reads_numbers(value):
    text = str(value).lower()
    assert literal(text) == value


def test_dotted_keys_and_sections_are_the_same():
    dotted = gather(None, {"train.rounds": 3, "method.kappa": 2.0, "seed": 4})
    nested = gather(None, {"train": {"rounds": 3}, "method": {"kappa": 2.0}, "seed": 4})
    assert dotted == nested == gather(nested, {})
    assert parse(dotted).train.rounds == 3


def test_overrides_win_and_leave_the_source_alone():
    source = {"train": {"rounds": 3, "lr": 0.5}}
    tree = gather(source, {"train.rounds": 7})
    assert tree == {"train": {"rounds": 7, "lr": 0.5}}
    assert source == {"train": {"rounds": 3, "lr": 0.5}}


def test_a_file_with_overrides(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("seed = 5\n[train]\nrounds = 3\n")
    for source in (file, str(file)):
        config = parse(gather(source, {"train.lr": 0.2}))
        assert (config.seed, config.train.rounds, config.train.lr) == (5, 3, 0.2)
    assert read(file) == {"seed": 5, "train": {"rounds": 3}}


def test_whole_numbers_stand_for_numbers():
    config = parse({"train": {"lr": 1}, "method": {"kappa": 2}})
    assert isinstance(config.train.lr, float)
    assert isinstance(config.method.hyper["kappa"], float)
    assert config.hash() == parse({"train": {"lr": 1.0}, "method": {"kappa": 2.0}}).hash()


def test_scale_and_aggregator():
    config = parse({"method": {"scale": "fairmean", "aggregator": "fedavg", "kappa": 3}})
    assert config.method.name == "fairmean+fedavg"
    assert config.method.build().hyper == {"kappa": 3.0, "tau": 1.0}
    assert parse(tomllib.loads(to_toml(config))) == config


FULL = {
    "seed": 7,
    "theory": True,
    "data": {
        "name": "x.npz",
        "path": "there",
        "target": "outcome",
        "client": "site",
        "split": "part",
        "test": 0.3,
        "task": "binary",
        "validation": 0.1,
        "sha256": "0123456789abcdef",
        "trust": 50,
        "scale": "standard",
    },
    "partition": {"name": "given", "alpha": 0.1, "clients": 4, "seed": 3, "min_size": 2, "shards_per_client": 3},
    "attack": {
        "name": "targeted",
        "clients": [0, 2],
        "fraction": 0.25,
        "rho": 0.5,
        "pick": "random",
        "source": 2,
        "target": 5,
    },
    "model": {
        "name": "mlp",
        "weights": "before.safetensors",
        "frozen": ["0", "encoder.*"],
        "sha256": "fedcba9876543210",
        "weights_sha256": "0123456789abcdef",
    },
    "method": {"name": "fairmean", "kappa": 2.0, "tau": 0.5},
    "train": {
        "rounds": 9,
        "lr": 1e-5,
        "lr_decay": 0.99,
        "schedule": "cosine",
        "batch": 32,
        "local_steps": 2,
        "local_lr": 0.01,
        "client_momentum": 0.9,
        "weight_decay": 0.001,
        "proximal": 0.1,
        "participation": 0.5,
        "presence": "markov",
        "spell": 4.0,
        "spread": 0.1,
        "candidates": 7,
        "unbiased": True,
        "patience": 3,
        "keep": "best",
        "device": "cpu",
        "dtype": "float64",
        "engine": "reference",
        "memory": 1.5,
    },
    "server": {"name": "adam", "lr": 0.02, "sha256": "0123456789abcdef"},
    "run": {"name": "mine", "dir": "else", "eval_every": 3, "eval_clients": 4},
}
INSTEAD = {"train": {"local_epochs": 3}}  # keys that exclude one of the above


def keys():
    """Every key there is, with a value that is not the default, from the dataclasses themselves."""
    found = []
    for field in dataclasses.fields(Config):
        if not isinstance(FULL[field.name], dict):
            found.append((field.name, FULL[field.name]))
            continue
        section = FULL[field.name]
        assert isinstance(section, dict)
        declared = {f.name for f in dataclasses.fields(getattr(Config(), field.name))}
        if field.name != "method":
            section = section | INSTEAD.get(field.name, {})
            assert declared - {"hyper"} == set(section), f"FULL lacks a key of [{field.name}]"
        found += [(f"{field.name}.{key}", value) for key, value in section.items()]
    return found


@pytest.mark.parametrize(("key", "value"), keys(), ids=[key for key, _ in keys()])
def test_the_hash_depends_on_everything_but_where_results_go(key, value):
    if key == "method.name":
        value = "fairmean-normalised"
    needed = {  # without which they mean nothing
        "train.patience": {"data.validation": 0.2},
        "train.keep": {"data.validation": 0.2},
        "train.client_momentum": {"train.local_steps": 2},
        "train.proximal": {"train.local_steps": 2},
    }
    more = needed.get(key, {})
    changed, default = parse(gather(None, {key: value, **more})), parse(gather(None, more))
    assert changed != default, f"{key} = {value} is the default"
    assert (changed.hash() == default.hash()) == (key in ("run.name", "run.dir"))
    assert parse(tomllib.loads(to_toml(changed))) == changed


def test_the_hash_is_a_function_of_the_values():
    one = parse({"train": {"rounds": 3, "lr": 0.5}, "seed": 2})
    other = parse({"seed": 2, "train": {"lr": 0.5, "rounds": 3}})
    assert one.hash() == other.hash() == parse(one.to_dict()).hash()
    assert re.fullmatch(r"[0-9a-f]{12}", one.hash())


def test_defaults_spelled_out_are_the_same_run():
    assert parse({}).hash() == parse({"method": {"kappa": 1}, "train": {"rounds": 100}}).hash()


def test_toml_and_back():
    config = parse(FULL)
    again = parse(tomllib.loads(to_toml(config)))
    assert again == config
    assert again.hash() == config.hash()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_goes_to_toml_and_back(text):
    config = parse({"data": {"name": text}})
    assert parse(tomllib.loads(to_toml(config))) == config


@given(st.floats(min_value=5e-324, allow_nan=False, allow_infinity=True))
def test_any_number_goes_to_toml_and_back_or_is_refused(alpha):
    try:
        config = parse({"partition": {"alpha": alpha}, "train": {"lr": 0.1}})
    except UserError:
        return
    assert parse(tomllib.loads(to_toml(config))) == config


def test_assign_below_a_value():
    with pytest.raises(UserError, match=r"seed\.x"):
        gather({"seed": 1}, {"seed.x": 2})


@pytest.mark.parametrize("value", [None, [], "x", 1.5, True, {}])
def test_a_wrong_type_names_key_and_value(value):
    with pytest.raises(UserError, match=re.escape(f"train.rounds = {value!r}: must be a whole number")):
        parse({"train": {"rounds": value}})


def test_errors_are_one_line():
    for key, value in [("nix", {}), ("train.nix", 1), ("train", 3), ("method.name", "nix"), ("seed", "x")]:
        tree = gather(None, {key: value})
        with pytest.raises(UserError) as error:
            parse(tree)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "name", "scale", "aggregator"),
    [
        ({"name": "cwtm", "scale": "fairmean"}, "fairmean+cwtm", "fairmean", "cwtm"),
        ({"name": "qffl", "aggregator": "krum"}, "qffl+krum", "qffl", "krum"),
        ({"scale": "none", "aggregator": "krum"}, "none+krum", "none", "krum"),
        ({"name": "qffl+cwtm", "pre": "nnm"}, "qffl+nnm+cwtm", "qffl", "cwtm"),
        ({"name": "fairmean+cwtm", "pre": "nnm"}, "fairmean+nnm+cwtm", "fairmean", "cwtm"),
        ({"name": "fairmean+cwtm", "pre": ["clip", "nnm"]}, "fairmean+clip+nnm+cwtm", "fairmean", "cwtm"),
        ({"name": "fairmean+cwtm", "aggregator": "krum"}, "fairmean+krum", "fairmean", "krum"),
    ],
)
def test_compositions_are_spelled_out(method, name, scale, aggregator):
    config = parse({"method": method})
    assert (config.method.name, config.method.scale, config.method.aggregator) == (name, scale, aggregator)
    assert config.method.build().name == name
    assert parse(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("method", [{"name": "krmu", "pre": "nnm"}, {"name": "krmu", "scale": "fairmean"}])
def test_a_mistyped_name_is_an_error_in_a_composition_too(method):
    with pytest.raises(UserError, match="did you mean 'krum'"):
        parse({"method": method})


@pytest.mark.parametrize("name", ["fairmean+cwtm", "fairmean+nnm+fedmgda+", "qffl+clip+nnm+krum"])
def test_a_composition_by_its_name(name):
    config = parse({"method": {"name": name}})
    assert config.method.build().name == config.method.name == name
    assert parse(tomllib.loads(to_toml(config))) == config


def test_naming_another_method_leaves_the_first_ones_hyper_parameters_behind():
    given = {"method": {"name": "fairmean", "kappa": 4.0}, "server": {"name": "momentum", "beta": 0.5}}
    assert parse(gather(given, {"method.name": "krum"})).method.hyper == {"f": 2}
    assert parse(gather(given, {"method": {"name": "krum", "f": 1}})).method.hyper == {"f": 1}
    assert parse(gather(given, {"method.name": "fairmean"})).method.hyper["kappa"] == 4.0
    assert parse(gather(given, {"method.tau": 2.0})).method.hyper == {"kappa": 4.0, "tau": 2.0}
    assert parse(gather({"method": {"kappa": 4.0}}, {"method.name": "fairmean"})).method.hyper["kappa"] == 4.0
    assert parse(gather(given, {"server.name": "plain"})).server.hyper == {}
    assert parse(gather(given, {"server.lr": 0.1})).server.hyper == {"beta": 0.5}
