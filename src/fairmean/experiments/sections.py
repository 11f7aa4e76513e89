"""What can be set in a run: the sections of a config as checked values, each with its defaults."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmean.checks import at_least, within
from fairmean.data.dataset import Columns
from fairmean.data.partitions import PARTITIONS, check_alpha
from fairmean.data.poisoning import ATTACKS
from fairmean.data.scaling import SCALES
from fairmean.data.tasks import TASKS
from fairmean.errors import UserError, unknown

if TYPE_CHECKING:  # imported where they are needed: a mistake in a key is told before PyTorch is imported
    from fairmean.rules.method import Method
    from fairmean.rules.optimisers import Optimiser

PRESENCES = ("uniform", "markov", "size", "power-of-choice")
DTYPES = ("float64", "float32", "tf32", "bfloat16")


@dataclass(frozen=True)
class DataConfig:
    """``name``: a known data set, a file or folder of yours, or module:function; ``path``: where its files already are.

    ``target``, ``client`` and ``split`` name columns of a table: what is predicted, whose row it is, and whether it is
    for training or for testing ('train' or 'test'; without such a column, ``test`` is the fraction of each client's
    rows that is). ``task`` 'auto': what the target looks like. ``validation``: the fraction of each client's training
    samples that is held out, on which clients are then evaluated instead of on the test samples.
    ``scale`` 'standard': every feature of float inputs is brought to 0 ± 1, by sums over the clients' training samples,
    and so is the target of a regression; 'auto': for tables alone.
    ``sha256`` (of your own file or folder, or of what your function returned; filled in when left out) ties a run to
    the content it was made with.
    ``trust``: clean test samples that the server owns, left out of every client's test data; 0: as the method needs.
    """

    name: str = "fashion-mnist-mini"
    path: str | None = None
    target: str | None = None
    client: str | None = None
    split: str | None = None
    task: str = "auto"
    test: float = 0.2
    validation: float = 0.0
    scale: str = "auto"
    sha256: str | None = None
    trust: int = 0

    @property
    def columns(self) -> Columns:
        """How to read what is no array yet."""
        return Columns(self.target, self.client, self.split, self.task, self.test)

    def __post_init__(self) -> None:
        at_least("data.trust", self.trust, 0)
        if self.scale not in SCALES:
            raise unknown("data.scale", self.scale, SCALES)
        if self.task not in ("auto", *TASKS):
            raise unknown("data.task", self.task, ["auto", *TASKS])
        within("data.test", self.test, 0.01, 0.9, "the fraction of each client's rows that is for testing")
        within("data.validation", self.validation, 0, 0.9, "the fraction of each client's training samples held out")


@dataclass(frozen=True)
class PartitionConfig:
    """Who owns which sample; ``seed`` None follows the run's seed."""

    name: str = "dirichlet"
    alpha: float = 0.5
    clients: int = 10
    seed: int | None = None
    min_size: int = 10
    shards_per_client: int = 2

    def __post_init__(self) -> None:
        if self.name not in (*PARTITIONS, "given"):
            raise unknown("partition", self.name, [*PARTITIONS, "given"])
        within("partition.clients", self.clients, 1, 100_000_000)
        at_least("partition.min_size", self.min_size, 1)
        check_alpha(self.alpha)
        if self.seed is not None:
            at_least("partition.seed", self.seed, 0)

    @property
    def options(self) -> dict[str, Any]:
        """What this partition takes beside clients and seed."""
        chosen = {"dirichlet": ("alpha", "min_size"), "shards": ("shards_per_client",)}.get(self.name, ())
        return {key: getattr(self, key) for key in chosen}


@dataclass(frozen=True)
class AttackConfig:
    """``clients``: ids or names, or a count (or ``fraction`` of all); ``pick``: the 'last' ids or 'random' ones."""

    name: str = "pairwise"
    clients: int | list[int] | list[str] | str = 2
    fraction: float | None = None
    rho: float = 1.0
    pick: str = "last"
    source: int = 0
    target: int = 1

    def __post_init__(self) -> None:
        if self.name not in ATTACKS:
            raise unknown("attack", self.name, ATTACKS)
        within("attack.rho", self.rho, 0, 1, "the fraction of a poisoned client's samples that is relabelled")
        if self.fraction is not None:
            within("attack.fraction", self.fraction, 0, 1, "the fraction of clients that is poisoned")
        if self.pick not in ("last", "random"):
            raise unknown("attack.pick", self.pick, ("last", "random"))


