"""The commented config that 'fairmean new' writes: the defaults, spelled out."""

from __future__ import annotations

import json

from fairmean.experiments.keys import SECTIONS, Key

_COLUMN = 32
_HYPER = """\
kappa = 1.0                     # extra weight of a large loss: at most 1 + kappa
tau = 1.0                       # the loss at which half the extra weight is given
"""
_GRID = """\
# Lists below [grid] are swept, and make a comparison: fairmean compare this.toml
# [grid]
# methods = ["mean", "fedavg", "fairmean:kappa=4"]
# attacks = ["none", "pairwise"]
# seeds = [1, 2, 3]
# "train.lr" = [0.05, 0.1]      # any key, in quotes
"""


def text(everything: bool = False) -> str:
    """The config as TOML: the keys that people change most, or all. A key without a default is commented out."""
    lines = ["# fairmean run this.toml        any key can be overridden: fairmean run this.toml train.rounds=20"]
    if not everything:
        lines.append("# 'fairmean new --all' shows every key")
    for section in SECTIONS:
        keys = [key for key in section.keys if everything or key.common]
        if not keys:
            continue
        lines += ["", f"# {section.about}", f"[{section.name}]"] if section.name else []
        lines += [_line(key) for key in keys]
        if section.name == "method":
            lines.append(_HYPER.rstrip())
    return "\n".join([*lines, "", _GRID])


def _line(key: Key) -> str:
    value = json.dumps(key.shown, ensure_ascii=False)
    return f"{'# ' if key.default is None else ''}{key.name} = {value}".ljust(_COLUMN) + f"# {key.about}"
