"""Every key of a config, with its default and what it is for: for help texts and starter files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Key:
    """``default`` None: the key is left out unless it is wanted, and ``example`` shows a value for it."""

    name: str
    default: Any
    about: str
    common: bool = False
    example: Any = None

    @property
    def shown(self) -> Any:
        """A value to write: the default, or an example where there is none."""
        return self.example if self.default is None else self.default


@dataclass(frozen=True)
class Section:
    """The keys below ``[name]``; those of the empty name stand at the top of a config."""

    name: str
    about: str
    keys: tuple[Key, ...]

    def dotted(self, key: Key) -> str:
        """The key as it is written on the command line."""
        return f"{self.name}.{key.name}" if self.name else key.name


def _digest(what: str, name: str = "sha256") -> Key:
    return Key(name, None, f"digest of {what}; filled in by fairmean, and checked where it is given", example="…")


SECTIONS = (
    Section(
        "",
        "the run",
        (
            Key("seed", 1, "everything random follows from it", common=True),
            Key("theory", False, "measure what the paper's theorems speak of, for 'fairmean check'"),
        ),
    ),
    Section(
        "data",
        "what is learned",
        (
            Key(
                "name",
                "fashion-mnist-mini",
                "or fashion-mnist, cifar10, your own file or folder, or module:function",
                common=True,
            ),
            Key("path", None, "where the files of a named data set already are", example="~/data"),
            Key("target", None, "a table's column that is predicted", example="outcome"),
            Key("client", None, "a table's column that says whose row it is", example="site"),
            Key("split", None, "a table's column that says 'train' or 'test'", example="part"),
            Key("test", 0.2, "without that column: the fraction of each client's rows for testing"),
            Key("task", "auto", "classification, binary, regression, next-token; auto: as the target looks"),
            Key("validation", 0.0, "evaluate on this fraction of each client's training samples, held out"),
            Key("scale", "auto", "'standard' brings every feature to 0 ± 1; auto: tables alone; none"),
            Key("trust", 0, "clean test samples that the server owns; 0: as many as the method needs"),
            _digest("your own data"),
        ),
    ),
    Section(
        "partition",
        "how the samples are divided among clients",
        (
            Key("name", "dirichlet", "or iid, shards, given (the client ids that come with your data)", common=True),
            Key("alpha", 0.5, "dirichlet: small values make clients differ much, large ones hardly", common=True),
            Key("clients", 10, "how many clients there are", common=True),
            Key("seed", None, "the partition's own seed; left out, it follows seed", common=True, example=1),
            Key("min_size", 10, "dirichlet: every client has at least so many samples"),
            Key("shards_per_client", 2, "shards: how many pieces of the sorted data a client gets"),
        ),
    ),
    Section(
        "attack",
        "whose labels are poisoned, and how",
        (
            Key(
                "name",
                "pairwise",
                "or none, random, random_class, targeted, look-alike, confused, furthest, adaptive",
                common=True,
            ),
            Key("clients", 2, "how many clients are poisoned (the last ones), or their ids: [8, 9]", common=True),
            Key(
                "fraction",
                None,
                "the fraction of poisoned clients, instead of a count",
                common=True,
                example=0.2,
            ),
            Key("rho", 1.0, "fraction of a poisoned client's samples that is relabelled", common=True),
            Key("pick", "last", "which clients a count or fraction means: the 'last' ones or 'random' ones"),
            Key("source", 0, "targeted: samples of this class …"),
            Key("target", 1, "targeted: … get this label"),
        ),
    ),
    Section(
        "model",
        "what is trained",
        (
            Key(
                "name",
                "auto",
                "mlp, cnn, linear, resnet18, transformer, lstm, or module:factory; auto: as the data asks for",
                common=True,
            ),
            Key("weights", None, "a file of parameters to begin with: safetensors or a state_dict", example="my.pt"),
            Key("frozen", None, "modules and parameters that are not trained, by name or pattern", example=["0"]),
            _digest("your own model's source"),
            _digest("the file of weights", "weights_sha256"),
        ),
    ),
    Section(
        "method",
        "how clients' gradients become a step; 'fairmean list methods' shows all",
        (
            Key("name", "fairmean", "further keys below are the method's own hyper-parameters", common=True),
            Key("scale", None, "another scale than the method's: how much a client's gradient counts", example="qffl"),
            Key("aggregator", None, "another aggregator: what the server does with the messages", example="cwtm"),
            Key("pre", None, "what is done to the messages first", example="nnm"),
            Key("objective", None, "what a sample costs a client", example="tilted"),
            _digest("the source of a method of your own"),
        ),
    ),
    Section(
        "train",
        "how clients train",
        (
            Key("rounds", 100, "how often the clients send something", common=True),
            Key("lr", 0.1, "the step size", common=True),
            Key("lr_decay", 1.0, "the step size is multiplied by it after every round", common=True),
            Key("schedule", "exponential", "or cosine: the step size falls to zero over all rounds"),
            Key("batch", 0, "samples of a client in one step; 0: all of them", common=True),
            Key("local_steps", 1, "steps that a client takes before it sends", common=True),
            Key("local_epochs", 0, "in the place of local_steps: how often a client goes over its samples"),
            Key("local_lr", None, "the step size of local steps, if it is not lr", example=0.05),
            Key("client_momentum", 0.0, "momentum of a client's local steps"),
            Key("weight_decay", 0.0, "a client's gradient is increased by it times the parameters"),
            Key("proximal", 0.0, "FedProx: how strongly local steps are pulled back to the server's model"),
            Key("participation", 1.0, "fraction of clients that takes part in a round", common=True),
            Key("presence", "uniform", "who takes part; or markov (availability), size, power-of-choice (loss)"),
            Key("spell", 10.0, "markov: for how many rounds an available client stays so, in the mean"),
            Key("spread", 0.0, "markov: how far the clients' rates of availability differ, from 0 to 0.99"),
            Key("candidates", 0, "power-of-choice: clients asked for their losses; 0: twice those taken"),
            Key("unbiased", False, "divide weights by the probability of taking part (mean, fedavg, fairmean, qffl)"),
            Key("patience", 0, "stop after so many evaluations without improvement on data.validation; 0: never"),
            Key("keep", "last", "or best: the model that did best on data.validation"),
            Key("device", "auto", "cpu, cuda; auto takes a GPU if there is one", common=True),
            Key("dtype", "float32", "or float64; tf32 and bfloat16: float32 with faster, less exact products"),
            Key("engine", "fast", "or reference: the plain loop that the fast engine is tested against"),
            Key("memory", 0.0, "GiB for per-client gradients, where a rule needs them; 0: most of the machine's"),
        ),
    ),
    Section(
        "server",
        "what the server makes of the method's direction",
        (
            Key("name", "plain", "or momentum, adam, yogi; further keys are its hyper-parameters"),
            Key("lr", None, "the server's step size, if it is not train.lr", example=0.1),
            _digest("the source of an optimiser of your own"),
        ),
    ),
    Section(
        "run",
        "where results go",
        (
            Key("name", "run", "results are in dir/name/<hash of the config>/", common=True),
            Key("dir", "runs", "the folder for all results", common=True),
            Key("eval_every", 0, "rounds between evaluations; 0: about twenty in all"),
            Key("eval_clients", 0, "clients at which the model is evaluated, drawn once at random; 0: all"),
        ),
    ),
)


def described() -> str:
    """Every key with its default and purpose, a line each, for a help text."""
    lines = []
    for section in SECTIONS:
        for key in section.keys:
            if not key.name.endswith("sha256"):
                value = "" if key.default is None else f"={written(key.default)}"
                lines.append(f"  {section.dotted(key) + value:<31} {key.about}")
    return "\n".join(lines)


def written(value: Any) -> str:
    """A value as it is written after ``key=``."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"