@dataclass(frozen=True)
class ModelConfig:
    """``auto`` (the usual model for the data), one of fairmean's by name, or module:factory.

    ``weights``: a file of parameters to begin with, safetensors or a saved state_dict. ``frozen``: names, or patterns
    such as 'encoder.*', of modules and parameters that are not trained.
    ``sha256``: of the source of your own model, and ``weights_sha256``: of that file, filled in when left out.
    """

    name: str = "auto"
    weights: str | None = None
    frozen: int | str | list[int] | list[str] | None = None
    sha256: str | None = None
    weights_sha256: str | None = None

    @property
    def patterns(self) -> list[str]:
        """What is frozen, as texts: the layers of an ``nn.Sequential`` may be written as numbers."""
        if self.frozen is None:
            return []
        return [str(part) for part in (self.frozen if isinstance(self.frozen, list) else [self.frozen])]


@dataclass(frozen=True)
class MethodConfig:
    """A name, or a scale and an aggregator (and pre-aggregations); the rest are the method's own hyper-parameters.

    ``objective``: what a sample costs a client, where it is not what the method says.

    ``sha256``: of the source of rules of your own, filled in when left out.
    """

    name: str = "fairmean"
    scale: str | None = None
    aggregator: str | None = None
    pre: str | list[str] | None = None
    objective: str | None = None
    sha256: str | None = None
    hyper: dict[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, list[str], str]:
        """(scale, pre-aggregations, aggregator): those of the name, with what is given beside it put in their place."""
        from fairmean.rules.aggregator import AGGREGATORS
        from fairmean.rules.named import decompose, named_methods
        from fairmean.rules.scales import SCALES

        named, composed = named_methods().get(self.name), decompose(self.name)
        pre: list[str] = []
        if named is not None:
            scale, aggregator = named.scale, named.aggregator
        elif composed is not None:
            scale, pre, aggregator = composed
        elif self.scale is not None and self.aggregator is not None:
            scale, aggregator = self.scale, self.aggregator
        else:
            first, plus, rest = self.name.partition("+")
            if plus and first in SCALES:
                raise unknown("aggregator", rest, AGGREGATORS)
            raise unknown("method", self.name, named_methods())
        if self.pre is not None:
            pre = [self.pre] if isinstance(self.pre, str) else self.pre
        return self.scale or scale, pre, self.aggregator or aggregator

    @property
    def has_usual_objective(self) -> bool:
        """Whether the method leaves it to the task what a sample costs."""
        from fairmean.rules.named import USUAL, named_methods

        named = named_methods().get(self.name)
        return named is None or named.objective == USUAL

    def build(self) -> Method:
        """The method itself."""
        from fairmean.rules.named import USUAL, compose, named_methods

        scale, pre, aggregator = self.parts
        plain = self.scale is self.aggregator is self.pre is None
        named = named_methods().get(self.name)
        objective = self.objective or (named.objective if named else USUAL)
        return compose(scale, aggregator, pre, self.name if plain else None, objective, **self.hyper)


@dataclass(frozen=True)
class ServerConfig:
    """What the server does with the rule's direction: plain, momentum, adam, yogi, or an optimiser of your own.

    ``lr``: the server's step size; None: train.lr, which is then the clients' alone. The rest are the optimiser's
    hyper-parameters. ``sha256``: of the source of an optimiser of your own, filled in when left out.
    """

    name: str = "plain"
    lr: float | None = None
    sha256: str | None = None
    hyper: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lr is not None and not 0 < self.lr <= 3e38:
            raise UserError(f"server.lr = {self.lr}: must be a finite number > 0")

    def build(self) -> Optimiser:
        """The optimiser itself."""
        from fairmean.rules.optimisers import optimiser

        return optimiser(self.name, **self.hyper)


