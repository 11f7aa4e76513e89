"""Configs as people write them: TOML, nested values and ``key=value`` become checked sections, and back.

An unknown key is an error.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairmean.checks import as_float
from fairmean.errors import UserError, nearest, unknown
from fairmean.experiments.sections import (
    AttackConfig,
    Config,
    DataConfig,
    MethodConfig,
    PartitionConfig,
    ServerConfig,
)

_PLAIN = {"seed": "int", "theory": "bool"}
_SECTIONS = {f.name: f.default_factory for f in dataclasses.fields(Config) if f.name not in _PLAIN}


def parse(tree: Mapping[str, Any]) -> Config:
    """A config from nested plain values; every mistake is a one-line UserError."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key in _PLAIN:
            values[key] = _value(key, value, _PLAIN[key])
        elif key not in _SECTIONS:
            raise unknown_key(key)
        elif not isinstance(value, Mapping):
            example = next(iter(_keys(key)))
            raise UserError(f"{key} = {value!r}: {key} is a section; set one of its keys, such as {key}.{example}")
        else:
            values[key] = _section(key, value)
    if tree.get("data", {}).get("client") is not None:
        divided = tree.get("partition", {}).get("name", "given")
        if divided != "given":
            raise UserError(
                f"partition.name = '{divided}': data.client says already whose samples are whose; leave out one of them"
            )
        values["partition"] = dataclasses.replace(values.get("partition", PartitionConfig()), name="given")
    if "target" in tree.get("data", {}) and "name" not in tree.get("attack", {}):
        attack = values.get("attack", AttackConfig())
        values["attack"] = dataclasses.replace(attack, name="none")  # a table of the user's is not poisoned unasked
    config = Config(**values)
    from fairmean.rules.hyper import hyper_parameters

    built = config.method.build()  # checks names and values, and fills in the defaults
    spelled: dict[str, Any] = {}
    if built.name != config.method.name:  # a named method changed: say all of it, so that the config means the same
        scale, pre, aggregator = config.method.parts
        spelled = {"scale": scale, "aggregator": aggregator, "pre": pre or None}
    return dataclasses.replace(
        config,
        method=dataclasses.replace(config.method, name=built.name, hyper=built.hyper, **spelled),
        server=dataclasses.replace(config.server, hyper=hyper_parameters(config.server.build())),
    )


def data_section(overrides: Mapping[str, Any]) -> DataConfig:
    """The section [data] from dotted keys, checked as in a whole config; no other keys are taken."""
    tree: dict[str, Any] = {}
    for key, value in overrides.items():
        assign(tree, key, value)
    for key in tree.keys() - {"data"}:
        raise UserError(f"'{key}': only settings that begin with data. are read here")
    section: DataConfig = _section("data", tree.get("data", {}))
    return section


def parse_one(tree: Mapping[str, Any]) -> Config:
    """As ``parse``, for a single run, in which settings of an attack want its name."""
    attack, data = tree.get("attack", {}), tree.get("data", {})
    if (
        isinstance(data, Mapping)
        and "target" in data
        and isinstance(attack, Mapping)
        and attack
        and "name" not in attack
    ):
        raise UserError(f"attack.{next(iter(attack))}: no attack is named; set attack.name as well")
    return parse(tree)


def _keys(section: str) -> dict[str, Any]:
    """The keys of a section and their types, hyper-parameters of methods left out."""
    cls: Any = _SECTIONS[section]
    return {f.name: f.type for f in dataclasses.fields(cls) if f.name != "hyper"}


def unknown_key(key: str) -> UserError:
    """The error for a key that is not at the top of a config: it may belong into a section."""
    homes = [f"{section}.{key}" for section in _SECTIONS if key in _keys(section)]
    if homes:
        return UserError(f"unknown config key '{key}': did you mean '{homes[0]}'?")
    if nearest(key, [*_SECTIONS, *_PLAIN]) is None:
        below = {inner: f"{section}.{inner}" for section in _SECTIONS for inner in _keys(section)}
        near = nearest(key, below)
        if near is not None:
            return UserError(f"unknown config key '{key}': did you mean '{below[near]}'?")
    if nearest(key, [*_SECTIONS, *_PLAIN]) is None:
        sections = ", ".join(_SECTIONS)
        return UserError(f"unknown config key '{key}': keys are written section.key, as train.lr; sections: {sections}")
    return unknown("config key", key, [*_SECTIONS, *_PLAIN])


