"""One run: config in, run folder out. An interrupted run resumes; a finished one is never computed twice."""

from __future__ import annotations

import functools
import io
import math
import os
import platform
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean import data, federation, models
from fairmean._version import __version__
from fairmean.config import Config, gather, parse, to_toml
from fairmean.data import own
from fairmean.distributed import ALONE, Lost, World, check_device
from fairmean.engine import Simulator, Step, Training
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.simulator import memory
from fairmean.errors import Diverged, UserError
from fairmean.federation import Federation
from fairmean.importing import source_digest
from fairmean.metrics import average, summarise
from fairmean.runfolder import CLIENTS, THEORY, RunFolder
from fairmean.theory.oscillation import Swing
from fairmean.theory.premises import premises
from fairmean.transform import dispersion

TRUST = 500  # clean test samples given to a server that must own some, at most a tenth of them
_CHECKPOINT_SECONDS = 5.0
_FLUSH_ROUNDS = 50
_EVALUATIONS = 20
_TABLE_ROWS = 2_000_000  # with more rows than this, only evaluated rounds go into the table


@dataclass(frozen=True)
class Progress:
    """Where a run is: for whoever shows it."""

    round: int
    rounds: int
    rounds_per_second: float
    metrics: dict[str, float]
    runs: int = 1  # that advance together


@dataclass(frozen=True)
class Result:
    """A finished run: its metrics, and the folder with everything else."""

    folder: Path
    config: Config
    summary: dict[str, Any]

    @property
    def table(self) -> Path:
        """The long table, one row per round and client: ``pandas.read_csv(result.table)``."""
        return self.folder / CLIENTS

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Final test accuracy of every client, in percent, on clean labels."""
        return np.array(self.summary["accuracy"], dtype=np.float64)

    @property
    def regular(self) -> NDArray[np.bool_]:
        """Which clients are regular."""
        return np.array(self.summary["regular"])


Report = Callable[[Progress], None]


def run(
    config: str | Path | Mapping[str, Any] | None = None, /, *, report: Report | None = None, **overrides: Any
) -> Result:
    """Run a config (a TOML file, or nested values), with overrides as dotted keys or nested sections.

    ``fairmean.run(seed=3, train={"rounds": 20}, **{"method.kappa": 2.0})``
    """
    return run_config(parse(gather(config, overrides)), report)


def resolve(config: Config) -> Config:
    """Fill in what depends on the machine or on other keys, so that the config says what was really run."""
    device = config.train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"train.device = '{device}': no such device; use cpu, cuda or auto") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device = 'cuda': torch sees no CUDA device here; use train.device=cpu")
    seed = config.seed if config.partition.seed is None else config.partition.seed
    sha256 = own.digest(config.data.name)
    if config.data.sha256 not in (None, sha256):
        raise UserError(f"data '{config.data.name}': its content (sha256 {sha256}) is not data.sha256 of the config")
    return replace(
        config,
        train=replace(config.train, device=device),
        partition=replace(config.partition, seed=seed),
        data=replace(config.data, sha256=sha256),
        model=replace(config.model, sha256=source_digest(config.model.name)),
    )


def build_federation(config: Config, loaded: data.Dataset | None = None, like: Federation | None = None) -> Federation:
    """The clients and their data; ``loaded`` and ``like`` save work when there are many runs on the same data."""
    part, attack = config.partition, config.attack
    poisoned = federation.poisoned_clients(part.clients, attack.clients, attack.fraction, attack.pick, config.seed)
    loaded = loaded or data.load(config.data.name, config.data.path)
    trust = config.data.trust or (TRUST if "trust" in config.method.build().aggregator.requires else 0)
    return federation.build(
        loaded,
        trust=min(trust, max(1, len(loaded.test_y) // 10)),
        partition_name=part.name,
        clients=part.clients,
        partition_seed=config.seed if part.seed is None else part.seed,
        partition_options=part.options,
        attack=attack.name,
        poisoned=poisoned,
        rho=attack.rho,
        source=attack.source,
        target=attack.target,
        seed=config.seed,
        like=like,
    )


def build_simulator(config: Config, clients: Federation | None = None, world: World = ALONE) -> Simulator:
    """Everything a run needs in memory; ``clients`` saves building the federation again."""
    clients = clients or build_federation(config)
    with _own_model(config.model.name, clients.shape):
        return _simulator(config, clients, world)


@contextmanager
def _own_model(name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """A user's model that cannot take the data is a user's mistake."""
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        if ":" not in name:
            raise
        raise UserError(f"model '{name}' fails on an input of shape {shape}: {error}") from error


def _simulator(config: Config, clients: Federation, world: World) -> Simulator:
    train = config.train
    return Simulator(
        clients,
        models.build(config.model.name, clients.shape, clients.classes, config.seed),
        config.method.build(),
        Training(
            lr=train.lr,
            lr_decay=train.lr_decay,
            schedule=cast(Literal["exponential", "cosine"], train.schedule),
            rounds=train.rounds,
            batch=train.batch,
            local_steps=train.local_steps,
            local_lr=train.local_lr,
            participation=train.participation,
        ),
        seed=config.seed,
        device=train.device,
        precision=PRECISIONS[train.dtype],
        engine=cast(Literal["fast", "reference"], train.engine),
        room=train.memory or None,
        world=world,
    )


def memory_of(simulator: Simulator) -> int:
    """Bytes of the device it runs on."""
    return memory(simulator.w.device)


def folder_of(config: Config) -> Path:
    """Where a resolved config's run lives."""
    return Path(config.run.dir) / config.run.name / config.hash()


