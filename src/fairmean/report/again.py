"""What is needed to make the runs of a page again: the command, the settings, the versions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fairmean.experiments.listing import flat
from fairmean.experiments.sections import Config
from fairmean.experiments.study import written
from fairmean.report.material import Entry, Material

_LEFT_OUT = ("seed", "train.device", "run.dir", "data.sha256", "model.sha256", "method.sha256", "server.sha256")


def again(material: Material) -> dict[str, Any]:
    """The command, the settings that all runs share, and what they were made with."""
    runs = [entry for entry in material.entries if entry.run is not None]
    if not runs:
        return {"command": "", "settings": {}, "made": []}
    settings = [_said(entry) for entry in runs]
    shared = {key: value for key, value in settings[0].items() if all(s.get(key) == value for s in settings)}
    return {
        "command": _command(material, runs, shared),
        "settings": {key: written(value) for key, value in shared.items() if not key.endswith("sha256")},
        "made": _made(runs),
    }


def _command(material: Material, runs: Sequence[Entry], shared: Mapping[str, Any]) -> str:
    """One line that makes the same runs: settings that are the defaults are left out."""
    usual = _usual()
    changed = {k: v for k, v in shared.items() if k not in _LEFT_OUT and (k not in usual or usual[k] != v)}
    if len(material.entries) == 1:
        words = [f"{key}={written(value)}" for key, value in changed.items() if key != "run.name"]
        seed = f"seed={material.seeds[0]}"
        return shlex.join(["fairmean", "run", *_named(words, runs[0]), seed])
    keys = list(dict.fromkeys(key for entry in runs for key in _said(entry)))
    varying = [key for key in keys if key not in shared and key not in _LEFT_OUT and "." in key]
    others = [key for key in varying if not key.startswith(("method.", "attack.", "run."))]
    methods = dict.fromkeys(_spec(entry, "method", others) for entry in runs)
    attacks = dict.fromkeys(_spec(entry, "attack", [], varying) for entry in runs)
    words = [
        f"{key}={written(value)}"
        for key, value in changed.items()
        if not key.startswith("method.") and key != "attack.name"
    ]
    options = ["--methods", ",".join(methods), "--attacks", ",".join(attacks), "--seeds", _seeds(material.seeds)]
    return shlex.join(["fairmean", "compare", *options, *words])


def _named(words: list[str], entry: Entry) -> list[str]:
    """The method and the attack stand first, also where they are the default ones."""
    first = [f"{key}={written(_said(entry).get(key))}" for key in ("method.name", "attack.name")]
    return [*first, *(word for word in words if word.partition("=")[0] not in ("method.name", "attack.name"))]


def _spec(entry: Entry, section: str, others: Sequence[str], only: Sequence[str] | None = None) -> str:
    """``name:key=value`` of a run's method or attack; of an attack only what is not the same in all runs."""
    settings = _said(entry)
    parts = [str(settings.get(f"{section}.name"))]
    if section == "attack" and parts[0] == "none":
        return "none"
    for key, value in settings.items():
        inner = key.removeprefix(f"{section}.")
        if key.startswith(f"{section}.") and inner not in ("name", "sha256") and (only is None or key in only):
            parts.append(f"{inner}={written(value)}")
    return ":".join([*parts, *(f"{key}={written(settings.get(key))}" for key in others)])


def _said(entry: Entry) -> dict[str, Any]:
    """The settings of a run that somebody chose: a partition that follows the run's seed was not."""
    assert entry.run is not None
    settings = entry.run.settings
    followed = settings.get("partition.seed") == settings.get("seed")
    return {key: value for key, value in settings.items() if not (followed and key == "partition.seed")}


def _seeds(seeds: Sequence[int]) -> str:
    """1-20 where they follow each other."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def _usual() -> dict[str, Any]:
    """The default settings by dotted key."""
    return dict(flat(Config().to_dict()))


def _made(runs: Sequence[Entry]) -> list[list[str]]:
    """Versions and machine; several values where runs differ in them."""
    found: dict[str, dict[str, None]] = {}
    for entry in runs:
        assert entry.run is not None
        for key in ("fairmean", "commit", "python", "torch", "numpy", "device", "platform"):
            value = entry.run.environment.get(key)
            if value:
                found.setdefault(key, {})[str(value)] = None
    seconds = [entry.run.environment.get("seconds") for entry in runs if entry.run is not None]
    rows = [[key, ", ".join(values)] for key, values in found.items()]
    if seconds and all(isinstance(s, int | float) for s in seconds):
        rows.append(["computing time", _time(float(sum(s for s in seconds if s is not None)))])
    return rows


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"
