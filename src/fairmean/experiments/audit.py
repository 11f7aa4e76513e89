"""``fairmean audit``: whose labels are contradicted by what all the others have?

The clients' samples are predicted out of sample (``audit_folds``), the labels as given are compared with these
predictions (``audit_evidence``), and what is unusual among the clients becomes a verdict (``audit_verdicts``). Clients
that are contradicted are then left out of all training, and everybody is judged again, until nothing changes: so wrong
labels do not speak against those who contradict them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fairmean.data import own
from fairmean.data.federation import Federation
from fairmean.data.in_memory import is_kept
from fairmean.data.registry import SPECS
from fairmean.data.tables import SUFFIXES
from fairmean.errors import UserError
from fairmean.experiments import audit_recess, audit_words
from fairmean.experiments.audit_details import most_contradicted, moves
from fairmean.experiments.audit_evidence import Evidence, client_errors, client_means, evidence
from fairmean.experiments.audit_folds import FOLDS, REPEATS, Floats, Plan, candidates, predict
from fairmean.experiments.audit_samples import MOST_SAMPLES, Samples, samples_of
from fairmean.experiments.audit_verdicts import CONTRADICTED, limits, verdicts
from fairmean.experiments.building import blaming_the_model, build_federation
from fairmean.experiments.config import gather, parse
from fairmean.experiments.folder import RunFolder, to_json
from fairmean.experiments.identity import Sources, resolve
from fairmean.experiments.in_python import by_name
from fairmean.experiments.listing import DIRECTORY, find
from fairmean.experiments.reading import AUDIT, Run, load
from fairmean.experiments.sections import Config, ModelConfig
from fairmean.text import to_csv

FALSE_ALARMS = 0.05
LARGE = 200_000
"""With more samples than this, the record of a run with recess is preferred to training anew."""
_SUSPECTS = 0.1  # the rate at which clients are left out of training
_MOST_LEFT_OUT = 0.4
_PASSES = 4
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """The answer for every client; ``clients`` has a dict for each, and ``settings`` says how it was found.

    In a notebook it shows itself. ``table()`` is text, ``to_json()`` and ``to_csv()`` are for other programs.
    """

    clients: list[dict[str, Any]]
    settings: dict[str, Any]

    def __getitem__(self, name: object) -> dict[str, Any]:
        """The client of that name."""
        for client in self.clients:
            if client["client"] == str(name):
                return client
        raise KeyError(name)

    @property
    def contradicted(self) -> list[str]:
        """The clients whose labels are contradicted."""
        return [client["client"] for client in self.clients if client["verdict"] == CONTRADICTED]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: ``{"clients": […], …}``."""
        return {"clients": self.clients, **self.settings}

    def to_json(self) -> str:
        """JSON of ``to_dict``."""
        return to_json(self.to_dict())

    def to_csv(self) -> str:
        """CSV with a row for every client."""
        return to_csv(audit_words.rows(self.to_dict()))

    def table(self) -> str:
        """The clients as a table of text, the largest excess first."""
        return audit_words.table(self.to_dict())

    def __str__(self) -> str:
        return audit_words.page(self.to_dict())

    def _repr_html_(self) -> str:
        """Table and picture, for notebooks."""
        return str(importlib.import_module("fairmean.report.audited").shown(self.to_dict()))


