"""``fairmean audit``: who is called contradicted, on what evidence, and what is said about it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fairmean
from fairmean.data.tasks import task
from fairmean.errors import UserError
from fairmean.experiments import audit_folds, audit_recess
from fairmean.experiments.audit import audit_samples
from fairmean.experiments.audit_evidence import client_means, evidence
from fairmean.experiments.audit_folds import Plan, Predicted, predict
from fairmean.experiments.audit_samples import Samples
from fairmean.experiments.audit_verdicts import (
    CONTRADICTED,
    NOTHING,
    SERVED_BADLY,
    TOO_LITTLE,
    limits,
    verdicts,
)
from fairmean.experiments.sections import ModelConfig
from fairmean.report import collect, gather, html
from fairmean.terminal.main import main

SITES = ("coast", "east", "hill", "north", "south", "west")
QUICK = Plan(repeats=1, folds=3)
LINEAR = ModelConfig("linear")


def made(sizes=(60,) * 6, wrong=(), seed=0, classes=3, kind="classification", noise=()):
    """Sites whose classes follow from two numbers; labels of ``wrong`` sites are turned round."""
    random = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = random.normal(0, 1, (len(client), 2))
    angle = np.arctan2(x[:, 1], x[:, 0]) + random.normal(0, 0.15, len(client))
    y = np.floor((angle + np.pi) / (2 * np.pi) * classes).astype(int) % classes
    if kind == "regression":
        y = (2 * x[:, 0] - x[:, 1] + random.normal(0, 0.3, len(client))).astype(np.float32)
        y[np.isin(client, wrong)] += 2
    else:
        chosen = np.isin(client, wrong)
        y[chosen] = classes - 1 - y[chosen]
    for site in noise:  # samples that nobody can tell, with labels that are as likely as the others say
        rows = client == site
        x[rows] *= 0.02
    names = tuple(str(k) for k in range(classes))
    return Samples(
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(y),
        client,
        [f"row {i + 1}" for i in range(len(client))],
        tuple(f"site {i}" for i in range(len(sizes))),
        names if kind != "regression" else ("0",),
        classes if kind != "regression" else 1,
        task(kind),
        np.asarray(sizes),
    )


def of(found, verdict):
    return [client["client"] for client in found.clients if client["verdict"] == verdict]


@pytest.fixture
def table(here):
    """A table of patients at six sites, where 'west' has the two outcomes the wrong way round."""
    random = np.random.default_rng(3)
    rows = []
    for i in range(420):
        age, pressure = random.normal(50, 10), random.normal(120, 12)
        ill = (age - 50) / 10 + (pressure - 120) / 12 + random.normal(0, 0.4) > 0
        site = SITES[i % len(SITES)]
        rows.append((f"{age:.1f}", f"{pressure:.1f}", site, "ill" if ill != (site == "west") else "well"))
    file = here / "patients.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["age", "pressure", "site", "outcome"])
        writer.writerows(rows)
    return SimpleNamespace(file=file, rows=rows, words=["data.target=outcome", "data.client=site", "model.name=linear"])


def test_the_site_with_labels_turned_round_is_named(table):
    found = fairmean.audit(
        str(table.file), repeats=1, data={"target": "outcome", "client": "site"}, model={"name": "linear"}
    )
    assert found.contradicted == ["west"]
    west = found["west"]
    assert west["low"] < west["excess"] < west["high"]
    assert west["excess"] > west["limit"] > max(c["excess"] for c in found.clients if c["client"] != "west")
    assert {(move["label"], move["seems"]) for move in west["moves"]} == {("ill", "well"), ("well", "ill")}
    assert sum(move["given"] for move in west["moves"]) == west["samples"] == 70
    for sample in west["most_contradicted"]:  # a row of the file, counted from 1 without the line of names
        row = table.rows[int(sample["sample"].removeprefix("row ")) - 1]
        assert row[2:] == ("west", sample["label"])
        assert sample["seems"] != sample["label"]
    assert found.settings["left_out"] == ["west"]


def test_the_same_question_has_the_same_answer_and_leaves_generators_alone():
    samples = made(wrong=[4])
    before = torch.random.get_rng_state()
    first, second = (audit_samples(samples, ModelConfig(), plan=QUICK).to_dict() for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.random.get_rng_state())


def test_nobody_is_named_where_nothing_is_wrong():
    alarms = [audit_samples(made(seed=seed), LINEAR, plan=QUICK).contradicted for seed in range(8)]
    assert sum(map(len, alarms)) <= 3  # of 48 clients


def test_two_of_six_that_err_alike_are_named():
    found = audit_samples(made(wrong=[1, 4]), ModelConfig(), plan=Plan(repeats=1, folds=6))
    assert found.contradicted == ["site 1", "site 4"]
    assert found.settings["passes"] > 1


def test_a_client_is_never_judged_by_a_model_that_saw_it(monkeypatch):
    samples, seen = made(), []
    usual, asked = audit_folds._trained, audit_folds._outputs
    monkeypatch.setattr(
        audit_folds, "_trained", lambda s, m, n, used, seed: seen.append(used) or usual(s, m, n, used, seed)
    )
    places = {tuple(row.tolist()): i for i, row in enumerate(samples.x)}

    def outputs(net, x):
        rows = [places[tuple(row.tolist())] for row in x]
        assert not set(samples.client[rows]) & set(samples.client[seen[-1]])
        assert not np.isin(samples.client[seen[-1]], [5]).any()  # who is left out trains nobody, and is judged
        return asked(net, x)

    monkeypatch.setattr(audit_folds, "_outputs", outputs)
    predicted = predict(samples, LINEAR, "linear", Plan(repeats=2, folds=4), [5])
    assert len(seen) == 8
    assert predicted.outputs.shape == (2, 360, 3)
    assert predicted.shares.sum(2) == pytest.approx(1)


def test_labels_that_follow_the_prediction_have_no_excess():
    random = np.random.default_rng(1)
    n, classes = 60_000, 4
    scores = random.normal(0, 1.5, (1, n, classes))
    shares = np.full((1, n, classes), 1 / classes)
    p = np.exp(scores[0]) / np.exp(scores[0]).sum(1, keepdims=True)
    y = (p.cumsum(1) > random.random((n, 1))).argmax(1)
    samples = made(sizes=(n // 6,) * 6, classes=classes)
    samples = Samples(**{**vars(samples), "y": torch.from_numpy(y)})
    found = evidence(samples, Predicted(scores, shares, "made"))
    assert client_means(samples, found.excess) == pytest.approx(0, abs=0.03)
    assert found.temperature == pytest.approx(1, abs=0.1)
    assert found.if_wrong.mean() > 0.5


def test_a_label_that_nobody_else_has_is_no_evidence():
    samples = made()
    shares = np.full((1, 360, 3), 0.5)
    shares[..., 2] = 0
    scores = np.zeros((1, 360, 3))
    scores[..., 2] = -30
    found = evidence(samples, Predicted(scores, shares, "made"))
    assert np.all(found.excess[samples.y.numpy() == 2] == 0)


def test_a_binary_output_is_two_classes():
    samples = made(classes=2, kind="binary")
    scores = np.where(samples.y.numpy() == 1, 2.0, -2.0)[None, :, None]
    right = evidence(samples, Predicted(scores, np.full((1, 360, 2), 0.5), "made"))
    wrong = evidence(samples, Predicted(-scores, np.full((1, 360, 2), 0.5), "made"))
    assert right.error.max() == 0
    assert wrong.error.min() == 1
    assert right.excess.max() < wrong.excess.min()


def test_limits_are_those_of_the_regular_clients():
    random = np.random.default_rng(0)
    regular = random.normal(0, 0.2, 70)
    errors = np.full(100, 0.05)
    usual = limits(regular, errors[:70], 0.05)
    with_wrong = limits(np.concatenate([regular, np.full(30, 5.0)]), errors, 0.05)
    assert with_wrong.spread < 2 * usual.spread
    assert limits(regular, errors[:70], 0.01).of(errors)[0] > usual.of(errors)[0]
    assert usual.of(np.array([0.5]))[0] > usual.of(np.array([0.05]))[0]


def test_every_verdict():
    excess, errors = np.array([0.0, 0.01, 3.0, 0.02, 0.0]), np.array([0.05, 0.05, 0.2, 0.05, 2.0])
    loss, if_wrong = np.array([0.3, 0.31, 3.5, 2.0, 0.3]), np.full(5, 4.0)
    many = np.full(5, 1000)
    judged = verdicts(excess, errors, loss, errors, if_wrong, many, 0.05)
    assert judged.verdicts == [NOTHING, NOTHING, CONTRADICTED, SERVED_BADLY, TOO_LITTLE]
    assert judged.could_tell.tolist() == [True, True, True, True, False]
    unknowing = verdicts(excess, errors, loss, errors, np.zeros(5), many, 0.05)
    assert unknowing.verdicts[0] == TOO_LITTLE  # a model that knows nothing
    few = verdicts(excess, errors, loss, errors, if_wrong, np.full(5, 2), 0.05)
    assert few.verdicts[0] == TOO_LITTLE


def test_few_samples_are_too_few_and_unclear_ones_are_served_badly():
    found = audit_samples(made(sizes=(80,) * 6 + (3,), noise=[2], seed=5), LINEAR, plan=QUICK)
    assert of(found, TOO_LITTLE) == ["site 6"]
    assert of(found, SERVED_BADLY) == ["site 2"]
    assert found["site 2"]["entropy"] == max(client["entropy"] for client in found.clients)
    assert found.contradicted == []


def test_numbers_that_are_shifted_are_named_with_their_bias():
    found = audit_samples(made(wrong=[3], kind="regression"), LINEAR, plan=QUICK)
    assert found.contradicted == ["site 3"]
    assert found["site 3"]["bias"] == pytest.approx(2, abs=0.3)
    assert "above what the others predict" in found["site 3"]["words"]


def test_command_line(table, capsys):
    assert main(["audit", str(table.file), *table.words, "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert "contradicted" in out
    assert "'west'" in out
    assert "labels as given" in out
    assert "clean" not in out
    assert main(["audit", str(table.file), *table.words, "--repeats", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {client["client"]: client["verdict"] for client in record["clients"]}["west"] == CONTRADICTED
    assert {"client", "verdict", "excess", "low", "high", "words"} <= set(record["clients"][0])
    assert record["false_alarms"] == 0.05
    assert main(["audit", str(table.file), *table.words, "--repeats", "1", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sorted(row["client"] for row in rows) == sorted(SITES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["patients.csv", "data.target=outcome"], "data.client=COLUMN"),
        (["patients.csv", "data.target=outcome", "data.client=site", "--false-alarms", "2"], "false_alarms = 2.0"),
        (["patients.csv", "data.target=outcome", "data.client=site", "--evidence", "recess"], "only a run"),
        (["nowhere"], "there is no run 'nowhere'"),
        (["nowhere.csv", "data.target=outcome", "data.client=site"], "is not there"),
        (["two.csv", "data.target=y", "data.client=s"], "at least 3 clients"),
    ],
)
def test_mistakes_are_told_in_one_line(table, here, capsys, words, said):
    (here / "two.csv").write_text("x,y,s\n" + "".join(f"{i},{'ab'[i % 2]},{'uv'[i % 3 == 0]}\n" for i in range(20)))
    assert main(["audit", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_arrays_and_frames(table, here, capsys):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(table.file)
    columns = {"target": "outcome", "client": "site"}
    assert fairmean.audit(frame, data=columns, model={"name": "linear"}, repeats=1).contradicted == ["west"]
    x = frame[["age", "pressure"]].to_numpy(np.float32)
    x, y = (x - x.mean(0)) / x.std(0), (frame["outcome"] == "ill").to_numpy(np.int64)
    client = np.array([SITES.index(site) for site in frame["site"]])
    parts = {"train": slice(None, 360), "test": slice(360, None)}
    arrays = {f"{key}_{part}": value[rows] for part, rows in parts.items()
              for key, value in (("x", x), ("y", y), ("clients", client))}  # fmt: skip
    np.savez(here / "sites.npz", **arrays)
    assert main(["audit", "sites.npz", "model.name=linear", "--repeats", "1", "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    assert [c["client"] for c in clients if c["verdict"] == CONTRADICTED] == ["5"]
    for sample in clients[5]["most_contradicted"]:
        part, place = sample["sample"].removesuffix("]").split("[")
        assert arrays[part.replace("x", "clients")][int(place)] == 5
        assert str(arrays[part.replace("x", "y")][int(place)]) == sample["label"]


def test_of_a_client_with_many_samples_some_are_used(table):
    columns = {"target": "outcome", "client": "site"}
    found = fairmean.audit(str(table.file), samples=40, repeats=1, data=columns, model={"name": "linear"})
    assert found.contradicted == ["west"]
    assert {(client["samples"], client["samples_used"]) for client in found.clients} == {(70, 40)}
    assert "at most 40 samples were used" in str(found)


def test_tokens_are_refused():
    x = np.random.default_rng(0).integers(0, 5, (12, 4))
    arrays = {"x_train": x, "y_train": x, "x_test": x, "y_test": x, "clients_train": np.repeat(["a", "b", "c"], 4)}
    with pytest.raises(UserError, match="next-token"):
        fairmean.audit(data=arrays | {"clients_test": arrays["clients_train"]})


def test_a_run_is_audited_with_the_labels_that_its_clients_used(table):
    data = {"name": str(table.file), "target": "outcome", "client": "site"}
    attack = {"name": "pairwise", "clients": ["hill"]}
    run = fairmean.run(data=data, model={"name": "linear"}, attack=attack, train={"rounds": 2})
    assert run.audit is None
    found = fairmean.audit(run, repeats=1)
    assert found.contradicted == ["hill", "west"]
    assert run.audit == json.loads(found.to_json())
    with pytest.raises(UserError, match="recorded no excess"):
        fairmean.audit(run.folder, evidence="recess")
    with pytest.raises(UserError, match="has its settings already"):
        fairmean.audit(run, model={"name": "mlp"})
    page = html(collect(gather(run)))
    assert "Whose labels are contradicted?" in page
    assert "west" in page[page.index("Whose labels") :]
    table.file.write_text(table.file.read_text().replace("ill", "sick"))
    with pytest.raises(UserError, match="cannot be had again"):
        fairmean.audit(run)


def test_of_a_federation_there_is_only_what_clients_told(table):
    """The folder of a federation says nothing of the clients' data, and may have the excess that they measured."""
    data = {"name": str(table.file), "target": "outcome", "client": "site"}
    run = fairmean.run(data=data, model={"name": "linear"}, train={"rounds": 2})
    nothing = np.zeros(len(SITES), dtype=np.int64)
    run.partition = SimpleNamespace(sizes=nothing, test_sizes=nothing)
    with pytest.raises(UserError, match="kept their data to themselves"):
        fairmean.audit(run)
    last = run.columns["round"] == 2
    excess = np.full(len(last), np.nan)
    excess[last] = [0.0, 0.1, 0.02, -0.1, 0.0, 1.5]
    run.columns["excess"] = excess
    found = fairmean.audit(run)
    assert found.contradicted == ["west"]
    assert found["west"]["samples"] is None
    assert "in recess, since its data cannot be had again" in str(found)
    assert found._repr_html_().count("<circle") == 6
    assert run.audit is not None


