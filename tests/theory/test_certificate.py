"""Certificates: runs inside the guarantee hold, and each kind of violation is found in the round where it happens."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fairmean
from fairmean import CoordinateRule, Scale, dispersion, register, register_scale
from fairmean.errors import Diverged, UserError
from fairmean.experiments import run as experiment
from fairmean.rules.recess import FairMeanRecess
from fairmean.terminal.main import main
from fairmean.theory import words
from fairmean.theory.certificate import certify
from fairmean.theory.measure.monitor import LATER, MEASURED

pytestmark = pytest.mark.usefixtures("here")

SOFTMAX = {"theory": True, "model.name": "linear", "train.device": "cpu", "train.rounds": 12, "train.lr": 8e-4}


def checked(settings, **more):
    return certify(experiment.run(settings, **more).folder)


def named(certificate):
    return {check.name: check for check in certificate.checks}


@pytest.mark.parametrize("attack", ["none", "pairwise", "random", "random_class", "furthest"])
@pytest.mark.parametrize(("rho", "fraction"), [(0.0, 0.2), (0.5, 0.4), (1.0, 0.1)])
def test_softmax_regression_is_inside_the_guarantee(attack, rho, fraction, own):
    settings = {"data.name": own, "attack.name": attack, "attack.rho": rho, "attack.fraction": fraction}
    certificate = checked(SOFTMAX | settings)
    assert certificate.holds
    assert certificate.promised
    assert certificate.known is not None
    assert certificate.step <= certificate.known.safe_step
    assert certificate.path.L <= certificate.known.L
    assert certificate.path.radius <= certificate.known.radius
    names = named(certificate)
    expected = {"Algorithm 1", "eq. 4, lower", "eq. 4, upper", "eq. 6", "eq. 7, lower", "eq. 7, upper", "Lemma 1, G"}
    expected |= {"Lemma 2", "Assumption 1", "L_Φ", "step size", "descent", "Theorem 2"}
    if attack != "none":
        expected |= {"Lemma 1, shift", "Lemma 1, A", "Lemma 2, as weighted"}
    assert set(names) == expected
    assert names["Theorem 2"].rounds == 12
    assert names["Theorem 2"].slack > 1


@pytest.mark.parametrize("method", ["mean", "fairmean-normalised"])
def test_rules_of_the_same_kind_are_covered(method):
    certificate = checked(SOFTMAX | {"method.name": method})
    assert certificate.holds
    assert certificate.promised


def test_a_step_twenty_times_too_long():
    safe = checked(SOFTMAX)
    assert safe.holds
    certificate = checked(SOFTMAX, **{"train.lr": 20 * safe.path.safe_step, "train.rounds": 40})
    names = named(certificate)
    assert names["step size"].broken == 0
    assert names["step size"].left > 10
    first = int(np.flatnonzero(np.diff(certificate.columns["objective"]) > 0)[0])
    assert names["descent"].broken <= first  # it falls too little before it rises
    assert not certificate.promised
    text = words.page(certificate)
    assert "α L_Φ exceeded 1 first in round 0" in text
    assert f"or rose, first in round {names['descent'].broken}, in {names['descent'].share:.0%} of the rounds" in text


def test_an_unbounded_scale(registries):
    @register_scale("leaky")
    @dataclass(frozen=True)
    class Leaky(Scale):
        """s = 1 + κ f/τ: what FairMean would be without its bound."""

        kappa: float = 1.0
        tau: float = 1.0

        def __call__(self, losses, means, context):
            return 1 + self.kappa * losses / self.tau

    names = named(certificate := checked(SOFTMAX | {"method.name": "leaky+mean"}))
    assert names["eq. 4, upper"].broken == 0
    assert names["Algorithm 1"].broken == 0
    assert names["eq. 4, upper"].left > 2
    assert not certificate.promised
    assert not certificate.same_rule
    assert "outside [1, 2], first in round 0" in words.page(certificate)


def test_a_client_that_sends_anything_it_likes(registries):
    @register("intruded", reference="a test")
    @dataclass(frozen=True)
    class Intruded(CoordinateRule):
        """The mean, but client 9 sends a vector of its own from the fourth round on."""

        def init(self, n):
            return {"t": torch.zeros(())}

        def __call__(self, round, state):
            messages = round.messages.clone()
            if state["t"] >= 3:
                messages[9] = 1e3 * torch.ones_like(messages[9])
            return messages.mean(0), {"t": state["t"] + 1}

    certificate = checked(SOFTMAX | {"method.name": "fairmean+intruded"})
    names = named(certificate)
    assert names["Algorithm 1"].broken == 3
    assert names["Lemma 2"].broken == 3
    assert not certificate.promised
    assert certificate.same_rule
    text = words.page(certificate)
    assert "departed from FairMean's first in round 3, in 75% of the rounds" in text
    assert "further than poisoned labels can move it, first in round 3" in text


def test_what_trust_was_worth():
    """Weights that may be 0: the poisoned clients' share of them is measured, and bounds how far they move d."""
    settings = {"method.name": "fairmean-recess", "attack.name": "pairwise", "train.rounds": 60, "train.lr": 0.1}
    certificate = checked(SOFTMAX | settings)
    check = named(certificate)["Lemma 2, as weighted"]
    assert check.holds
    assert check.rounds == 60
    share = certificate.columns["poisoned_share"][:60]
    assert share[-1] < share[0]
    assert "had" in next(line for line in words.sentences(certificate) if "δ_eff" in line)