def run_config(config: Config, report: Report | None = None, world: World = ALONE) -> Result:
    """Run a parsed config; resume it, or return it, if it is there already.

    In a ``world`` of several ranks the clients are spread over them, and the first rank alone reads and writes.
    """
    config = resolve(config)
    check_device(world, config.train.device)
    if world.first(config.hash()) != config.hash():
        raise UserError(f"rank {world.rank} has another config than rank 0; start all ranks with the same settings")
    folder = RunFolder(folder_of(config))
    ended = world.first(folder.summary() if world.rank == 0 else None)
    if ended is None:
        simulator = build_simulator(config, None, world)  # a user's mistake shows before anything is written
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            if world.rank == 0:
                with folder:
                    ended = world.first(folder.summary())  # another process may have ended it meanwhile
                    ended = ended or Recorder(config, folder, simulator, report).run()
                result(config, ended)  # raises Diverged, and then the other ranks wait in vain
            elif world.first(None) is None:
                Follower(config, folder, simulator, report).run()
        ended = world.first(ended)
    assert ended is not None
    return result(config, ended)


def result(config: Config, ended: dict[str, Any]) -> Result:
    """What a run that has ended gives; raises Diverged if it did."""
    path = folder_of(config)
    if ended["status"] == "diverged":
        raise Diverged(_remedy(config, ended["round"], path))
    return Result(path, config, ended)


def _remedy(config: Config, t: int, path: Path) -> str:
    smaller = " (or method.kappa, or a larger method.tau)" if "kappa" in config.method.hyper else ""
    return (
        f"the loss became non-finite in round {t}: train.lr = {config.train.lr:g} is too large for the step-size bound "
        f"lr ≤ 1/L_Φ, L_Φ = (1+κ)L + (κ/τ)G² (κ = 0: 1/L); use a smaller train.lr{smaller}; "
        f"the last good checkpoint is kept in {path}"
    )