def test_a_page_without_audits_has_no_such_part(table):
    data = {"name": str(table.file), "target": "outcome", "client": "site"}
    run = fairmean.run(data=data, model={"name": "linear"}, train={"rounds": 2})
    assert "Whose labels are contradicted?" not in html(collect(gather(run)))


def test_notebooks_show_names_as_text():
    samples = made(wrong=[2])
    samples = Samples(**{**vars(samples), "client_names": ("<b>", "1", "2", "3", "4", "5")})
    shown = audit_samples(samples, LINEAR, plan=QUICK)._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
    assert shown.count("<circle") == 6


def test_what_a_run_recorded_in_recess():
    excess = np.array([0.0, 0.1, -0.05, 2.5, 0.02, np.nan])
    partition = SimpleNamespace(sizes=np.full(6, 50), test_sizes=np.full(6, 10))
    first = np.zeros(6)
    columns = {
        "client": np.tile(np.arange(6), 2),
        "excess": np.concatenate([first * np.nan, excess]),
        "loss": np.ones(12),
        "own_accuracy": np.full(12, 80.0),
    }
    run = SimpleNamespace(
        columns=columns,
        client_names=list("abcdef"),
        settings={},
        partition=partition,
        metric=fairmean.data.tasks.ACCURACY,
    )
    clients, settings = audit_recess.judged(audit_recess.recorded(run), 0.05, "made", ["why"])
    assert [client["verdict"] for client in clients] == [NOTHING] * 3 + [CONTRADICTED, NOTHING, TOO_LITTLE]
    assert settings["evidence"] == "recess"
    del columns["excess"]
    assert audit_recess.recorded(run) is None