def test_what_wrong_alarms_cost():
    """A rule that distrusts at random takes weight from regular clients: measured, and within 2ηG."""

    @dataclass(frozen=True)
    class Unjust(FairMeanRecess):
        def trust(self, memory, broadcast):
            return torch.linspace(0.1, 1, len(memory["times"]), dtype=torch.float64)

    register_scale("unjust", replace=True)(Unjust)
    settings = {"method.scale": "unjust", "method.aggregator": "mean", "method.objective": "recess"}
    settings |= {"attack.name": "pairwise", "train.rounds": 30, "method.cap": 1.0}
    certificate = checked(SOFTMAX | settings)
    check = named(certificate)["distrust"]
    assert check.holds
    assert check.rounds == 30
    lost = certificate.columns["distrust"][:30]
    assert 0.2 < lost.min() <= lost.max() < 0.7
    assert "distrust took" in words.page(certificate)
    fair = checked(SOFTMAX | {"method.name": "fairmean-recess", "attack.name": "none", "train.rounds": 20})
    assert named(fair)["distrust"].holds
    assert "no regular client was distrusted" in words.page(fair)
    assert "distrust" not in named(checked(SOFTMAX | {"train.rounds": 2}))


def test_tables_of_older_versions_are_read(tmp_path):
    rows = {name: values for name, values in table().items() if name not in LATER}
    certificate = judged(rows, tmp_path / "run")
    assert certificate.holds
    assert "Lemma 2, as weighted" not in named(certificate)
    assert not any("δ_eff" in line for line in words.sentences(certificate))


def test_another_rule_is_told_apart():
    certificate = checked(SOFTMAX | {"method.name": "qffl"})
    assert named(certificate)["Algorithm 1"].broken == 0
    assert "Lemma 2" not in named(certificate)
    text = words.page(certificate)
    assert "are not FairMean's" in text
    assert "poisoned clients moved" not in text


def test_a_diverged_run_has_a_certificate():
    with pytest.raises(Diverged):
        experiment.run(SOFTMAX, **{"train.lr": 1e38, "train.rounds": 5, "run.name": "lost", "model.name": "mlp"})
    (folder,) = [path.parent for path in experiment.Path("runs/lost").glob("*/theory.csv")]
    certificate = certify(folder)
    assert not certificate.holds
    assert certificate.diverged is not None
    assert named(certificate)["descent"].broken == certificate.diverged - 1
    assert named(certificate)["step size"].broken is not None
    text = words.page(certificate)
    assert f"a loss is not finite in round {certificate.diverged}" in text
    assert "nan" not in text
    json.dumps(words.record(certificate), default=str)


