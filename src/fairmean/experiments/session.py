"""A run in this process: its simulator is trained round by round, and its recorder and its listeners are told."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean.data.federation import Federation
from fairmean.engine import Simulator, Step
from fairmean.errors import Diverged, Lost, UserError
from fairmean.experiments.best import Best
from fairmean.experiments.building import build_model
from fairmean.experiments.continuing import take_over
from fairmean.experiments.environment import environment
from fairmean.experiments.events import (
    Audience,
    Progress,
    Raised,
    Report,
    RoundEnded,
    RunEnded,
    RunStarted,
    hear,
    read_only,
)
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.identity import folder_of
from fairmean.experiments.metrics import finished, summarise
from fairmean.experiments.reading import Run
from fairmean.experiments.recorder import Recorder
from fairmean.experiments.sections import Config
from fairmean.rules.round import State
from fairmean.theory.measure.monitor import Monitor
from fairmean.theory.oscillation import Swing
from fairmean.theory.premises import premises
from fairmean.transform import dispersion

CHECKPOINT_SECONDS = 5.0
_EVALUATIONS = 20
_COUNTS = 1_000_000  # of a class at a client are always kept
_PARTITION = ("rows", "offsets", "test_rows", "test_offsets", "regular")

Accuracies = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Of every client, on clean labels and on its own."""

log = logging.getLogger(__name__)


def _divided(federation: Federation) -> dict[str, NDArray[Any]]:
    """Who has which samples, and how many of each class, where the counts are no larger than the samples' places."""
    parts = {name: getattr(federation, name) for name in _PARTITION}
    few = federation.clients * federation.classes <= max(len(federation.rows), _COUNTS)
    if federation.task.has_classes and few:
        parts["class_counts"] = federation.class_counts(federation.y)
        parts["clean_class_counts"] = federation.class_counts(federation.clean_y)
    return parts


def _facts(federation: Federation) -> dict[str, Any]:
    """What a run folder says of its data beside the partition."""
    facts: dict[str, Any] = {"input_shape": list(federation.shape), "classes": federation.classes}
    if federation.vocabulary is not None:
        facts["vocabulary"] = federation.vocabulary
    names = {"client_names": federation.client_names, "class_names": federation.class_names}
    return facts | {key: list(value) for key, value in names.items() if value is not None}