def audit(
    source: Any = None,
    /,
    *,
    false_alarms: float = FALSE_ALARMS,
    evidence: str = "auto",
    samples: int = MOST_SAMPLES,
    repeats: int = REPEATS,
    folds: int = FOLDS,
    tell: Tell | None = None,
    directory: str | Path = DIRECTORY,
    **overrides: Any,
) -> Audit:
    """Say of every client whether the others' data contradict its labels as given.

    ``fairmean.audit("patients.csv", data={"target": "outcome", "client": "site"})``,
    ``fairmean.audit(frame, data={"target": "outcome", "client": "site"})`` with a pandas DataFrame, or
    ``fairmean.audit(run)``, where the run may also be named by its folder or a beginning of its hash. Whatever
    ``fairmean.run`` takes is taken here, too: a config, arrays as ``data={…}``, a model.

    ``false_alarms``: the share of regular clients that may be called contradicted by mistake. ``evidence``: 'folds'
    trains anew, 'recess' reads what a run of a recess method recorded, 'auto' is whichever is sounder for the size.
    ``samples``: at most so many of a client; ``repeats`` foldings into ``folds`` groups of clients.
    """
    _check(false_alarms, evidence, samples, repeats, folds)
    run = _run(source, directory, overrides)
    if run is not None:
        return _audit_run(run, false_alarms, evidence, samples, repeats, folds, tell, overrides)
    if evidence == "recess":
        raise UserError("evidence = 'recess': only a run can have recorded it; name a run, or use evidence=folds")
    config, sources = _config(source, overrides)
    clients = build_federation(config, sources.dataset(config.data))
    chosen = samples_of(clients, sources.dataset(config.data), samples, config.seed)
    plan = Plan(repeats, folds, config.seed)
    notes = ["Evidence: models of the other clients, trained anew for this audit."]
    total = int(chosen.total.sum())
    if total > LARGE and chosen.task.has_classes:
        notes.append(
            f"There are {total:,} samples. A run with method.name=fairmean-recess would use all of them, and can be "
            "audited, too."
        )
    return audit_samples(chosen, config.model, false_alarms, plan, tell, config.data.name, notes)


def _check(rate: float, evidence: str, samples: int, repeats: int, folds: int) -> None:
    if not 0.0001 <= rate <= 0.5:
        raise UserError(f"false_alarms = {rate}: must be a rate between 0.0001 and 0.5, such as 0.05")
    if evidence not in ("auto", "folds", "recess"):
        raise UserError(f"evidence = '{evidence}': must be auto, folds or recess")
    for key, value, least in (("samples", samples, 2), ("repeats", repeats, 1), ("folds", folds, 2)):
        if value < least:
            raise UserError(f"{key} = {value}: must be a whole number ≥ {least}")


def _run(source: Any, directory: str | Path, overrides: Mapping[str, Any]) -> Run | None:
    """The run that is meant, if it is one rather than data or a config."""
    if isinstance(source, Run):
        return source
    if source is None or isinstance(source, Mapping) or _is_data(source):
        return None
    if Path(source).suffix == ".toml" and not (Path(source).parent / "summary.json").exists():
        return None
    return load(find(source, directory))


def _is_data(source: Any) -> bool:
    """Whether the word is for data: it is passed as objects, known by name, or looks like data and is no run's."""
    if not isinstance(source, str | Path):
        return True
    name, path = str(source), Path(source)
    if name in SPECS or is_kept(name):
        return True
    of_a_run = (path.parent / "config.toml").is_file() and path.name in ("summary.json", "clients.csv")
    if path.suffix == ".toml" or (path / "config.toml").is_file() or of_a_run:
        return False
    looks_like_data = name.lower().endswith((".npz", ".npy", *SUFFIXES))
    return looks_like_data or own.is_function(name) or (path.exists() and not _holds_runs(path))


def _holds_runs(path: Path) -> bool:
    return path.is_dir() and any(True for _ in path.rglob("config.toml"))


def _config(source: Any, overrides: Mapping[str, Any]) -> tuple[Config, Sources]:
    """The resolved config of data alone: nobody is poisoned on purpose, and clients are those that the data names."""
    settings = dict(overrides)
    if source is not None and not isinstance(source, Mapping) and _is_data(source):
        if not isinstance(source, str | Path):
            beside = settings.get("data")
            settings["data"] = {"frame": source, **beside} if isinstance(beside, Mapping) else source
        elif isinstance(settings.get("data"), Mapping):
            settings["data"] = {"name": str(source), **settings["data"]}
        else:
            settings = {"data.name": str(source), **settings}
        source = None
    tree = gather(source, by_name(settings))
    tree.setdefault("attack", {}).setdefault("name", "none")
    named = "name" in tree.get("partition", {})
    config = parse(tree)
    sources = Sources()
    if config.data.name not in SPECS:
        loaded = sources.dataset(config.data)
        if loaded.train_clients is not None and not named:
            config = replace(config, partition=replace(config.partition, name="given"))
        elif loaded.train_clients is None and not named:
            column = "the arrays clients_train and clients_test" if not loaded.table else "data.client=COLUMN"
            raise UserError(
                f"audit: '{config.data.name}' does not say whose samples are whose; name the clients with {column}"
            )
    return resolve(config, sources), sources


