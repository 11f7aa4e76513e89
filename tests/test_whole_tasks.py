"""From data as people have it to a finished run: tokens, images in folders, saved data sets; samples held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fairmean
from fairmean import UserError
from fairmean.terminal.main import main

pytestmark = pytest.mark.usefixtures("here")

TRAIN = {"rounds": 30, "lr": 0.3, "device": "cpu"}


def sequences(kind):
    """Sequences in which one symbol follows another in a circle; or whose first symbol is the class."""
    draw = np.random.default_rng(0)
    start, step = draw.integers(0, 6, (120, 1)), np.arange(7)
    whole = (start + step) % 6
    x, y = whole[:, :-1], whole[:, 1:] if kind == "next-token" else whole[:, 0] % 3
    owner = np.arange(120) % 4
    parts = {"train": slice(0, 90), "test": slice(90, 120)}
    arrays = {f"{name}_{part}": values[rows] for part, rows in parts.items() for name, values in (("x", x), ("y", y))}
    return arrays | {f"clients_{part}": owner[rows] for part, rows in parts.items()}


@pytest.mark.parametrize("model", ["transformer", "lstm"])
@pytest.mark.parametrize("kind", ["next-token", "classification"])
def test_tokens(kind, model):
    lr = {"transformer": 0.1, "lstm": 1.0}[model]
    run = fairmean.run(
        data=sequences(kind),
        model=model,
        partition={"name": "given"},
        attack={"name": "none"},
        train=TRAIN | {"lr": lr, "rounds": 40},
    )
    assert run.config.data.task == kind
    assert run.summary["average"] > (90 if model == "transformer" else 50)
    assert run.evaluate().tolist() == run.accuracy.tolist()
    poisoned = fairmean.run(
        data=sequences(kind), model=model, partition={"name": "given"}, attack={"name": "random", "clients": [3]},
        train=TRAIN | {"rounds": 2},
    )  # fmt: skip
    assert poisoned.regular.tolist() == [True, True, True, False]
    if kind == "next-token":
        assert all(value >= 1 for value in run.summary["clients"]["perplexity"])


def test_a_folder_of_images(here, capsys):
    from PIL import Image

    draw = np.random.default_rng(0)
    for client in ("bonn", "kiel"):
        for label, shade in (("dark", 40), ("light", 200)):
            folder = here / "photos" / client / label
            folder.mkdir(parents=True)
            for number in range(10):
                pixels = np.clip(draw.normal(shade, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    words = [
        "data.name=photos",
        "model.name=mlp",
        "train.rounds=40",
        "train.lr=0.3",
        "train.device=cpu",
        "attack.clients=1",
    ]
    assert main(["compare", *words, "--methods", "mean,fairmean", "--attacks", "none,pairwise"]) == 0
    assert "accuracy in %" in capsys.readouterr().out
    run = next(run for run in fairmean.runs() if run.config.attack.name == "none")
    assert run.client_names == ["bonn", "kiel"]
    assert run.summary["average"] > 90


def test_a_saved_hugging_face_data_set(here, capsys):
    datasets = pytest.importorskip("datasets")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 3))
    rows = {f"x{k}": x[:, k] for k in range(3)} | {
        "label": np.where(x[:, 0] > 0, "yes", "no"),
        "site": np.array(["a", "b", "c"])[np.arange(120) % 3],
    }
    datasets.Dataset.from_dict({key: value.tolist() for key, value in rows.items()}).save_to_disk("saved")
    words = ["data.name=saved", "data.target=label", "data.client=site", "train.rounds=15", "train.device=cpu"]
    assert main(["compare", *words, "attack.clients=1", "--methods", "mean", "--attacks", "none,pairwise"]) == 0
    run = next(run for run in fairmean.runs() if run.config.attack.name == "none")
    assert run.config.data.task == "binary"
    assert run.client_names == ["a", "b", "c"]
    assert run.summary["average"] > 80


def table(here, rows=240):
    """A table whose target is a number."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(rows, 3))
    y = 100 + 20 * (x @ [1.0, -1.0, 0.5]) + draw.normal(size=rows)
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{t:.4f},s{i % 4}" for i, ((a, b, c), t) in enumerate(zip(x, y, strict=True))]
    (here / "numbers.csv").write_text("\n".join(["a,b,c,price,shop", *lines]))
    return {"name": "numbers.csv", "target": "price", "client": "shop"}