def test_test_samples_that_nobody_owns_are_not_held_against_a_client():
    """Arrays say whose the training samples are, and not whose the test samples are."""
    samples = made(sizes=(80,) * 6, wrong=(2,))
    clean = made(sizes=(80,) * 6)
    found = fairmean.audit(
        data={
            "x_train": samples.x.numpy(), "y_train": samples.y.numpy(), "clients_train": samples.client,
            "x_test": clean.x.numpy(), "y_test": clean.y.numpy(),
        },
        repeats=1,
    )  # fmt: skip
    assert [client["samples"] for client in found.clients] == [80] * 6
    assert found.clients[2]["verdict"] == CONTRADICTED
    assert all(one["sample"].startswith("x_train[") for one in found.clients[2]["most_contradicted"])


def test_samples_are_named_where_they_came_from(tmp_path):
    samples = made(sizes=(60,) * 6, wrong=(2,))
    items = [(x, int(y), int(c)) for x, y, c in zip(samples.x, samples.y, samples.client, strict=True)]
    found = fairmean.audit(data={"train": items}, repeats=1)
    for one in found.clients[2]["most_contradicted"]:
        place = int(one["sample"].removeprefix("train[").removesuffix("]"))
        assert items[place][2] == 2
        assert str(items[place][1]) == one["label"]


