"""Many runs at once: configs in, run folders out, as if each had been run on its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fairmean.engine import Simulator
from fairmean.engine.fleet.fleet import Fleet, bytes_needed
from fairmean.errors import Diverged, UserCodeError
from fairmean.experiments.building import blaming_the_model, build_federation, build_simulator, memory_of
from fairmean.experiments.events import NOBODY, Audience, Progress, Raised, Report, hear
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.identity import Sources, folder_of
from fairmean.experiments.recorder import FLUSH_ROUNDS
from fairmean.experiments.run import result, run_to_an_end, summary_of
from fairmean.experiments.sections import Config
from fairmean.experiments.session import CHECKPOINT_SECONDS, Session, found

_CHECKPOINT_SHARE = 0.01  # of the time, at most, goes into checkpoints
_MEMORY_SHARE = 0.6

Tell = Callable[[int, Progress], None]
"""Told how many runs have ended before, and how the current ones are getting on."""

log = logging.getLogger(__name__)


def run_together(
    configs: Sequence[Config],
    most: int,
    tell: Tell | None = None,
    sources: Sources | None = None,
    audience: Audience = NOBODY,
) -> list[dict[str, Any]]:
    """The summaries of these resolved runs, computing those that are not there yet, ``most`` at a time.

    Runs advance in lockstep, so those at a time have the same number of rounds and of rounds between evaluations. When
    the user's code fails in one of them, they go on one after the other, and the one that fails is told apart.
    """
    sources = sources or Sources()
    places: dict[Path, int] = {}
    first = [places.setdefault(folder_of(config), i) for i, config in enumerate(configs)]  # one may be asked for twice
    ended = {i: s for i in places.values() if (s := RunFolder(folder_of(configs[i])).summary()) is not None}
    for i, summary in ended.items():
        found(configs[i], summary, audience)
    order = sorted((i for i in places.values() if i not in ended), key=lambda i: _draw(configs[i]))
    failed: dict[int, dict[str, Any]] = {}
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        for wave in _waves([(i, configs[i]) for i in order], most, sources, failed):
            before = len(ended)
            report = (lambda progress, before=before: tell(before, progress)) if tell else None
            alone: list[tuple[int, Config]] = []
            try:
                with ExitStack() as models:
                    for name in {config.model.name for _, config, _ in wave}:
                        models.enter_context(blaming_the_model(name))
                    ended |= _run_wave(wave, report, audience)
            except (UserCodeError, Diverged):
                alone = [(i, config) for i, config, _ in wave]
                log.info("One of these %d runs failed; they go on one after the other.", len(alone))
            wave.clear()  # of the simulators, whose memory the next ones need
            ended |= {i: run_to_an_end(config, report, sources, audience) for i, config in alone}
    for i, summary in ended.items():  # a rule may have been found at fault
        ended[i] = (
            summary if summary["status"] == "failed" else summary_of(configs[i], partial(result, configs[i], summary))
        )
    ended |= failed
    return [ended[i] for i in first]


Wave = list[tuple[int, Config, Simulator]]


def _draw(config: Config) -> tuple[Any, ...]:
    """Runs that sort together share rounds, then data, then clients and seed."""
    data, train = config.data, config.train
    lockstep = (train.rounds, config.run.eval_every)
    return (*lockstep, str(data), train.dtype, config.model.name, str(config.partition), config.seed)


def _waves(
    runs: list[tuple[int, Config]], most: int, sources: Sources, failed: dict[int, dict[str, Any]]
) -> Iterator[Wave]:
    """Simulators in portions that fit in memory; inputs are shared where they are the same.

    A run that the user's code does not let be built goes to ``failed``.
    """
    wave: Wave = []
    used, like = 0, None
    most = min(most, _open_files())
    inputs: set[int] = set()
    for i, config in runs:
        source = config.data
        if like is not None and like[0] != source:
            like = None
        clients = build_federation(config, sources.dataset(source), like[1] if like else None)
        try:
            simulator = build_simulator(config, clients)
        except UserCodeError as error:
            failed[i] = {"status": "failed", "reason": str(error)}
            continue
        like = (source, simulator.federation)
        x = simulator.federation.x
        need = bytes_needed(simulator) + (0 if x.data_ptr() in inputs else 3 * x.nbytes)  # x, its copy, test data
        lockstep = not wave or _draw(wave[0][1])[:2] == _draw(config)[:2]
        if wave and (len(wave) >= most or not lockstep or used + need > _MEMORY_SHARE * memory_of(simulator)):
            yield wave
            wave.clear()
            inputs.clear()
            used = 0
        wave.append((i, config, simulator))
        inputs.add(x.data_ptr())
        used += need
    if wave:
        yield wave


def _open_files() -> int:
    """So many runs can have their folders locked at a time."""
    try:
        import resource
    except ImportError:  # pragma: no cover - not on Windows
        return 400
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)


def _run_wave(wave: Wave, report: Report | None, audience: Audience) -> dict[int, dict[str, Any]]:
    """Every run of the wave to its end; runs interrupted at different rounds go on one group after another."""
    ended: dict[int, dict[str, Any]] = {}
    with ExitStack() as locks:
        groups: dict[int, list[tuple[int, Session]]] = {}
        for i, config, simulator in wave:
            folder = locks.enter_context(RunFolder(folder_of(config)))
            summary = folder.summary()
            if summary is not None:  # another process ended it meanwhile
                ended[i] = summary
                found(config, summary, audience)
                continue
            session = Session(config, folder, simulator, audience)
            groups.setdefault(session.resume(), []).append((i, session))
        audience.tell()
        for start, members in sorted(groups.items()):
            log.info("The next %d of the runs advance together from round %d.", len(members), start)
            _advance([session for _, session in members], start, report, audience)
            ended |= {i: session.ended for i, session in members}
    return ended


def _advance(sessions: list[Session], start: int, report: Report | None, audience: Audience) -> None:
    """From round ``start`` to the end, in lockstep."""
    fleet = Fleet([session.simulator for session in sessions])
    first = sessions[0]
    began = saved = time.monotonic()
    interval, resting = CHECKPOINT_SECONDS, False
    interrupted: KeyboardInterrupt | Raised | None = None

    def rest(t: int) -> bool:
        nonlocal resting
        resting = interrupted is not None or time.monotonic() - saved > interval
        return resting

    for done in fleet.rounds(start, first.rounds, first.due, rest):
        for i, session in enumerate(sessions):
            if not session.ended:
                session.note(done.t, done.steps[i], done.accuracies[i] if done.accuracies else None, done.shown[i])
                if (done.t + i) % FLUSH_ROUNDS == 0:  # not all at once: the GPU is at work meanwhile
                    session.flush()
        if resting:
            before = time.monotonic()
            for session in sessions:
                if not session.ended and not session.flush():
                    session.checkpoint(done.t + 1)
            saved = time.monotonic()
            interval = max(CHECKPOINT_SECONDS, (saved - before) / _CHECKPOINT_SHARE)
        if interrupted is not None:
            raise interrupted
        if all(session.ended for session in sessions):
            break
        speed = (done.t + 1 - start) / max(time.monotonic() - began, 1e-9)
        try:
            audience.tell()
            if report:
                hear(report, Progress(done.t + 1, first.rounds, speed, first.metrics, len(sessions)))
        except (KeyboardInterrupt, Raised) as stop:  # the next round ends with everything in its place
            interrupted = stop
    taken, accuracies = time.monotonic() - began, fleet.evaluate()
    for session, accuracy in zip(sessions, accuracies, strict=True):
        if not session.ended and not session.flush():
            session.t = session.rounds
            session.finish(taken, start, len(sessions), accuracy)
    if interrupted is not None:  # in the last round: nothing was left to interrupt
        raise interrupted
    audience.tell()
