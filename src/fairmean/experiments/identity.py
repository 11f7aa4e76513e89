"""What a run is. Two runs are the same run, and share a folder and its results, exactly when all of these are the same:

- the resolved config: every setting, also those that were left to their defaults or to the machine;
- the content of the data that was used (a digest, or the published content of a data set known by name);
- the source of every piece of the user's code that takes part: the model, the parts of the method, the optimiser;
- ``NUMERICS``, the version of fairmean's own results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fairmean import data
from fairmean.data import Dataset, own
from fairmean.data.scaling import standardised
from fairmean.errors import UserError
from fairmean.importing import import_module, import_name
from fairmean.rules.registry import source_of
from fairmean.user_modules import module_digest

if TYPE_CHECKING:
    from fairmean.experiments.config import Config

NUMERICS = 1
"""Raise this when fairmean gives other results for the same config: results stored before are then not taken for
today's. tests/test_golden.py fails until that is done."""


def run_hash(settings: Mapping[str, Any]) -> str:
    """The name of a run's folder, from the settings (digests included) that decide its results."""
    identity = {**settings, "numerics": NUMERICS}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


class Sources:
    """The data sets and models that the runs of one command use, each looked at once.

    What a user's function returns is asked for when the command begins, so data that has changed since the last one is
    seen, and every run of the command has the very data whose digest is in its config. (Files that the user's code
    reads by itself, such as stored weights, are not known here.)
    """

    def __init__(self) -> None:
        self._loaded: tuple[Any, Dataset] | None = None
        self._scaled: Dataset | None = None
        self._digests: dict[str, str | None] = {}
        self._models: dict[str, str | None] = {}

    def dataset(self, name: str, path: str | None = None, scale: str = "none") -> Dataset:
        """The data set, its inputs scaled if that is asked for; the last one is kept."""
        if self._loaded is None or self._loaded[0] != (name, path):
            self._loaded, self._scaled = ((name, path), data.load(name, path)), None
            if self._digests.get(name) is not None and self._content(name) != self._digests[name]:
                raise UserError(f"data '{name}' is not what it was when the command began; let it stay the same")
        if scale == "none":
            return self._loaded[1]
        if self._scaled is None:
            self._scaled = standardised(self._loaded[1])
        return self._scaled

    def digest(self, name: str, path: str | None = None) -> str | None:
        """The content of the user's own data; None for a data set known by name, whose content is published."""
        if name not in self._digests:
            if own.is_function(name):
                import_module(name.partition(":")[0], f"data '{name}'")
                self.dataset(name, path)
            self._digests[name] = self._content(name)
        return self._digests[name]

    def _content(self, name: str) -> str | None:
        if not own.is_function(name):
            return own.digest(name)
        assert self._loaded is not None
        return own.content(self._loaded[1])

    def model(self, name: str) -> str | None:
        """The source of a user's model, imported as it is now; None for a model of fairmean's."""
        module, colon, _ = name.partition(":")
        if colon and name not in self._models:
            import_module(module, f"model '{name}'")
            import_name(name, f"model '{name}'")
            self._models[name] = module_digest(module)
        return self._models.get(name)


def resolve(config: Config, sources: Sources | None = None) -> Config:
    """Fill in what depends on the machine, on other keys or on the user's files: the config says what is really run."""
    sources = sources or Sources()
    seed = config.seed if config.partition.seed is None else config.partition.seed
    resolved = replace(
        config,
        train=replace(config.train, device=_device(config.train.device)),
        partition=replace(config.partition, seed=seed),
        data=replace(config.data, sha256=sources.digest(config.data.name, config.data.path)),
        model=replace(config.model, sha256=sources.model(config.model.name)),
        method=replace(config.method, sha256=of_parts(config.method.build().parts)),
        server=replace(config.server, sha256=of_parts([config.server.build()])),
    )
    for section, what in (("data", "content"), ("model", "source"), ("method", "source"), ("server", "source")):
        given, found = getattr(config, section).sha256, getattr(resolved, section).sha256
        if given not in (None, found):
            raise UserError(
                f"{section} '{getattr(config, section).name}': its {what} (sha256 {found}) is not the {section}.sha256 "
                f"= {given} of the config; leave {section}.sha256 out to run with what is there now"
            )
    return resolved


def folder_of(config: Config) -> Path:
    """Where a resolved config's run lives."""
    return Path(config.run.dir) / config.run.name / config.hash()


def of_parts(parts: Iterable[Any]) -> str | None:
    """The sources of those parts of a method, or of a server, that are not fairmean's own; None if there are none."""
    sources = [source_of(type(part)) for part in parts]
    if not any(sources):
        return None
    return hashlib.sha256(" ".join(str(source) for source in sources).encode()).hexdigest()[:16]


def _device(device: str) -> str:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"train.device = '{device}': there is no such device; use cpu, cuda or auto") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device = 'cuda': torch sees no CUDA device here; use train.device=cpu")
    if kind not in ("cpu", "cuda"):
        raise UserError(f"train.device = '{device}': fairmean runs on cpu and cuda")
    return device