def test_targets_are_told_in_their_own_unit(tmp_path):
    samples = made(sizes=(60,) * 6, wrong=(2,), kind="regression")
    y = 140 + 5 * samples.y.numpy()
    lines = ["a,b,pressure,site"] + [
        f"{a:.5f},{b:.5f},{target:.5f},s{site}"
        for (a, b), target, site in zip(samples.x.tolist(), y.tolist(), samples.client.tolist(), strict=True)
    ]
    table = tmp_path / "patients.csv"
    table.write_text("\n".join(lines) + "\n")
    found = fairmean.audit(str(table), data={"target": "pressure", "client": "site"}, repeats=1)
    worst = found.clients[2]["most_contradicted"]
    assert worst
    for one in worst:
        row = int(one["sample"].removeprefix("row ")) - 1
        assert one["label"] == pytest.approx(y[row], abs=1e-2)
        assert 100 < one["seems"] < 180


def test_a_label_that_nobody_else_has_is_no_move():
    samples = made(sizes=(60,) * 6, classes=3)
    y = samples.y.clone()
    y[torch.from_numpy(samples.client == 1)] = 2
    y[torch.from_numpy((samples.client != 1) & (samples.y.numpy() == 2))] = 0
    found = audit_samples(replace(samples, y=y), LINEAR, plan=QUICK)
    assert not [move for move in found.clients[1]["moves"] if move["label"] == samples.class_names[2]]


