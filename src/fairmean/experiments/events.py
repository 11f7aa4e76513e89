"""What happens in a run, as events, and the listeners that are told of them.

A source of events (a simulator in training, or a federation elsewhere) makes them; the recorder and any listener of the
user's receive them. An event holds plain values, so whoever receives it needs no simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.errors import UserError
from fairmean.experiments.reading import Run
from fairmean.theory.measure.monitor import MEASURED

T = TypeVar("T")
Array = TypeVar("Array", bound=NDArray[Any])
Values = Tensor | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened in a run."""

    run: Run

    def tell(self, listener: Listener) -> None:
        """Call the listener's method for events of this kind."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class RunStarted(Event):
    """A run begins with round ``start``; ``resumed`` says that it goes on from a checkpoint.

    ``partition`` (which samples each client owns), ``premises`` (what the theorems take for granted) and ``facts`` (the
    shape of an input, the number of classes) are there where the source knows them.
    """

    regular: NDArray[np.bool_]
    start: int = 0
    resumed: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    partition: Mapping[str, NDArray[Any]] | None = None
    premises: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.regular)

    @property
    def rounds(self) -> int:
        """How many rounds the whole run has."""
        return self.run.config.train.rounds

    def tell(self, listener: Listener) -> None:
        listener.started(self)


@dataclass(frozen=True, eq=False)
class RoundEnded(Event):
    """Round ``round`` is over: the ids of the clients that took part, their losses, and the weights they were given.

    Losses and accuracies are those of the model that the round began with. ``accuracy`` (on clean labels) and
    ``own_accuracy`` (on the labels as the client itself sees them) are in percent and hold every client; they are None
    in a round without an evaluation. ``metrics`` summarises the last evaluation so far. Weights are None where the rule
    gives none. A source may pass losses and weights as they come, also on a GPU that is still computing them: they are
    waited for when somebody reads ``losses`` or ``weights``.
    """

    round: int
    clients: NDArray[np.int64]
    raw_losses: Values
    raw_weights: Values | None = None
    accuracy: NDArray[np.float64] | None = None
    own_accuracy: NDArray[np.float64] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    raw_measured: Tensor | None = None
    raw_shown: Mapping[str, Values] = field(default_factory=dict)

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """The loss of each client that took part."""
        return _plain(self.raw_losses)

    @cached_property
    def weights(self) -> NDArray[np.float64] | None:
        """The weight of each gradient in the step, or None."""
        return None if self.raw_weights is None else _plain(self.raw_weights)

    @cached_property
    def shown(self) -> dict[str, NDArray[np.float64]]:
        """What every client could tell about itself, by name, as ``excess`` and ``trust``; NaN where it has nothing.

        Only some methods have such values, and only rounds with an evaluation. A server of these methods would not see
        them unless clients agree to send them.
        """
        return {name: _plain(values) for name, values in self.raw_shown.items()}

    @cached_property
    def measured(self) -> dict[str, float] | None:
        """With ``theory=true``, the quantities of the theorems by name (NaN where one does not exist); else None."""
        if self.raw_measured is None:
            return None
        return dict(zip(MEASURED, self.raw_measured.tolist(), strict=True))

    def tell(self, listener: Listener) -> None:
        listener.round_ended(self)


@dataclass(frozen=True, eq=False)
class Checkpointed(Event):
    """The file ``path`` now holds what is needed to go on with round ``round``."""

    round: int
    path: Path

    def tell(self, listener: Listener) -> None:
        listener.checkpointed(self)


@dataclass(frozen=True, eq=False)
class RunEnded(Event):
    """A run has ended with this summary, whose ``status`` is 'finished' or 'diverged'.

    ``last`` holds the losses and accuracies of the final model, after which no further step was taken. This process
    computed ``rounds`` rounds in ``seconds``, with ``together`` runs advancing at once. ``found`` says that the run had
    ended before, so that nothing was computed; then there is no ``last``, as there is none when a run diverges.
    """

    summary: dict[str, Any]
    last: RoundEnded | None = None
    rounds: int = 0
    seconds: float = 0.0
    together: int = 1
    found: bool = False

    def tell(self, listener: Listener) -> None:
        listener.ended(self)


class Listener:
    """Derive from this class, and define the methods for what you want to hear of.

    ``fairmean.run(…, listeners=[…])`` tells every listener in turn, between two rounds. For a run that had ended
    before, ``ended`` alone is called. When a listener raises, the run is saved as after Ctrl-C, the exception reaches
    you, and no listener is told anything more. The arrays in events cannot be written to.
    """

    def started(self, event: RunStarted) -> None:
        """A run begins, or goes on."""

    def round_ended(self, event: RoundEnded) -> None:
        """A round is over."""

    def checkpointed(self, event: Checkpointed) -> None:
        """A checkpoint was written."""

    def ended(self, event: RunEnded) -> None:
        """A run has ended."""


class Raised(BaseException):
    """What a listener raised, on its way to the user past everybody who would blame it on somebody else."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def hear(call: Callable[[T], None], argument: T) -> None:
    """Call a listener; what it raises, except KeyboardInterrupt, becomes ``Raised``."""
    try:
        call(argument)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Raised(error) from error


def unwrapping(call: Callable[[], T]) -> T:
    """The call's result; what a listener raised meanwhile is raised again, as it was."""
    try:
        return call()
    except Raised as raised:
        error = raised.error
    raise error


class Audience:
    """The user's listeners, and what they have not been told yet.

    Events are noted as they happen, and told where nothing is lost if a listener raises. After that, nobody is told
    anything more.
    """

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = _checked(listeners)
        self._news: list[Event] = []

    def note(self, event: Event) -> None:
        """This is to be told."""
        if self._listeners:
            self._news.append(event)

    def tell(self) -> None:
        """Tell every listener what has been noted since the last time."""
        if not self._news:
            return
        listeners, self._listeners = self._listeners, ()  # until all of them have come through
        news, self._news = self._news, []
        for event in news:
            for listener in listeners:
                hear(event.tell, listener)
        self._listeners = listeners


def _checked(listeners: Iterable[Listener]) -> tuple[Listener, ...]:
    """The listeners, if that is what they are."""
    if isinstance(listeners, Listener) or not isinstance(listeners, Iterable):
        raise UserError(f"listeners: {_named(listeners)} is not a list; write listeners=[…]")
    given = tuple(listeners)
    for listener in given:
        if not isinstance(listener, Listener):
            raise UserError(
                f"listeners: {_named(listener)} is not a fairmean.Listener; derive its class from fairmean.Listener, "
                "and pass an object of that class"
            )
    return given


def _named(thing: object) -> str:
    return f"the class '{thing.__name__}'" if isinstance(thing, type) else f"an object of '{type(thing).__name__}'"


def _plain(values: Values) -> NDArray[np.float64]:
    """The values in the host's memory."""
    if isinstance(values, torch.Tensor):
        values = values.detach().double().cpu().numpy()
    return read_only(np.asarray(values, dtype=np.float64))


def read_only(array: Array) -> Array:
    """The same array, which whoever receives it cannot change."""
    view = array.view()
    view.flags.writeable = False
    return view


NOBODY = Audience()


@dataclass(frozen=True)
class Progress:
    """Where a run is: for whoever shows it."""

    round: int
    rounds: int
    rounds_per_second: float
    metrics: Mapping[str, float]
    runs: int = 1  # that advance together


Report = Callable[[Progress], None]