class Session:
    """Takes a run to its end by ``train``; for runs that advance together, ``together`` calls its other methods.

    Every event goes to the recorder at once. The audience only notes it, and is told where the run can be saved, should
    a listener raise.
    """

    def __init__(self, config: Config, folder: RunFolder, simulator: Simulator, audience: Audience) -> None:
        self.config, self.simulator, self.audience = config, simulator, audience
        self.recorder = Recorder(folder, config)
        self.rounds = config.train.rounds
        self.every = config.run.eval_every or max(1, self.rounds // _EVALUATIONS)
        self.regular = simulator.federation.regular
        self.metrics: dict[str, float] = {}
        self.metric = simulator.federation.task.metric
        self.ended: dict[str, Any] = {}
        self.best = Best(self.metric.higher) if config.data.validation else None
        self._check_held_out()
        self.t = 0
        self.swing = Swing(simulator, partial(build_model, config, simulator.federation))
        if config.theory:
            simulator.watch(Monitor, self.every)

    @property
    def run(self) -> Run:
        """Which run this is."""
        return self.recorder.run

    def train(self, report: Report | None) -> dict[str, Any]:
        """To the end. When another rank is lost, the model is still the one before the round: it is saved."""
        try:
            self._train(report)
        except Lost as lost:
            self._save(self.t)
            lost.place, lost.kept = f" in round {self.t}", self._kept()
            raise
        self.audience.tell()
        return self.ended

    def _train(self, report: Report | None) -> None:
        start = self.resume()
        self.audience.tell()
        began = saved = time.monotonic()
        last = start if self.stops else self.rounds  # it may have been interrupted when it was about to stop
        self.t = last
        for t in range(start, last):
            self.t = t
            due = self.due(t)
            accuracies = self.evaluate() if due else None
            shown = self.simulator.shown() if due else {}
            try:
                step = self.simulator.step(t)
            except Diverged:  # the rule was given losses that are not finite
                if not self.flush():
                    self._diverged(t, "step")
                return
            self.note(t, step, accuracies, shown)
            self.swing.note(t, torch.as_tensor(step.losses))
            now = time.monotonic()
            speed = (t + 1 - start) / max(now - began, 1e-9)
            self._tell(report, Progress(t + 1, self.rounds, speed, self.metrics))
            if self.stops:
                self.t = t + 1
                break
            late = now - saved > CHECKPOINT_SECONDS
            if (late or self.recorder.not_finite) and self.flush():
                return
            if late:
                self.checkpoint(t + 1)
                self.audience.tell()
                saved = now
        else:
            self.t = last
        if not self.flush():
            self.finish(time.monotonic() - began, start)

    def _tell(self, report: Report | None, progress: Progress) -> None:
        """Between two rounds: whoever is told something may interrupt the run here, and nothing is lost."""
        try:
            self.audience.tell()
            if report:
                hear(report, progress)
        except (KeyboardInterrupt, Raised):
            self._save(progress.round)
            raise

    def _save(self, t: int) -> None:
        if not self.flush():
            self.checkpoint(t)

    def _kept(self) -> str:
        """What there is to go on with."""
        checkpoint = self.recorder.folder.load("cpu")
        if checkpoint is None:
            return "there is no checkpoint yet"
        return f"the last checkpoint is round {checkpoint['round']} in {self.run.folder}"

    def _check_held_out(self) -> None:
        """Raise if nothing could be held out of the regular clients' samples, which are few."""
        held_out = self.simulator.federation.held_out_offsets
        if held_out is not None and not np.diff(held_out)[self.regular].any():
            raise UserError(
                f"data.validation = {self.config.data.validation:g}: no client has so many samples that one could be "
                "held out; use a larger fraction"
            )

    @property
    def stops(self) -> bool:
        """Whether the run ends before its last round, because it has not become better for long."""
        patience = self.config.train.patience
        return self.best is not None and 0 < patience <= self.best.since

    def due(self, t: int) -> bool:
        """Whether the clients are evaluated before round t."""
        return t % self.every == 0

    def resume(self) -> int:
        """Go on from the checkpoint, or set up a new run; the round that comes next."""
        simulator, fed, folder = self.simulator, self.simulator.federation, self.recorder.folder
        if not (folder.path / "checkpoint.pt").exists():
            take_over(folder, self.config)
        checkpoint = self.recorder.last_checkpoint(simulator.w.device, len(simulator.w))
        if checkpoint is not None:
            self.t = int(checkpoint["round"])
            if not simulator.takes(checkpoint):
                raise self.recorder.folder.damaged("checkpoint.pt", "is damaged (it is of another run)")
            simulator.restore(checkpoint, self.t)
            self.swing.load(checkpoint["swing"])
            if self.best is not None:
                self.best.load(checkpoint.get("best", {}))
        started = RunStarted(
            self.run,
            read_only(self.regular),
            start=self.t,
            resumed=checkpoint is not None,
            environment=environment(simulator.w.device, simulator.world.size),
            partition={name: read_only(values) for name, values in _divided(fed).items()},
            facts=_facts(fed),
            premises=premises(simulator, self.config.train.dtype)
            if self.config.theory and checkpoint is None
            else None,
        )
        self.recorder.started(started)
        self._log_start(started)
        self.audience.note(started)
        if checkpoint is None:
            self.checkpoint(0)
        return simulator.agree(self.t)

    def evaluate(self) -> Accuracies:
        """How the clients are served by the model as it is; that model is kept, should it be the best."""
        if self.best is not None:
            self.evaluated = self.simulator.w.clone()
        return self.simulator.evaluate()

    def note(self, t: int, step: Step, accuracies: Accuracies | None, shown: State) -> None:
        """Round t happened; ``shown`` is what clients could tell about themselves before it."""
        if accuracies is not None:
            self.metrics = summarise(accuracies[0], self.regular, self.metric.higher)
            if self.best is not None:
                self.best.note(t, self.metrics["average"], self.evaluated)
        event = self._round_ended(t, step, accuracies, shown)
        self.recorder.round_ended(event)
        self.audience.note(event)

    def _round_ended(self, t: int, step: Step, accuracies: Accuracies | None, shown: State) -> RoundEnded:
        clean, own = (None, None) if accuracies is None else map(read_only, accuracies)
        clients = read_only(step.clients)
        return RoundEnded(
            self.run, t, clients, step.losses, step.weights, clean, own, self.metrics, step.measured, shown
        )

    def flush(self) -> bool:
        """Write what is pending; whether the run turned out to have diverged, and so has ended."""
        self.recorder.flush()
        if self.recorder.not_finite is None:
            return False
        self._diverged(*self.recorder.not_finite)
        return True

    def checkpoint(self, t: int) -> None:
        """Save what is needed to go on with round t."""
        best = {} if self.best is None else {"best": self.best.state()}
        written = self.recorder.checkpoint(t, {"swing": self.swing.state(), **best, **self.simulator.snapshot()})
        if written is not None:
            log.debug("Run %s can go on with round %d from its checkpoint.", self.run.folder, t)
            self.audience.note(written)

    def finish(self, seconds: float, start: int, together: int = 1, accuracies: Accuracies | None = None) -> None:
        """Evaluate the last model (unless that was done) and end; ``together``: how many runs advanced at once.

        Where samples were held out, the rounds were evaluated on them; the summary has the test samples' figures.
        """
        simulator, T = self.simulator, self.t
        accuracies = accuracies or simulator.evaluate()
        if self.best is not None and self.config.train.keep == "best":
            self.best.note(T, summarise(accuracies[0], self.regular)["average"], simulator.w)
            simulator.w.copy_(self.best.w.to(simulator.w))
            accuracies = simulator.evaluate()
        losses, clients = simulator.losses(T), simulator.participants(T)
        if not (losses.isfinite().all() and simulator.w.isfinite().all()):
            self._diverged(T, "step")
            return
        self.checkpoint(T)  # before the last rows: a run stopped below comes here again and writes them once
        everyone = simulator.training_losses(losses)[torch.from_numpy(self.regular)]
        held_out = None if self.best is None else accuracies[0]
        summary = finished(
            *(accuracies if held_out is None else simulator.test()),
            self.regular,
            dispersion(everyone).item(),
            self.swing.warning,
            self.metric,
            simulator.details(),
            held_out,
        )
        if self.best is not None:
            summary |= {"rounds": T, "best_round": self.best.round}
        idle = simulator.idle_rounds(T)
        if idle:
            summary["idle_rounds"] = idle
            log.info("Run %s: in %d of %d rounds too few clients were there, and no step was taken.",
                     self.run.folder, idle, T)  # fmt: skip
        self.metrics = summarise(accuracies[0], self.regular, self.metric.higher)
        last = self._round_ended(T, Step(clients, losses, None, simulator.look(T)), accuracies, simulator.shown())
        self._end(RunEnded(self.run, summary, last, T - start, seconds, together))

    def _diverged(self, t: int, cause: str) -> None:
        self._end(RunEnded(self.run, {"status": "diverged", "round": t, "cause": cause}))

    def _end(self, event: RunEnded) -> None:
        self.recorder.ended(event)
        self.ended = event.summary
        _log_end(event)
        self.audience.note(event)

    def _log_start(self, event: RunStarted) -> None:
        config, folder = self.config, self.run.folder
        if event.resumed:
            log.info("Run %s goes on with round %d of %d.", folder, event.start, event.rounds)
        else:
            log.info(
                "Run %s starts: %s on %s, %d clients, %d rounds, %s on %s.",
                folder, config.method.name, config.data.name, event.clients, event.rounds, config.train.dtype,
                config.train.device,
            )  # fmt: skip
        if self.simulator.bounded:
            log.info(
                "Run %s computes the clients' gradients in parts of %.2g GiB, as they do not all fit into memory.",
                folder, self.simulator.bounded / 2**30,
            )  # fmt: skip


def _log_end(event: RunEnded) -> None:
    """Say how a run ended, or that it had ended before."""
    summary, folder = event.summary, event.run.folder
    if event.found:
        log.info("Run %s had %s already; it is not computed again.", folder, summary["status"])
    elif summary["status"] == "diverged":
        log.info("Run %s diverged in round %d.", folder, summary["round"])
    else:
        log.info(
            "Run %s finished %d rounds in %.1f s: average %.2f, variance %.2f, worst %.2f.",
            folder, event.rounds, event.seconds, summary["average"], summary["variance"], summary["worst"],
        )  # fmt: skip


def found(config: Config, summary: dict[str, Any], audience: Audience) -> None:
    """Tell that a run which was to be made had ended before, with this summary."""
    event = RunEnded(Run(folder_of(config), config), summary, found=True)
    _log_end(event)
    audience.note(event)
    audience.tell()


class Follower(Session):
    """The part of a run that ranks beside the first have: the same rounds, nothing written."""

    def resume(self) -> int:
        return self.simulator.agree(0)

    def evaluate(self) -> Accuracies:
        """How the clients are served by the model as it is; that model is kept, should it be the best."""
        if self.best is not None:
            self.evaluated = self.simulator.w.clone()
        return self.simulator.evaluate()

    def note(self, t: int, step: Step, accuracies: Accuracies | None, shown: State) -> None:
        pass

    def flush(self) -> bool:
        return False

    def checkpoint(self, t: int) -> None:
        pass

    def finish(self, seconds: float, start: int, together: int = 1, accuracies: Accuracies | None = None) -> None:
        self.simulator.evaluate()
        self.simulator.training_losses(self.simulator.losses(self.rounds))
        self.simulator.details()
