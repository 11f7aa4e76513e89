"""A run that is on disk: its config, its figures, the long table, who had which data, and the trained model."""

from __future__ import annotations

import csv
import importlib
import io
import json
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fairmean import models
from fairmean.data.federation import Federation
from fairmean.data.tasks import ACCURACY, Metric, task
from fairmean.engine.net import Net
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.scoring import figures, scores
from fairmean.errors import UserError
from fairmean.experiments.building import build_federation
from fairmean.experiments.config import parse
from fairmean.experiments.folder import CLIENTS, RunFolder
from fairmean.experiments.identity import Sources
from fairmean.experiments.listing import DIRECTORY, Entry, entries, find
from fairmean.experiments.sections import Config
from fairmean.models import weights
from fairmean.theory.certificate import Certificate, certify
from fairmean.theory.measure.monitor import THEORY

if TYPE_CHECKING:
    import pandas

Array = NDArray[Any]
AUDIT = "audit.json"
"""The file of a run folder that holds the last audit of the run, if there was one."""
_ROWS = 1024  # of inputs in one pass


@dataclass(frozen=True)
class Partition:
    """Who has how much of what; ``None`` for what a folder of an earlier version does not say.

    ``classes`` counts every client's training samples by label, as the client sees its labels: clients × classes.
    ``clean_classes`` counts them as they were before anybody was poisoned.
    """

    sizes: NDArray[np.int64]
    test_sizes: NDArray[np.int64]
    regular: NDArray[np.bool_]
    classes: NDArray[np.int64] | None = None
    clean_classes: NDArray[np.int64] | None = None


