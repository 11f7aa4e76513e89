"""What is predicted: classes, one of two classes, a number, or the next token; and what follows from that.

A task says what a target is, how many numbers a model returns for a sample, which objective clients minimise unless
they are told otherwise, and by which figure a client is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairmean.errors import unknown


@dataclass(frozen=True)
class Metric:
    """The figure by which a client is judged. ``higher`` says whether more is better."""

    name: str
    unit: str
    higher: bool = True
    about: str = ""

    @property
    def label(self) -> str:
        """The name with its unit, for tables."""
        return f"{self.name} in {self.unit}" if self.unit else self.name


ACCURACY = Metric("accuracy", "%", about="the share of samples that are predicted right")
RMSE = Metric("rmse", "the target's unit", higher=False, about="the root of the mean squared error")


@dataclass(frozen=True)
class Task:
    """``targets`` is 'classes', 'numbers' or 'tokens'; ``more`` are figures that are computed when a run ends.

    ``attacks`` are those that fit the targets, and ``compared`` those of a comparison that names none. (Two classes can
    be swapped in one way only, so there all labels or half of them are.)
    """

    name: str
    targets: str
    objective: str
    metric: Metric
    more: tuple[Metric, ...]
    attacks: tuple[str, ...]
    compared: tuple[str, ...]
    about: str

    @property
    def has_classes(self) -> bool:
        """Whether a target is one of a few classes."""
        return self.targets == "classes"

    def outputs(self, classes: int) -> int:
        """How many numbers a model returns for a sample (for a token, in next-token prediction)."""
        return 1 if self.name in ("binary", "regression") else classes


_TWO_CLASSES = ("none", "pairwise", "random", "random_class", "targeted")
_CLASSES = (*_TWO_CLASSES, "look-alike", "confused", "furthest", "adaptive")
_COMPARED = ("none", "random_class", "pairwise")
_BALANCED = Metric("balanced_accuracy", "%", about="the mean over classes of the share that is predicted right")

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            "classification", "classes", "cross-entropy", ACCURACY, (_BALANCED,), _CLASSES, _COMPARED,
            "one of several classes",
        ),
        Task(
            "binary", "classes", "binary-cross-entropy", ACCURACY,
            (
                _BALANCED,
                Metric("sensitivity", "%", about="the share of positive samples that are predicted positive"),
                Metric("specificity", "%", about="the share of negative samples that are predicted negative"),
                Metric("auroc", "%", about="how often a positive sample is ranked above a negative one"),
            ),
            _TWO_CLASSES,
            ("none", "pairwise", "pairwise:rho=0.5"),
            "one of two classes, with a single output; pos_weight counts positive samples more",
        ),
        Task(
            "regression", "numbers", "squared", RMSE,
            (
                Metric("mae", "the target's unit", higher=False, about="the mean absolute error"),
                Metric("r2", "", about="the share of the client's variance that is explained"),
            ),
            ("none", "sign", "permutation", "shift"),
            ("none", "sign", "permutation"),
            "a number",
        ),
        Task(
            "next-token", "tokens", "next-token", ACCURACY,
            (Metric("perplexity", "", higher=False, about="exp of the mean loss of a token"),),
            ("none", "pairwise", "random", "random_class"),
            _COMPARED,
            "the next token of a sequence of whole numbers",
        ),
    )
}  # fmt: skip


def task(name: str) -> Task:
    """The task of that name; 'auto', while nobody has looked at the data, is classification."""
    name = "classification" if name == "auto" else name
    if name not in TASKS:
        raise unknown("data.task", name, ["auto", *TASKS])
    return TASKS[name]