def _section(name: str, values: Mapping[str, Any]) -> Any:
    cls: Any = _SECTIONS[name]
    fields = _keys(name)
    known = {key: _value(f"{name}.{key}", value, fields[key]) for key, value in values.items() if key in fields}
    rest = {key: value for key, value in values.items() if key not in fields}
    if name in ("method", "server"):
        return cls(**known, hyper=rest)
    for key in rest:
        raise unknown(f"key in [{name}]", key, fields)
    return cls(**known)


def _value(key: str, value: Any, wanted: Any) -> Any:
    """``value`` as the annotated type, or an error that says what was expected."""
    kinds = [kind.strip() for kind in str(wanted).split("|")]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None and "None" in kinds:
        return None
    if type(value).__name__ in kinds:
        return value
    if type(value) is int and "float" in kinds:
        return as_float(key, value)
    for kind, inner in (("list[int]", int), ("list[str]", str)):
        if kind in kinds and isinstance(value, list) and all(type(item) is inner for item in value):
            return value
    words = {
        "int": "a whole number",
        "bool": "true or false",
        "float": "a number",
        "str": "a text",
        "list[int]": "a list of whole numbers",
        "list[str]": "a list of texts",
    }
    raise UserError(f"{key} = {value!r}: must be {' or '.join(words[kind] for kind in kinds if kind in words)}")


def literal(text: str) -> Any:
    """A value as typed on the command line: a TOML value, or else the text itself; ``8,9`` is a list."""
    for candidate in (text, f"[{text}]" if "," in text else text):
        try:
            return tomllib.loads(f"value = {candidate}")["value"]
        except (ValueError, RecursionError):  # also numbers with more digits than Python reads
            continue
    return text


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested values."""
    *sections, last = key.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UserError(f"{key}: '{section}' is a value, not a section")
        tree = inner
    if isinstance(value, Mapping) and isinstance(tree.get(last), dict):
        for inner_key, inner_value in value.items():
            assign(tree[last], inner_key, inner_value)
    else:
        tree[last] = dict(value) if isinstance(value, Mapping) else value


def read(path: str | Path) -> dict[str, Any]:
    """A TOML file as nested values."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # also with a byte-order mark
    except FileNotFoundError:
        raise UserError(f"config '{path}': there is no such file; 'fairmean new {path}' writes a starter") from None
    except OSError as error:
        raise UserError(f"config '{path}': cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        remedy = (
            f"; to use it as data, write data.name={path}" if Path(path).suffix in (".npz", ".npy", ".parquet") else ""
        )
        raise UserError(f"config '{path}': is not TOML, which is text in UTF-8{remedy}") from None
    except (ValueError, RecursionError) as error:
        remedy = f"; to use it as data, write data.name={path}" if Path(path).suffix in (".csv", ".tsv") else ""
        raise UserError(f"config '{path}': is not TOML ({error}){remedy}") from None


def gather(source: str | Path | Mapping[str, Any] | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A file or mapping with overrides (dotted keys or nested sections) laid over it.

    Hyper-parameters belong to the method, or server optimiser, beside which they stand: naming another one replaces
    them all.
    """
    tree: dict[str, Any] = {}
    for key, value in (read(source) if isinstance(source, str | Path) else source or {}).items():
        assign(tree, key, value)
    named: dict[str, Any] = {}
    for key, value in overrides.items():
        assign(named, key, value)
    for section, usual in (("method", MethodConfig().name), ("server", ServerConfig().name)):
        before, now = tree.get(section, {}), named.get(section, {})
        both = isinstance(before, dict) and isinstance(now, dict)
        if both and before.get("name", usual) != now.get("name", before.get("name", usual)):
            tree.pop(section, None)
    for key, value in overrides.items():
        assign(tree, key, value)
    return tree


def _toml(value: Any) -> str:
    """JSON's texts, numbers and lists are TOML's, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(config: Config) -> str:
    """The config as TOML text that ``parse`` reads back to the same config."""
    tree = config.to_dict()
    lines = [f"{key} = {_toml(tree.pop(key))}" for key in _PLAIN]
    for section, values in tree.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