def _audit_run(
    run: Run,
    rate: float,
    wanted: str,
    most: int,
    repeats: int,
    folds: int,
    tell: Tell | None,
    overrides: Mapping[str, Any],
) -> Audit:
    """The audit of a run, which is also kept in its folder for the report."""
    if overrides:
        raise UserError(
            f"'{next(iter(overrides))}': a run has its settings already; settings go with data, not with a run"
        )
    recorded = audit_recess.recorded(run)
    if wanted == "recess" and recorded is None:
        raise UserError(
            f"evidence = 'recess': run '{run.folder}' recorded no excess, which only runs of fairmean-recess do; use "
            "evidence=folds"
        )
    total = int(run.partition.sizes.sum() + run.partition.test_sizes.sum())
    clients, reason = None, " as you asked"
    if recorded is not None and wanted == "auto" and total > LARGE:
        reason = f", since {total:,} samples are many to train on anew"
    elif recorded is None or wanted != "recess":
        try:
            if not run.partition.sizes.any():
                raise UserError("its clients kept their data to themselves, as in a federation")
            clients = run.federation()
        except UserError as error:
            if recorded is None or wanted == "folds":
                raise UserError(f"audit: the data of run '{run.folder}' cannot be had again: {error}") from None
            reason = ", since its data cannot be had again"
        else:
            if clients.dynamic is not None and recorded is not None and wanted == "auto":
                clients, reason = None, ", since its poisoned clients change their labels at every step"
    if clients is None:
        assert recorded is not None
        notes = [
            f"Evidence: the excess that the run recorded while clients were in recess{reason}. The rate of false "
            "alarms has been measured for models that are trained anew, not for this evidence."
        ]
        found = with_words(Audit(*audit_recess.judged(recorded, rate, str(run.folder), notes)))
    else:
        found = _retrained(run, clients, rate, most, Plan(repeats, folds, run.config.seed), tell)
    RunFolder(run.folder).write_json(AUDIT, found.to_dict())
    return found


def _retrained(run: Run, clients: Federation, rate: float, most: int, plan: Plan, tell: Tell | None) -> Audit:
    config = run.config
    dataset = Sources().dataset(config.data)
    why = (
        "Evidence: models of the other clients, trained anew on the data of the run, with the labels that each client "
        "used."
    )
    chosen = samples_of(clients, dataset, most, config.seed)
    return audit_samples(chosen, config.model, rate, plan, tell, str(run.folder), [why])


def audit_samples(
    samples: Samples,
    model: ModelConfig,
    rate: float = FALSE_ALARMS,
    plan: Plan | None = None,
    tell: Tell | None = None,
    name: str = "samples",
    notes: Sequence[str] = (),
) -> Audit:
    """The audit of samples that are in memory."""
    plan = plan or Plan()
    with blaming_the_model(model.name):
        found, left_out, passes = _judged(samples, model, plan, tell)
    trusted = ~np.isin(np.arange(samples.clients), left_out)
    means = client_means(samples, found.excess)
    errors = client_errors(samples, found.excess)
    loss, loss_errors = client_means(samples, found.loss), client_errors(samples, found.loss)
    if_wrong = client_means(samples, found.if_wrong)
    counts = np.bincount(samples.client, minlength=samples.clients)
    judged = verdicts(means, errors, loss, loss_errors, if_wrong, counts, rate, samples.task.has_classes)
    usual = judged.usual
    half = stats.t.ppf(0.975, np.maximum(counts - 1, 1)) * errors
    alarm, entropy = usual.of(errors), client_means(samples, found.entropy)
    moved, worst = moves(samples, found, trusted), most_contradicted(samples, found)
    wrong = _client_error(samples, found)
    bias = client_means(samples, found.error) * samples.target_spread
    clients = [
        {
            "client": samples.client_names[i],
            "verdict": judged.verdicts[i],
            "excess": _plain(means[i]),
            "low": _plain(means[i] - half[i]),
            "high": _plain(means[i] + half[i]),
            "standard_error": _plain(errors[i]),
            "limit": _plain(alarm[i]),
            "could_tell": bool(judged.could_tell[i]),
            "entropy": _plain(entropy[i]),
            "loss": _plain(loss[i]),
            "error": _plain(wrong[i]),
            "bias": None if samples.task.has_classes else _plain(bias[i]),
            "samples": int(samples.total[i]),
            "samples_used": int(counts[i]),
            "moves": moved[i],
            "most_contradicted": worst[i],
        }
        for i in range(samples.clients)
    ]
    settings = {
        "data": name,
        "task": samples.task.name,
        "evidence": "folds",
        "false_alarms": rate,
        "model": found.model,
        "folds": min(plan.folds, samples.clients),
        "repeats": plan.repeats,
        "passes": passes,
        "left_out": [samples.client_names[i] for i in left_out],
        "temperature": round(found.temperature, 4),
        "centre": _plain(usual.centre),
        "spread": _plain(usual.spread),
        "limit": _plain(usual.of(np.zeros(1))[0]),
        "usual_error": _plain(float(np.median(wrong))),
    }
    said = [*notes, _how(settings, counts, samples)]
    return with_words(Audit(clients, settings | {"notes": said}))