class Recorder:
    """Trains, evaluates, writes: a run on its own by ``run``; of many runs, each has one that is told what happened."""

    def __init__(self, config: Config, folder: RunFolder, simulator: Simulator, report: Report | None) -> None:
        self.config, self.folder, self.simulator, self.report = config, folder, simulator, report
        self.rounds = config.train.rounds
        self.every = config.run.eval_every or max(1, self.rounds // _EVALUATIONS)
        self.regular = simulator.federation.regular
        self.all_rounds = self.rounds * len(self.regular) <= _TABLE_ROWS
        self.pending: list[tuple[int, Step, tuple[Any, Any] | None]] = []
        self.measured: list[tuple[int, Tensor]] = []
        self.metrics: dict[str, float] = {}
        self.ended: dict[str, Any] = {}
        self.lengths = {CLIENTS: 0, **({THEORY: 0} if config.theory else {})}
        self.t = 0
        self.swing = Swing(config, simulator)
        if config.theory:
            simulator.watch(self.every)

    def run(self) -> dict[str, Any]:
        """To the end. When another rank is lost, the model is still the one before the round: it is saved."""
        try:
            return self._run()
        except Lost as lost:
            if not self.flush():
                self.checkpoint(self.t)
            lost.place, lost.kept = f" in round {self.t}", self._kept()
            raise

    def _run(self) -> dict[str, Any]:
        start = self.resume()
        began = saved = time.monotonic()
        for t in range(start, self.rounds):
            self.t = t
            accuracy = self.simulator.evaluate() if self.due(t) else None
            step = self.simulator.step(t)
            self.note(t, step, accuracy)
            self.swing.note(t, torch.as_tensor(step.losses))
            now = time.monotonic()
            self._tell(Progress(t + 1, self.rounds, (t + 1 - start) / max(now - began, 1e-9), self.metrics))
            if self.full or now - saved > _CHECKPOINT_SECONDS:
                if self.flush():
                    return self.ended
                if now - saved > _CHECKPOINT_SECONDS:
                    self.checkpoint(t + 1)
                    saved = now
        if self.flush():
            return self.ended
        self.t = self.rounds
        return self.finish(time.monotonic() - began, start)

    def _kept(self) -> str:
        """What there is to go on with."""
        checkpoint = self.folder.load("cpu")
        if checkpoint is None:
            return "there is no checkpoint yet"
        return f"the last checkpoint is round {checkpoint['round']} in {self.folder.path}"

    def due(self, t: int) -> bool:
        """Whether the clients are evaluated before round t."""
        return t % self.every == 0

    def note(self, t: int, step: Step, accuracy: tuple[Any, Any] | None) -> None:
        """Round t happened."""
        if accuracy is not None:
            self.metrics = summarise(accuracy[0], self.regular)
        if accuracy is not None or self.all_rounds:
            self.pending.append((t, step, accuracy))
        if step.measured is not None:
            self.measured.append((t, step.measured))

    @property
    def full(self) -> bool:
        """Whether there is enough to write."""
        return max(len(self.pending), len(self.measured)) >= _FLUSH_ROUNDS

    def flush(self) -> bool:
        """Write what is pending; whether the run turned out to have diverged, and so has ended."""
        bad = self._flush()
        if bad is not None:
            self.ended = self._diverged(bad)
        return bad is not None

    def _tell(self, progress: Progress) -> None:
        """Report between two rounds; whoever listens may interrupt here, and then nothing is lost."""
        try:
            if self.report:
                self.report(progress)
        except KeyboardInterrupt:
            if not self.flush():
                self.checkpoint(progress.round)
            raise

    def resume(self) -> int:
        """Read the checkpoint, or set up a new run; the round to go on with."""
        checkpoint = self.folder.load(self.simulator.w.device)
        if checkpoint is None:
            self._write_setup()
            for table in self.lengths:
                self.folder.cut(0, table)
                self.lengths[table] = self.folder.append("", table)
            self.checkpoint(0)
            return self.simulator.agree(0)
        self.simulator.w.copy_(checkpoint["w"])
        self.simulator.state = checkpoint["state"]
        self.lengths = dict(checkpoint["tables"])
        for table, length in self.lengths.items():
            self.folder.cut(length, table)
        self.t = int(checkpoint["round"])
        self.swing.load(checkpoint["swing"])
        if "before" in checkpoint:
            self.simulator.recall(checkpoint["before"], checkpoint["running"], self.t)
        return self.simulator.agree(self.t)

    def checkpoint(self, t: int) -> None:
        """Save what is needed to go on with round t."""
        w = self.simulator.w
        if w.isfinite().all():
            state = {key: value.clone() for key, value in self.simulator.state.items()}
            kept: dict[str, Any] = {"round": t, "w": w.clone(), "state": state, "tables": dict(self.lengths)}
            kept["swing"] = self.swing.state()
            monitor = self.simulator.monitor
            if monitor is not None and monitor.before is not None:
                kept["before"], kept["running"] = monitor.before.w.clone(), monitor.running.clone()
            self.folder.save(kept)

    def _flush(self) -> int | None:
        """Write pending rows; the first round with a non-finite loss, if there is one."""
        lines = []
        bad = None
        for t, step, accuracy in self.pending:
            losses = step.losses.tolist()
            if bad is None and not all(map(math.isfinite, losses)):
                bad = t
            weights = [""] * len(losses) if step.weights is None else map(repr, step.weights.tolist())
            row = {
                c: f"{loss!r},{weight}" for c, loss, weight in zip(step.clients.tolist(), losses, weights, strict=True)
            }
            # an evaluation covers every client, whether it took part in the round or not
            for client in range(len(self.regular)) if accuracy else row:
                tested = f"{accuracy[0][client]!s},{accuracy[1][client]!s}" if accuracy else ","
                lines.append(f"{t},{client},{int(self.regular[client])},{row.get(client, ',')},{tested}\n")
        self.pending.clear()
        self.lengths[CLIENTS] = self.folder.append("".join(lines))
        if THEORY in self.lengths:
            rows = [f"{t},{','.join(_figure(v) for v in values.tolist())}\n" for t, values in self.measured]
            self.measured.clear()
            self.lengths[THEORY] = self.folder.append("".join(rows), THEORY)
        return bad

    def _diverged(self, t: int) -> dict[str, Any]:
        self.folder.close_tables()
        summary = {"status": "diverged", "round": t}
        self.folder.write_json("summary.json", summary)
        return summary

    def finish(
        self, seconds: float, start: int, together: int = 1, accuracy: tuple[Any, Any] | None = None
    ) -> dict[str, Any]:
        """Evaluate the last model (unless that was done) and write the summary; ``together``: how many runs at once."""
        simulator, T = self.simulator, self.rounds
        accuracy = accuracy or simulator.evaluate()
        losses, clients = simulator.losses(T), simulator.participants(T)
        if not (losses.isfinite().all() and simulator.w.isfinite().all()):
            return self._diverged(T)
        self.checkpoint(T)  # before the last rows: a run stopped below comes here again and writes them once
        self.pending.append((T, Step(clients, losses, None), accuracy))
        last = simulator.look(T)
        if last is not None:
            self.measured.append((T, last))
        self._flush()
        self.folder.close_tables()
        regular_losses = losses[torch.from_numpy(self.regular[clients])].cpu()
        summary: dict[str, Any] = {
            "status": "finished",
            **summarise(accuracy[0], self.regular),
            "loss_dispersion": dispersion(regular_losses).item() if len(regular_losses) else math.nan,
            "poisoned": None,
            "without_test_data": int(np.isnan(accuracy[0]).sum()),
            "accuracy": accuracy[0].tolist(),
            "own_accuracy": accuracy[1].tolist(),
            "regular": self.regular.tolist(),
        }
        if not self.regular.all():
            clean, mine = (values[~self.regular & ~np.isnan(values)] for values in accuracy)
            summary["poisoned"] = (
                {"clean_average": average(clean), "own_average": average(mine)} if len(clean) else None
            )
        if self.swing.warning:
            summary["warning"] = self.swing.warning
        environment = self._environment() | {
            "seconds": round(seconds, 3),
            "rounds_timed": T - start,
            "together": together,
        }
        self.folder.write_json("environment.json", environment)
        self.folder.write_json("summary.json", summary)
        return summary

    def _write_setup(self) -> None:
        fed = self.simulator.federation
        names = ("rows", "offsets", "test_rows", "test_offsets", "regular")
        self.folder.write("config.toml", to_toml(self.config))
        self.folder.write("partition.npz", packed({name: getattr(fed, name) for name in names}))
        self.folder.write_json("environment.json", self._environment())
        if self.simulator.monitor is not None:
            self.folder.write_json("theory.json", premises(self.config, self.simulator))

    def _environment(self) -> dict[str, Any]:
        device = self.simulator.w.device
        return {
            "fairmean": __version__,
            "commit": _commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
            "threads": torch.get_num_threads(),
            "cpus": os.cpu_count(),
            "ranks": self.simulator.world.size,
        }


class Follower(Recorder):
    """The part of a run that ranks beside the first have: the same rounds, nothing written."""

    def resume(self) -> int:
        return self.simulator.agree(0)

    def note(self, t: int, step: Step, accuracy: tuple[Any, Any] | None) -> None:
        pass

    def flush(self) -> bool:
        return False

    def checkpoint(self, t: int) -> None:
        pass

    def finish(
        self, seconds: float, start: int, together: int = 1, accuracy: tuple[Any, Any] | None = None
    ) -> dict[str, Any]:
        self.simulator.evaluate()
        self.simulator.losses(self.rounds)
        return {}


def _figure(value: float) -> str:
    """For a table; nothing where there is no figure. Infinities are figures."""
    return "" if math.isnan(value) else f"{value!r}"


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An .npz, lightly compressed; whole numbers take the room they need."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            narrow = array.dtype == np.int64 and array.max(initial=0) < 2**31
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, array.astype(np.int32) if narrow else array)
    return buffer.getvalue()


@functools.cache
def _commit() -> str | None:
    """The commit of the source tree, where there is one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