def test_a_table_beside_somebodys_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text("of = 'another tool'")
    samples = made()
    lines = ["a,b,y,site", *(f"{a},{b},c{k},s{c}" for (a, b), k, c in
             zip(samples.x.tolist(), samples.y.tolist(), samples.client.tolist(), strict=True))]  # fmt: skip
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n")
    found = fairmean.audit("patients.csv", data={"target": "y", "client": "site"}, repeats=1)
    assert len(found.clients) == 6


def test_very_few_clients_and_two_groups():
    samples = made(sizes=(60,) * 3, wrong=(1,))
    found = audit_samples(replace(samples, client_names=SITES[:3]), LINEAR, plan=Plan(repeats=3, folds=2))
    assert len(found.clients) == 3


def test_labels_that_change_at_every_step_leave_the_record(tmp_path):
    run = fairmean.run(
        method={"name": "fairmean-recess"}, attack={"name": "adaptive"}, model={"name": "linear"},
        train={"rounds": 60, "batch": 16, "lr": 0.1, "device": "cpu"}, run={"dir": str(tmp_path)},
    )  # fmt: skip
    found = fairmean.audit(run)
    assert found.settings["evidence"] == "recess"
    with pytest.raises(UserError, match="changes them at every step"):
        fairmean.audit(run, evidence="folds")