def with_words(found: Audit) -> Audit:
    """The same, with a sentence for every client, and what these may mean."""
    record = found.to_dict()
    clients = [client | {"words": audit_words.sentence(client, record)} for client in found.clients]
    notes = [*record["notes"], *audit_words.doubts(record)]
    return replace(found, clients=clients, settings=found.settings | {"notes": notes})


def _judged(samples: Samples, model: ModelConfig, plan: Plan, tell: Tell | None) -> tuple[Evidence, list[int], int]:
    """The evidence when those who are contradicted do not train; who that is, and how many passes it took."""
    name = _best(samples, model, plan, tell)
    left_out: list[int] = []
    most = int(_MOST_LEFT_OUT * samples.clients)
    for number in range(1, _PASSES + 1):
        found = evidence(samples, predict(samples, model, name, plan, left_out, tell))
        means, errors = client_means(samples, found.excess), client_errors(samples, found.excess)
        over = means - limits(means, errors, _SUSPECTS).of(errors)
        suspects = [int(i) for i in np.argsort(-over, kind="stable")[:most] if over[i] > 0]
        if sorted(suspects) == left_out or number == _PASSES:
            break
        left_out = sorted(suspects)
    return found, left_out, number


def _best(samples: Samples, model: ModelConfig, plan: Plan, tell: Tell | None) -> str:
    """Of the models that may be used, the one whose out-of-sample loss at the median client is least."""
    names = candidates(samples, model)
    if len(names) == 1:
        return names[0]
    once = replace(plan, repeats=1)
    tried = [evidence(samples, predict(samples, model, name, once, (), tell)) for name in names]
    losses = [float(np.median(client_means(samples, _score(samples, one)))) for one in tried]
    return names[int(np.argmin(losses))]


def _score(samples: Samples, one: Evidence) -> Floats:
    return one.loss if samples.task.has_classes else one.error**2


def _client_error(samples: Samples, found: Evidence) -> Floats:
    """The share of samples that the others predict otherwise; for numbers, the root of the mean squared error."""
    if samples.task.has_classes:
        return client_means(samples, found.error)
    return np.sqrt(client_means(samples, found.error**2)) * samples.target_spread


def _how(settings: Mapping[str, Any], counts: Any, samples: Samples) -> str:
    """How it was done, in one line."""
    left = f", without {audit_words.listed(settings['left_out'])}" if settings["left_out"] else ""
    some = ""
    if (counts < samples.total).any():
        some = f"; of a client at most {int(counts.max()):,} samples were used"
    return (
        f"Each client was judged {settings['repeats']} times by a model ('{settings['model']}') that was trained on "
        f"other clients{left}{some}. Of clients with nothing wrong, about {100 * settings['false_alarms']:g} % may be "
        "called contradicted by mistake."
    )


def _plain(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