@dataclass(frozen=True)
class TrainConfig:
    """``batch`` 0: full local gradients. ``local_lr`` None: as lr. ``device`` 'auto': CUDA if there is one.

    ``local_epochs`` > 0: a client goes over all its samples so often before it sends, in the place of ``local_steps``;
    the last batch of an epoch may be short. ``client_momentum`` β, ``weight_decay`` a and ``proximal`` μ (FedProx) are
    of local steps: v ← βv + g + a·w_k + μ(w_k − w), w_k ← w_k − lr·v.
    ``dtype``: float64, float32, or float32 whose large products read tf32 or bfloat16 numbers and sum in float32.
    ``presence``: how the clients of a round are chosen. ``spell`` and ``spread`` are for 'markov', and ``candidates``
    is for 'power-of-choice'. ``unbiased``: weights are divided by the probability of taking part.
    ``patience``: a run stops after so many evaluations without a better average on the samples held out by
    data.validation (0: never); ``keep`` 'best': its model is then the one with the best average, not the last one.
    ``memory``: GiB that per-client gradients may take; where they do not fit, parts of them are computed at a time (0:
    most of the machine's).
    """

    rounds: int = 100
    lr: float = 0.1
    lr_decay: float = 1.0
    schedule: str = "exponential"
    batch: int = 0
    local_steps: int = 1
    local_epochs: int = 0
    local_lr: float | None = None
    client_momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    participation: float = 1.0
    presence: str = "uniform"
    spell: float = 10.0
    spread: float = 0.0
    candidates: int = 0
    unbiased: bool = False
    patience: int = 0
    keep: str = "last"
    device: str = "auto"
    dtype: str = "float32"
    engine: str = "fast"
    memory: float = 0.0

    def __post_init__(self) -> None:
        at_least("train.rounds", self.rounds, 1)
        for name in ("lr", "lr_decay", "local_lr", "participation"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 3e38:
                raise UserError(f"train.{name} = {value}: must be a finite number > 0")
        within("train.lr_decay", self.lr_decay, 0, 1, "the factor per round; 1 keeps the step size")
        within("train.participation", self.participation, 0, 1, "the fraction of clients per round")
        self._check_presence()
        at_least("train.batch", self.batch, 0, "0 is the full local gradient")
        at_least("train.local_steps", self.local_steps, 1)
        at_least("train.local_epochs", self.local_epochs, 0, "how often a client goes over its samples; 0: local_steps")
        if self.local_epochs and self.local_steps > 1:
            raise UserError(
                f"train.local_epochs = {self.local_epochs}: train.local_steps = {self.local_steps} says already how "
                "long clients train; leave out one of them"
            )
        at_least("train.weight_decay", self.weight_decay, 0, "0 is none")
        at_least("train.proximal", self.proximal, 0, "the pull back to the server's model; 0 is none")
        if not 0 <= self.client_momentum < 1:
            raise UserError(
                f"train.client_momentum = {self.client_momentum}: must be at least 0 and below 1 (0 is none)"
            )
        if self.local_steps == 1 and self.local_epochs == 0 and (self.client_momentum or self.proximal):
            name = "client_momentum" if self.client_momentum else "proximal"
            value = getattr(self, name)
            raise UserError(
                f"train.{name} = {value}: does nothing in a client's first step; set train.local_steps or local_epochs"
            )
        at_least("train.patience", self.patience, 0, "evaluations without improvement before a run stops; 0: never")
        at_least("train.memory", self.memory, 0, "GiB for per-client gradients; 0: most of the machine's")
        choices = {
            "schedule": ("exponential", "cosine"),
            "dtype": DTYPES,
            "engine": ("fast", "reference"),
            "keep": ("last", "best"),
            "presence": PRESENCES,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown(f"train.{name}", getattr(self, name), known)

    def _check_presence(self) -> None:
        at_least("train.spell", self.spell, 1, "the mean number of rounds for which an available client stays so")
        within("train.spread", self.spread, 0, 0.99, "how far the clients' rates of availability differ; 0: not at all")
        at_least(
            "train.candidates", self.candidates, 0, "clients that are asked for their losses; 0: twice those taken"
        )
        p = self.participation
        if self.presence == "markov" and not self.spread and p < 1 and self.spell < (least := p / (1 - p)) - 1e-9:
            raise UserError(
                f"train.spell = {self.spell:g}: clients that are there in a share {p:g} of all rounds stay for "
                f"{least:.4g} rounds at least, as an absence lasts one or more; "
                f"use train.spell={math.ceil(least - 1e-9)}"
            )
        if self.unbiased and self.presence == "power-of-choice":
            raise UserError(
                "train.unbiased = true: with train.presence = 'power-of-choice' no probabilities of taking part are "
                "known; leave train.unbiased out"
            )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class RunConfig:
    """Where results go, how often the clients are evaluated (0: about twenty times), and how many of them (0: all)."""

    name: str = "run"
    dir: str = "runs"
    eval_every: int = 0
    eval_clients: int = 0

    def __post_init__(self) -> None:
        at_least("run.eval_every", self.eval_every, 0)
        at_least("run.eval_clients", self.eval_clients, 0, "clients at which the model is evaluated; 0: all")
        for key, value in (("name", self.name), ("dir", self.dir)):
            if "\0" in value or not _is_text(value):
                raise UserError(f"run.{key} = {value!r}: holds a character that no file system takes; choose another")
        if Path(self.name).is_absolute() or ".." in Path(self.name).parts or not self.name.strip():
            raise UserError(f"run.name = '{self.name}': must be a plain name; choose the place with run.dir")


@dataclass(frozen=True)
class Config:
    """One run, whole. ``theory``: measure in every round what the paper's theorems speak of, for ``fairmean check``."""

    seed: int = 1
    theory: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        at_least("seed", self.seed, 0)
        if (self.train.patience or self.train.keep == "best") and not self.data.validation:
            key = "patience" if self.train.patience else "keep"
            value = getattr(self.train, key)
            raise UserError(f"train.{key} = {value!r}: needs samples to judge by; set data.validation=0.1")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, hyper-parameters inline, None left out: what ``parse`` takes."""
        tree: dict[str, Any] = dataclasses.asdict(self)
        for section in ("method", "server"):
            tree[section] |= tree[section].pop("hyper")
        return {
            key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
            for key, value in tree.items()
        }

    def hash(self) -> str:
        """Identity of the run: everything but where its results go."""
        tree = {key: value for key, value in self.to_dict().items() if key != "run"}
        tree["run"] = {"eval_every": self.run.eval_every, "eval_clients": self.run.eval_clients}
        if not self.theory:
            del tree["theory"]
        for (section, key), usual in _LATER.items():  # as it was before there were such keys
            if tree[section][key] in usual:
                del tree[section][key]
        if tree["server"] == {"name": "plain"}:  # as it was before there were server optimisers
            del tree["server"]
        from fairmean.experiments.identity import run_hash
        from fairmean.randomness import are_few

        n = self.partition.clients
        if are_few(n, round(self.train.participation * n)):  # such draws were others before there was a faster way
            tree["participants"] = "few of many"
        return run_hash(tree)


_LATER: dict[tuple[str, str], tuple[Any, ...]] = {
    ("data", "scale"): ("none", "auto"),
    ("data", "task"): ("classification", "auto"),
    ("data", "test"): (0.2,),
    ("data", "validation"): (0.0,),
    ("train", "patience"): (0,),
    ("train", "keep"): ("last",),
    ("train", "local_epochs"): (0,),
    ("train", "client_momentum"): (0.0,),
    ("train", "weight_decay"): (0.0,),
    ("train", "proximal"): (0.0,),
    ("run", "eval_clients"): (0,),
    ("train", "presence"): ("uniform",),
    ("train", "spell"): (10.0,),
    ("train", "spread"): (0.0,),
    ("train", "candidates"): (0,),
    ("train", "unbiased"): (False,),
}
