"""What a run is. Two runs are the same run, and share a folder and its results, exactly when all of these are the same:

- the resolved config: every setting, also those that were left to their defaults or to the machine;
- the content of the data that was used (a digest, or the published content of a data set known by name);
- the source of every piece of the user's code that takes part: the model, the parts of the method, the optimiser;
- the content of the file of weights with which the model begins;
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
from fairmean.data.registry import SPECS
from fairmean.data.scaling import scaled, standardised
from fairmean.data.tasks import task
from fairmean.errors import UserError
from fairmean.importing import import_module, import_name
from fairmean.models import weights
from fairmean.rules.named import USUAL as USUAL_OBJECTIVE
from fairmean.rules.registry import source_of
from fairmean.user_modules import module_digest

if TYPE_CHECKING:
    from fairmean.experiments.sections import Config, DataConfig

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
    reads by itself are not known here.)
    """

    def __init__(self) -> None:
        self._loaded: tuple[Any, Dataset] | None = None
        self._scaled: Dataset | None = None
        self._digests: dict[str, str | None] = {}
        self._models: dict[str, str | None] = {}
        self._weights: dict[str, str] = {}

    def dataset(self, asked: DataConfig) -> Dataset:
        """The data set, its inputs scaled if that is asked for; the last one is kept."""
        key = (asked.name, asked.path, asked.columns)
        if self._loaded is None or key not in self._loaded[0]:
            loaded = data.load(asked.name, asked.path, columns=asked.columns)
            resolved = (asked.name, asked.path, asked.columns._replace(task=loaded.task))
            self._loaded, self._scaled = ((key, resolved), loaded), None
            if self._digests.get(asked.name) is not None and self._content(asked.name) != self._digests[asked.name]:
                raise UserError(f"data '{asked.name}' is not what it was when the command began; let it stay the same")
        loaded = self._loaded[1]
        if not scaled(asked.scale, loaded):
            return loaded
        if self._scaled is None:
            self._scaled = standardised(loaded)
        return self._scaled

    def digest(self, asked: DataConfig) -> str | None:
        """The content of the user's own data; None for a data set known by name, whose content is published."""
        name = asked.name
        if name not in self._digests:
            if own.is_function(name):
                import_module(name.partition(":")[0], f"data '{name}'")
                self.dataset(asked)
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

    def weights(self, path: str | None) -> str | None:
        """The content of a file of weights, as it was when the command began; None where there is none."""
        if path is None:
            return None
        if path not in self._weights:
            self._weights[path] = weights.digest(path)
        return self._weights[path]


def resolve(config: Config, sources: Sources | None = None) -> Config:
    """Fill in what depends on the machine, on other keys or on the user's files: the config says what is really run."""
    sources = sources or Sources()
    config = _as_the_data_is(config, sources)
    seed = config.seed if config.partition.seed is None else config.partition.seed
    resolved = replace(
        config,
        train=replace(config.train, device=_device(config.train.device)),
        partition=replace(config.partition, seed=seed),
        data=replace(config.data, sha256=sources.digest(config.data)),
        model=replace(
            config.model,
            frozen=config.model.patterns or None,
            sha256=sources.model(config.model.name),
            weights_sha256=sources.weights(config.model.weights),
        ),
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
    given, found = config.model.weights_sha256, resolved.model.weights_sha256
    if given not in (None, found):
        raise UserError(
            f"model.weights = '{config.model.weights}': its content (sha256 {found}) is not the model.weights_sha256 = "
            f"{given} of the config; leave model.weights_sha256 out to begin with what is there now"
        )
    return resolved


def _as_the_data_is(config: Config, sources: Sources) -> Config:
    """What is left to the data: the task, whether inputs are scaled, who the clients are, the objective.

    Data sets that are known by name need not be loaded for that: they are images of classes, which nobody owns.
    """
    asked = config.data
    if asked.name in SPECS:
        own.no_columns(asked.name, "data set of images, which has no columns", asked.columns)
        if asked.task not in ("auto", "classification"):
            raise UserError(f"data.task = '{asked.task}': '{asked.name}' is for classification")
        return replace(config, data=replace(asked, task="classification", scale=asked.scale.replace("auto", "none")))
    loaded = sources.dataset(asked)
    what = task(loaded.task)
    resolved = replace(asked, task=what.name, scale="standard" if scaled(asked.scale, loaded) else "none")
    part, method = config.partition, config.method
    named = asked.client is not None or loaded.client_names is not None  # also by folders, or by texts in arrays
    if loaded.train_clients is not None and (named or part.name == "given"):
        part = type(part)("given", clients=int(loaded.train_clients.max()) + 1, seed=part.seed)
    if method.objective is None and method.has_usual_objective and what.objective != USUAL_OBJECTIVE:
        method = replace(method, objective=what.objective)
        method = replace(method, hyper=method.build().hyper)  # which has hyper-parameters of its own
    return replace(config, data=resolved, partition=part, method=method)


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