@pytest.mark.parametrize("lr", [1e5, 1e10])
def test_steps_beyond_reason(lr, own):
    """L_Φ may overflow; there is a page all the same."""
    certificate = checked(
        SOFTMAX | {"data.name": own},
        **{"train.lr": lr, "model.name": "mlp", "train.dtype": "float64", "train.rounds": 3},
    )
    assert not certificate.holds
    assert named(certificate)["step size"].broken == 0
    assert "broken" in words.page(certificate)
    words.record(certificate)


def test_rounding_is_not_taken_for_curvature():
    """The last steps are so short that gradients change by rounding only."""
    certificate = checked(SOFTMAX, **{"train.lr": 0.001, "train.lr_decay": 0.5, "train.rounds": 40})
    assert certificate.holds
    assert certificate.path.L <= certificate.known.L


def test_a_batch_may_hold_relabelled_samples_only():
    certificate = checked(SOFTMAX, **{"train.batch": 4, "attack.rho": 0.02, "train.lr": 0.01, "train.rounds": 40})
    assert certificate.holds
    assert certificate.premises["rho"] == 1


def test_tilted_losses_have_no_closed_form():
    settings = {"method.name": "term-hierarchical", "method.t_in": 5.0, "train.lr": 0.01}
    certificate = checked(SOFTMAX | settings)
    assert certificate.known is None
    assert not {"Assumption 1", "Lemma 1, G"} & set(named(certificate))


def test_rounds_without_a_regular_client():
    settings = {"attack.clients": 9, "train.participation": 0.1, "train.rounds": 20, "seed": 3}
    certificate = checked(SOFTMAX | settings)
    regular = (certificate.columns["clients"] > certificate.columns["poisoned"])[:20]
    assert certificate.rounds == 20
    assert certificate.lost == 20 - regular.sum() > 5
    assert f"in {certificate.lost} of 20 rounds no regular client took part" in words.page(certificate)


def test_partial_participation_shows_a_real_slack():
    certificate = checked(SOFTMAX, **{"train.participation": 0.5})
    assert certificate.premises["delta"] == 0.2
    assert np.isnan(certificate.path.L)
    text = words.page(certificate)
    assert "inf" not in text
    assert "Lemma 2 allows at least" in text