class Run:
    """A run and its folder. What is on disk is read when it is first asked for, and then kept.

    >>> run = fairmean.load("runs/demo/3f2a…")          # or a beginning of its hash   # doctest: +SKIP
    >>> run.summary["worst"], run.config.method.name, run.model()                      # doctest: +SKIP
    """

    def __init__(self, folder: Path, config: Config | None = None, summary: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self._entry = Entry(folder)
        if config is not None:
            self.config = config
        if summary is not None:
            self.summary = summary

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """The run's table and pictures, for notebooks."""
        return str(importlib.import_module("fairmean.report.inline").shown(self))

    @property
    def hash(self) -> str:
        """What names the run: the last part of its folder."""
        return self.folder.name

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved config as plain values by dotted key; it can be read without the code that the run used."""
        return self._entry.settings

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, ``running`` or ``interrupted``, as it is now."""
        return Entry(self.folder).status

    @cached_property
    def config(self) -> Config:
        """The resolved config. Methods of your own must have been imported."""
        try:
            return parse(tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8")))
        except UserError as error:
            raise UserError(f"the config of run '{self.folder}' needs something that is not here: {error}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.folder / 'config.toml'}' cannot be read ({error})") from None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """How the run ended: its status, and the metrics over its regular clients. Empty while it has not ended."""
        return RunFolder(self.folder).summary() or {}

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, machine, commit and time that the run was made with."""
        return self._json("environment.json")

    @property
    def table(self) -> Path:
        """The file of the long table, one row for each round and client: ``pandas.read_csv(run.table)``."""
        whole = self.folder / CLIENTS
        growing = self.folder / f"{CLIENTS}.part"
        return growing if growing.exists() and not whole.exists() else whole

    @cached_property
    def columns(self) -> dict[str, Array]:
        """The long table as arrays by column: round, client, regular, loss, weight, accuracy, own_accuracy.

        A run that predicts numbers has rmse and own_rmse in place of the last two. Clients are told by their numbers,
        also where they have names. Where the table has nothing, as for the accuracy in a round without an evaluation,
        there is NaN.
        """
        try:
            text = self.table.read_bytes().decode()  # line breaks inside names stay what they are
        except OSError as error:
            raise UserError(f"'{self.table}' cannot be read ({error.strerror})") from None
        header, _, body = text.partition("\n")
        names = header.split(",")
        body = body[: body.rfind("\n") + 1]  # a run at work may be in the middle of a row
        try:
            values = self._numbers(body, len(names))
            columns = dict(zip(names, values.T, strict=True))
            for name, kind in (("round", np.int64), ("client", np.int64), ("regular", np.bool_)):
                columns[name] = columns[name].astype(kind)
        except (ValueError, KeyError) as error:
            raise RunFolder(self.folder).damaged(self.table.name, f"is damaged ({error})") from None
        return columns

    def _numbers(self, body: str, width: int) -> Array:
        """The rows of the long table; clients that have names are told by their numbers."""
        if not body:
            return np.empty((0, width))
        if not self.has_names:
            for _ in range(2):  # every other comma at a time
                body = body.replace(",,", ",nan,")
            return np.loadtxt(io.StringIO(body.replace(",\n", ",nan\n")), delimiter=",", ndmin=2)
        places = {name: i for i, name in enumerate(self.client_names)}
        rows = csv.reader(io.StringIO(body, newline=""))
        return np.array(
            [[float(row[0]), places[row[1]], *(float(value or "nan") for value in row[2:])] for row in rows]
        )

    def frame(self) -> pandas.DataFrame:
        """The long table as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError(
                "run.frame() needs pandas: pip install pandas; run.columns has the same as arrays"
            ) from None
        names = np.array(self.client_names, dtype=object)
        named = {"client": names[self.columns["client"]]} if self.has_names else {}
        return pandas.DataFrame(self.columns | named)

    @cached_property
    def partition(self) -> Partition:
        """How many samples, and of which classes, every client has."""
        arrays = self._arrays("partition.npz")
        return Partition(
            np.diff(arrays["offsets"]).astype(np.int64),
            np.diff(arrays["test_offsets"]).astype(np.int64),
            arrays["regular"].astype(bool),
            arrays.get("class_counts"),
            arrays.get("clean_class_counts"),
        )

    @property
    def metric(self) -> Metric:
        """The figure by which clients are judged: their accuracy in %, or an error."""
        return task(self.settings.get("data.task", "classification")).metric

    @property
    def values(self) -> NDArray[np.float64]:
        """The final figure of every client on clean labels (``metric`` says which); NaN without test data."""
        self._ended("figures")
        return np.array(self.summary[self.metric.name], dtype=np.float64)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Final test accuracy of every client, in percent, on clean labels; NaN for a client without test data."""
        if self.metric != ACCURACY:
            raise UserError(f"run '{self.folder}' predicts numbers: its figure is {self.metric.name}, in run.values")
        return self.values

    @property
    def has_names(self) -> bool:
        """Whether the data says what the clients are called."""
        return bool(self._entry.facts.get("client_names"))

    @property
    def client_names(self) -> list[str]:
        """What the clients are called; their numbers, where they have no names."""
        names = self._entry.facts.get("client_names")
        return [str(name) for name in names] if names else [str(i) for i in range(len(self.partition.regular))]

    @property
    def class_names(self) -> list[str] | None:
        """What the classes are called; None where they have no names but their numbers."""
        names = self._entry.facts.get("class_names")
        return [str(name) for name in names] if names else None

    @property
    def regular(self) -> NDArray[np.bool_]:
        """Which clients are regular, that is, not poisoned."""
        return np.array(self.summary["regular"]) if "regular" in self.summary else self.partition.regular

    @cached_property
    def certificate(self) -> Certificate | None:
        """What the paper's theorems say about the run, if it was made with ``theory=true``; else None."""
        measured = any((self.folder / name).exists() for name in (THEORY, f"{THEORY}.part"))
        return certify(self.folder) if measured else None

    @property
    def audit(self) -> dict[str, Any] | None:
        """What ``fairmean audit`` said of the run when it was last asked; None before."""
        return self._json(AUDIT) if (self.folder / AUDIT).is_file() else None

    @property
    def rounds(self) -> int:
        """How many rounds the last checkpoint covers."""
        checkpoint = RunFolder(self.folder).load("cpu")
        return 0 if checkpoint is None else int(checkpoint["round"])

    @property
    def continues(self) -> dict[str, Any] | None:
        """Which run this one goes on with, and after how many rounds; None for a run that began by itself."""
        return self._entry.facts.get("continues")

    def model(self) -> nn.Module:
        """The trained model of the last checkpoint, on the CPU, in ``eval()`` mode, with parameters of its own.

        A model of your own is built by your code as it is now, whose source must be that of the run. The file of
        weights with which the run began is needed only if it holds more than parameters.
        """
        checkpoint = RunFolder(self.folder).load("cpu")
        if checkpoint is None:
            raise UserError(f"run '{self.folder}' has no checkpoint, so there is no model; run it first")
        name, wanted = self.config.model.name, self.config.model.sha256
        if name == "federation":
            raise UserError(
                f"run '{self.folder}' is of a federation, whose model is your own: make it, and load "
                f"fairmean.flower.state_dict('{self.folder}') into it"
            )
        source = Sources().model(name)
        if source != wanted:
            raise UserError(
                f"model '{name}' has changed since the run (its source was sha256 {wanted}, and is {source} now): put "
                "the old source back to load the run's model"
            )
        module = self._untrained(name)
        net = Net(module, "cpu", PRECISIONS[self.config.train.dtype].dtype, swap=False)
        if len(net.flat) != len(checkpoint["w"]):
            raise UserError(
                f"run '{self.folder}' has {len(checkpoint['w']):,} parameters, and model '{name}' has {len(net.flat):,}"
            )
        net.flat.copy_(checkpoint["w"])
        for parameter in module.parameters():
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        return module.eval()

    def evaluate(self, model: nn.Module | None = None) -> NDArray[np.float64]:
        """The figure of every client on its test samples and clean labels: of the run's model, or of one of yours.

        The clients and their test data are those of the run, so that models can be compared on the same ground.
        """
        model = self.model() if model is None else model
        clients = self.federation()
        like, x = next(model.parameters()), clients.test_x
        parts = [slice(start, start + _ROWS) for start in range(0, len(x), _ROWS)]
        outputs, training = [], [module for module in model.modules() if module.training]
        model.eval()
        with torch.no_grad():
            for part in parts:
                inputs = x[part].to(like.device, like.dtype if x.is_floating_point() else None)
                outputs.append(scores(clients.task, model(inputs).cpu(), clients.test_y[part]).numpy())
        for module in training:  # as it was
            module.training = True
        every = np.concatenate(outputs) if outputs else np.zeros(0)
        return figures(clients.task, every, clients.test_offsets, clients.target_spread)

    def _untrained(self, name: str) -> nn.Module:
        """The model before training, without the weights that it began with, unless it has buffers."""
        facts, asked = self._entry.facts, self.config.model
        if "input_shape" in facts:
            shape, classes, vocabulary = tuple(facts["input_shape"]), int(facts["classes"]), facts.get("vocabulary")
        else:  # a folder of an earlier version
            clients = build_federation(self.config)
            shape, classes, vocabulary = clients.shape, clients.classes, clients.vocabulary
        named = self.config.data.task
        kind = task("classification" if named == "auto" else named)  # earlier versions knew no other
        module = models.build(
            name, shape, kind.outputs(classes), self.config.seed, plain=True, task=kind.name, vocabulary=vocabulary,
            frozen=asked.patterns,
        )  # fmt: skip
        if asked.weights is not None and any(True for _ in module.buffers()):
            weights.load(module, name, asked.weights, asked.weights_sha256)
        return module

    def federation(self) -> Federation:
        """The clients with their data, which must be what it was."""
        sources, asked = Sources(), self.config.data
        now = sources.digest(asked)
        if now != asked.sha256:
            raise UserError(
                f"data '{asked.name}' has changed since the run (its content was sha256 {asked.sha256}, and is {now} "
                "now): put the old data back to evaluate on the clients of the run"
            )
        return build_federation(self.config, sources.dataset(asked))

    def _ended(self, what: str) -> None:
        if self.summary.get("status") != "finished":
            raise UserError(f"run '{self.folder}' is {self.status}: there are {what} only of a run that has finished")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.folder / name}' cannot be read ({error})") from None
        return value

    def _arrays(self, name: str) -> dict[str, Array]:
        try:
            with np.load(self.folder / name, allow_pickle=False) as stored:
                return dict(stored)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"'{self.folder / name}' cannot be read ({error})") from None


def load(run: str | Path, directory: str | Path = DIRECTORY) -> Run:
    """A run that is on disk: by its folder, or by a beginning of its hash that no other run in ``directory`` has."""
    folder = find(run, directory)
    Entry(folder).facts  # noqa: B018 - a folder of a newer format is refused here
    return Run(folder)


def runs(directory: str | Path = DIRECTORY) -> list[Run]:
    """Every run in a directory, the one that changed last at the end."""
    return [Run(entry.folder) for entry in entries(directory)]