def test_errors_are_in_the_targets_own_unit(here):
    run = fairmean.run(data=table(here), model="linear", train=TRAIN | {"rounds": 60, "lr": 0.1})
    assert run.config.method.objective == "squared"
    assert 0.5 < run.summary["average"] < 3  # the noise of the prices is 1, their spread 30
    assert run.evaluate().tolist() == pytest.approx(run.values.tolist())
    with pytest.raises(UserError, match="its figure is rmse"):
        run.accuracy  # noqa: B018
    robust = fairmean.run(data=table(here), model="linear", method={"objective": "huber", "delta": 0.5}, train=TRAIN)
    assert robust.config.method.hyper["delta"] == 0.5


def test_a_method_that_asks_for_entropy_is_refused_for_numbers(here, capsys):
    settings = table(here)
    words = [f"data.{key}={value}" for key, value in settings.items()]
    assert main(["run", *words, "method.name=fairmean-split", "train.device=cpu"]) == 2
    assert "has no entropy" in capsys.readouterr().err


def settings(own, **train):
    return {
        "data": {"name": own, "validation": 0.2},
        "partition": {"clients": 4},
        "attack": {"name": "none"},
        "model": {"name": "linear"},
        "run": {"eval_every": 1},
        "train": {"rounds": 12, "lr": 0.5, "device": "cpu"} | train,
    }


def test_rounds_are_judged_on_samples_that_were_held_out(own):
    run = fairmean.run(**settings(own))
    assert run.summary["validation"]["average"] != run.summary["average"]
    last = run.columns["round"] == 12
    assert run.columns["accuracy"][last].mean() == pytest.approx(run.summary["validation"]["average"])
    assert run.evaluate().tolist() == run.accuracy.tolist()


def test_a_run_stops_when_it_does_not_become_better(own):
    run = fairmean.run(**settings(own, patience=3, rounds=200, lr=2.0))
    assert run.summary["rounds"] < 200
    assert run.summary["rounds"] - 1 - run.summary["best_round"] <= 3
    assert run.columns["round"].max() == run.summary["rounds"]
    assert run.status == "finished"


def test_the_best_model_is_kept(own):
    best, last = (fairmean.run(**settings(own, keep=keep, lr=5.0)) for keep in ("best", "last"))
    curve = [best.columns["accuracy"][best.columns["round"] == t].mean() for t in range(12)]
    assert best.summary["validation"]["average"] == pytest.approx(max([*curve, last.summary["validation"]["average"]]))
    assert best.summary["validation"]["average"] >= last.summary["validation"]["average"]
    assert best.evaluate().tolist() == best.accuracy.tolist()


def test_an_interrupted_run_knows_its_best_model(own):
    whole = fairmean.run(**settings(own, keep="best", lr=5.0), **{"run.dir": "whole"})

    def stop(progress):
        if progress.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairmean.run(**settings(own, keep="best", lr=5.0), report=stop)
    again = fairmean.run(**settings(own, keep="best", lr=5.0))
    assert again.summary == whole.summary
    assert torch.equal(*(next(run.model().parameters()) for run in (again, whole)))


@pytest.mark.parametrize("train", [{"patience": 2}, {"keep": "best"}])
def test_without_held_out_samples_nothing_can_be_judged(own, train):
    with pytest.raises(UserError, match="needs samples to judge by"):
        fairmean.run(data={"name": own}, train=train)