@pytest.mark.parametrize("name", ["theory.json", "theory.csv"])
def test_damaged_folders_are_told_in_one_line(name, capsys):
    folder = experiment.run(SOFTMAX, **{"train.rounds": 2}).folder
    file = folder / name
    file.write_text("{" if name == "theory.json" else file.read_text().replace("12.0", "x").replace("10.0", "x"))
    assert main(["check", str(folder)]) == 2
    assert "damaged" in capsys.readouterr().err
    file.unlink()
    assert main(["check", str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


T = 5
PREMISES = {
    "method": "fairmean", "kappa": 1.0, "tau": 1.0, "clients": 10, "delta": 0.2, "rho": 0.5, "cross_entropy": True,
    "dtype": "float64", "not_static": "", "gamma": 2.0, "smoothness": 3.0,
}  # fmt: skip


def table():
    """T rounds and a last row in which every inequality holds, made from few numbers."""
    losses = np.array([[2.0, 1.0]] * (T + 1)) * np.linspace(1, 0.5, T + 1)[:, None]
    f = losses.mean(1)
    objective = (losses + losses - np.log1p(losses)).mean(1)
    rows = {name: np.full(T + 1, np.nan) for name in ("round", *MEASURED)}
    rows |= {"round": np.arange(T + 1.0), "clients": np.full(T + 1, 10.0), "poisoned": np.full(T + 1, 2.0)}
    rows |= {"step": np.append(np.full(T, 0.05), np.nan), "objective": objective, "mean_loss": f}
    rows |= {"largest_loss": losses.max(1), "variance": losses.var(1)}
    rows |= {"dispersion": np.array([float(dispersion(torch.from_numpy(row), 1.0)) for row in losses])}
    each = {
        "gradient": 1.0,
        "error": 0.9,
        "direction": 1.1,
        "departure": 0.0,
        "lowest_weight": 1.2,
        "highest_weight": 1.8,
    }
    each |= {"regular_gradient": 1.5, "poisoned_distance": 1.6, "clean_distance": 1.0, "relabelling_shift": 1.3}
    each |= {"secant": 2.5, "objective_secant": 4.0, "jacobian": 1.9}
    each |= {"poisoned_share": 0.1, "moved": 0.12, "poisoned_reach": 1.7, "own_direction": 1.4}
    each |= {"distrust": 0.2, "distrust_moved": 0.5}
    rows |= {name: np.full(T + 1, value) for name, value in each.items()}
    rows["secant"][0] = rows["objective_secant"][0] = np.nan
    rows["curvature"][[0, T]] = 2.0
    return rows


def judged(rows, folder, **premises):
    folder.mkdir(exist_ok=True)
    with open(folder / "theory.csv", "w") as file:
        file.write(",".join(rows) + "\n")
        for t in range(len(rows["round"])):
            file.write(",".join("" if np.isnan(v[t]) else repr(float(v[t])) for v in rows.values()) + "\n")
    (folder / "theory.json").write_text(json.dumps(PREMISES | premises))
    return certify(folder)


L_PHI = 2 * 2.5 + 1.5**2
EXPECTED = {  # name: (left, right), by hand
    "Algorithm 1": (0.0, 0.0),
    "eq. 4, lower": (1.0, 1.2),
    "eq. 4, upper": (1.8, 2.0),
    "Lemma 1, G": (1.5, 2 * 2**0.5),
    "Lemma 1, shift": (1.3, 2 * 2**0.5 / 2),
    "Lemma 1, A": (1.6, 1.0 + 2 * 2**0.5 / 2),
    "Lemma 2": (0.9, 0.2 * (2 * 1.6 + 2 * 1.5)),
    "Lemma 2, as weighted": (0.12, 0.1 * 1.7),
    "distrust": (0.5, 2 * 0.2 * 1.5),
    "Assumption 1": (2.5, 3.0),
    "L_Φ": (4.0, L_PHI),
    "step size": (0.05 * L_PHI, 1.0),
}


def test_both_sides_of_every_check(tmp_path):
    rows = table()
    certificate = judged(rows, tmp_path / "run")
    names = named(certificate)
    assert certificate.holds, words.page(certificate)
    for name, (left, right) in EXPECTED.items():
        assert names[name].left == pytest.approx(left), name
        assert names[name].right == pytest.approx(right), name
    tight = int(np.argmax(rows["variance"] / 2 / (rows["largest_loss"] + 1) ** 2 / rows["dispersion"]))
    lower, upper = names["eq. 7, lower"], names["eq. 7, upper"]
    assert (lower.left, lower.right) == pytest.approx(
        (rows["variance"][tight] / 2 / (rows["largest_loss"][tight] + 1) ** 2, rows["dispersion"][tight])
    )
    assert upper.left == pytest.approx(rows["dispersion"][upper.at])
    assert upper.right == pytest.approx(rows["variance"][upper.at] / 2)
    assert names["eq. 6"].left < 1e-12
    descent = names["descent"]
    assert descent.left == pytest.approx(0.025 * (1.0 - 0.81))
    assert descent.right == pytest.approx(rows["objective"][descent.at] - rows["objective"][descent.at + 1])
    theorem = names["Theorem 2"]
    assert theorem.left == pytest.approx(1.0)
    assert theorem.right == pytest.approx(2 * rows["objective"][0] / (0.05 * T) + 1.24**2)
    assert theorem.at == T - 1
    assert {check.rounds for check in certificate.checks} == {T, T + 1}
    assert certificate.path.L == 2.5
    assert certificate.path.smoothness == pytest.approx(L_PHI)
    assert certificate.stationarity == pytest.approx(1.0)


BREAK = {  # name: (column, row that is changed, value, round in which it must be noticed)
    "Algorithm 1": ("departure", 3, 2e-9, 3),
    "eq. 4, lower": ("lowest_weight", 2, 0.999, 2),
    "eq. 4, upper": ("highest_weight", 2, 2.001, 2),
    "eq. 6": ("mean_loss", 1, 1.351, 1),
    "eq. 7, lower": ("variance", 3, 0.9, 3),
    "eq. 7, upper": ("variance", 3, 1e-3, 3),
    "Lemma 1, G": ("regular_gradient", 1, 2.829, 1),
    "Lemma 1, shift": ("relabelling_shift", 4, 1.415, 4),
    "Lemma 1, A": ("poisoned_distance", 4, 2.415, 4),
    "Lemma 2": ("error", 2, 1.241, 2),
    "Lemma 2, as weighted": ("moved", 3, 0.171, 3),
    "distrust": ("distrust_moved", 2, 0.601, 2),
    "Assumption 1": ("curvature", 3, 3.01, 3),
    "L_Φ": ("objective_secant", 3, 7.27, 2),
    "step size": ("step", 2, 0.138, 2),
    "descent": ("error", 3, 0.2, 3),
    "Theorem 2": ("gradient", 1, 8.3, 1),
}


@pytest.mark.parametrize("name", BREAK)
def test_every_check_can_break(name, tmp_path):
    column, row, value, noticed = BREAK[name]
    rows = table()
    if name == "descent":  # a promise that is just kept, until there is less error to excuse
        kept = -np.diff(rows["objective"])
        rows["gradient"][:T] = np.sqrt(0.999 * kept / 0.025 + 0.81)
    if name == "Theorem 2":
        rows["objective"][:] = 0.0
        rows["mean_loss"][:] = rows["largest_loss"][:] = rows["variance"][:] = rows["dispersion"][:] = 0.0
        rows["gradient"][:] = 1e-3
        rows["error"][:] = 1.2
        value = 2.0
    assert named(judged(rows, tmp_path / "before"))[name].holds
    rows[column][row] = value
    check = named(certificate := judged(rows, tmp_path / "after"))[name]
    assert check.broken == noticed
    assert certificate.holds is False or not check.decides
    words.page(certificate)


def test_sampled_jacobians_cannot_refute_lemma_1(tmp_path):
    rows = table()
    rows["jacobian"][:] = 0.5
    certificate = judged(rows, tmp_path / "run", gamma=None, smoothness=None)
    assert named(certificate)["Lemma 1, G"].broken == 0
    assert certificate.holds
    assert "not shown: first in round 0" in words.page(certificate)


def test_minibatches_leave_out_what_they_must():
    certificate = checked(SOFTMAX, **{"train.batch": 8})
    assert not {"L_Φ", "descent", "Theorem 2", "step size"} & set(named(certificate))
    assert {"Lemma 2", "eq. 6"} <= set(named(certificate))
    assert "train.batch = 8" in words.page(certificate)


def test_the_command(capsys):
    folder = str(experiment.run(SOFTMAX).folder)
    assert main(["check", folder]) == 0
    out = capsys.readouterr().out
    assert "no inequality was broken" in out
    assert "known beforehand" in out
    assert main(["check", folder, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["holds"] is True
    assert {check["name"] for check in record["checks"]} >= {"Lemma 2", "Theorem 2"}
    far = str(experiment.run(SOFTMAX, **{"train.lr": 1.0}).folder)
    assert main(["check", far]) == 1


def test_what_cannot_be_checked(capsys, tmp_path):
    plain = experiment.run(SOFTMAX | {"theory": False}).folder
    with pytest.raises(UserError, match=r"run it again: fairmean run .*theory=true"):
        certify(plain)
    assert main(["check", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_an_unfinished_run_is_checked_as_far_as_it_went():
    def interrupt(progress):
        if progress.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(SOFTMAX, report=interrupt)
    (folder,) = [path.parent for path in experiment.Path("runs").glob("*/*/theory.csv.part")]
    certificate = certify(folder)
    assert certificate.rounds == 7
    assert certificate.holds


def test_a_certificate_shows_itself_in_a_notebook(here):
    run = fairmean.run(theory=True, train={"rounds": 2, "device": "cpu"}, model={"name": "linear"})
    page = run.certificate._repr_html_()
    assert str(run.folder) in page
    assert all(check.name in page for check in run.certificate.checks)
    assert "<script" not in page
