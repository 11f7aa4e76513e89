"""Partitions, poisoning, test data, models, metrics."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fairmean import UserError
from fairmean.data import Dataset, load, store
from fairmean.data.federation import Federation, build, inputs, poisoned_clients
from fairmean.data.partitions import PARTITIONS, mirror, partition
from fairmean.experiments.metrics import METRICS, summarise
from fairmean.models import build as build_model

labels_of = st.integers(0, 2**31).map(lambda seed: np.random.default_rng(seed).integers(0, 10, 600))


@pytest.fixture(scope="module")
def data():
    return load("fashion-mnist-mini")


@pytest.mark.parametrize(
    ("name", "alpha", "sizes", "poisoned_share"),
    [
        (
            "fashion-mnist",
            0.5,
            [6751, 7098, 6098, 3365, 5978, 8202, 2430, 6374, 7648, 6056],
            {3: 0.74, 9: 0.54, 0: 0.23},
        ),
        (
            "cifar10",
            0.1,
            [6630, 3448, 6186, 3102, 1060, 6377, 8199, 2853, 5184, 6961],
            {7: 0.91, 9: 0.77, 4: 0.59},
        ),
    ],
)
def test_the_papers_draw(name, alpha, sizes, poisoned_share):
    if not store.cached(name).exists():
        pytest.skip(f"{name} is not in the cache: fairmean data get {name}")
    labels = load(name).train_y
    owner = partition("dirichlet", labels, 10, 1, alpha=alpha)
    assert np.bincount(owner).tolist() == sizes
    for label, share in poisoned_share.items():
        assert round(float((owner[labels == label] >= 8).mean()), 2) == share


def test_the_embedded_draw_is_fixed(data):
    """The same recipe on the data that ships with the package, so that this is tested everywhere."""
    owner = partition("dirichlet", data.train_y, 10, 1, alpha=0.5)
    assert np.bincount(owner).tolist() == [304, 370, 680, 416, 607, 919, 630, 670, 795, 609]


@pytest.mark.parametrize("name", PARTITIONS)
@given(labels=labels_of, clients=st.integers(1, 20), seed=st.integers(0, 1000))
def test_partitions_cover_everything_and_leave_nobody_empty(name, labels, clients, seed):
    owner = partition(name, labels, clients, seed)
    counts = np.bincount(owner, minlength=clients)
    assert len(counts) == clients
    assert counts.min() >= (10 if name == "dirichlet" else 1)
    assert (owner == partition(name, labels, clients, seed)).all()


@pytest.mark.parametrize(
    ("name", "options", "clients", "says"),
    [
        ("dirichlet", {"alpha": 0.0}, 10, "alpha"),
        ("dirichlet", {"alpha": -1.0}, 10, "alpha"),
        ("dirichlet", {"alpha": 1e-9}, 10, "alpha"),
        ("dirichlet", {"alpha": 0.5}, 100, "fewer clients"),
        ("shards", {"shards_per_client": 0}, 10, "shards_per_client"),
        ("iid", {}, 0, "partition.clients"),
        ("iid", {}, 601, "partition.clients"),
    ],
)
def test_impossible_partitions_are_refused_in_bounded_time(name, options, clients, says):
    labels = np.arange(600) % 10
    with pytest.raises(UserError, match=says):
        partition(name, labels, clients, 1, **options)


@given(labels_of, labels_of, st.integers(1, 12))
def test_test_data_mirrors_the_training_mix(labels, test_labels, clients):
    owner = partition("iid", labels, clients, 0)
    test_owner = mirror(owner, labels, test_labels, clients)
    for label in range(10):
        counts = np.bincount(owner[labels == label], minlength=clients)
        got = np.bincount(test_owner[(test_labels == label) & (test_owner >= 0)], minlength=clients)
        exact = counts / max(counts.sum(), 1) * (test_labels == label).sum()
        assert (np.abs(got - exact) <= 1).all()
        assert got.sum() == (test_labels == label).sum() * bool(counts.sum())


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "attack", ["pairwise", "random", "random_class", "targeted", "look-alike", "confused", "furthest", "adaptive"]
)
def test_poisoning_touches_only_what_it_says(data, attack, rho):
    fed = build(data, attack=attack, poisoned=np.array([2, 8]), rho=rho, source=3, target=6)
    clean = build(data)
    assert torch.equal(fed.x, clean.x)
    assert torch.equal(fed.clean_y, clean.y)
    assert fed.regular.tolist() == [i not in (2, 8) for i in range(10)]
    for i in range(10):
        mine = slice(fed.offsets[i], fed.offsets[i + 1])
        before, after = fed.clean_y[mine].numpy(), fed.y[mine].numpy()
        changed = before != after
        count = round(rho * len(before)) if i in (2, 8) else 0
        if attack in ("furthest", "adaptive"):
            assert not changed.any()
            assert (fed.dynamic[mine] == {"furthest": 1, "adaptive": 2}[attack]).sum() == count
        elif attack == "targeted":
            assert (before[changed] == 3).all()
            assert (after[changed] == 6).all()
            assert changed.sum() == (before == 3).sum() * bool(count) if rho in (0, 1) else changed.sum() <= count
        else:
            assert changed.sum() == count
        if attack == "pairwise":
            assert (after[changed] == 9 - before[changed]).all()
        if attack == "random_class" and count:
            assert all(len(set(after[changed & (before == c)])) <= 1 for c in range(10))


def test_look_alike_classes_are_exchanged_in_pairs(data):
    fed = build(data, clients=2, partition_name="iid", attack="look-alike", poisoned=np.array([1]))
    mine = slice(fed.offsets[1], fed.offsets[2])
    image = dict(zip(fed.clean_y[mine].tolist(), fed.y[mine].tolist(), strict=True))
    assert all(image[image[c]] == c for c in range(10))
    assert (image[2], image[5]) == (4, 7)  # pullover and coat, sandal and sneaker


def test_confused_labels_are_those_of_the_nearest_other_class(data):
    fed = build(data, clients=2, partition_name="iid", attack="confused", poisoned=np.array([1]))
    means = np.stack([data.train_x[data.train_y == c].reshape(-1, 784).mean(0) for c in range(10)])
    for row in range(fed.offsets[1], fed.offsets[1] + 50):
        distances = ((data.train_x[fed.rows[row]].reshape(784) - means) ** 2).sum(1)
        distances[fed.clean_y[row]] = np.inf
        assert fed.y[row] == distances.argmin()


def test_random_flip_draws_every_incorrect_label_evenly(data):
    fed = build(data, clients=2, partition_name="iid", attack="random", poisoned=np.array([1]))
    mine = slice(fed.offsets[1], fed.offsets[2])
    shift = (fed.y[mine] - fed.clean_y[mine]) % 10
    counts = np.bincount(shift, minlength=10)
    assert counts[0] == 0
    assert counts[1:].min() > 0.7 * 3000 / 9
    assert counts[1:].max() < 1.3 * 3000 / 9


@pytest.mark.parametrize(
    ("clients", "fraction", "pick", "expected"),
    [(2, None, "last", [8, 9]), ([7, 3, 3], None, "last", [3, 7]), (0, None, "last", []), (2, 0.3, "last", [7, 8, 9])],
)
def test_who_is_poisoned(clients, fraction, pick, expected):
    assert poisoned_clients(10, clients, fraction, pick, 1).tolist() == expected


def test_poisoned_at_random():
    draws = {tuple(poisoned_clients(10, 2, None, "random", seed)) for seed in range(40)}
    assert len(draws) > 20
    assert all(len(set(draw)) == 2 for draw in draws)


@pytest.mark.parametrize(("clients", "fraction"), [([10], None), ([-1], None), (10, None), (2, 1.0), (-1, None)])
def test_impossible_poisoned_clients(clients, fraction):
    with pytest.raises(UserError, match="attack"):
        poisoned_clients(10, clients, fraction, "last", 1)


def test_given_clients():
    x, y = np.random.default_rng(0).random((20, 3), np.float32), np.arange(20) % 2
    own = Dataset("own", x, y, x, y, 2, train_clients=np.arange(20) % 4, test_clients=np.arange(20) % 4)
    fed = build(own, partition_name="given", clients=4)
    assert fed.sizes.tolist() == [5] * 4
    assert (own.train_clients[fed.rows] == np.repeat(np.arange(4), 5)).all()
    assert torch.equal(fed.x, torch.from_numpy(x[fed.rows]))
    with pytest.raises(UserError, match=r"partition\.clients = 5"):
        build(own, partition_name="given", clients=5)
    with pytest.raises(UserError, match="clients_train"):
        build(Dataset("own", x, y, x, y, 2), partition_name="given", clients=4)


def test_inputs():
    x = np.array([[[[0, 128, 255]]]], dtype=np.uint8)
    out = inputs(x, (0.5, 0.25, 0.0), (1.0, 0.5, 2.0))
    assert out.shape == (1, 3, 1, 1)
    torch.testing.assert_close(out.flatten(), torch.tensor([-0.5, (128 / 255 - 0.25) / 0.5, 0.5]))
    assert inputs(np.full((1, 2, 2), 255, np.uint8), (0.0,), (1.0,)).unique().tolist() == [1.0]


def test_the_papers_models():
    assert sum(p.numel() for p in build_model("auto", (28, 28), 10, 1).parameters()) == 199_210
    assert sum(p.numel() for p in build_model("auto", (3, 32, 32), 10, 1).parameters()) == 797_962
    one, two = (build_model("mlp", (28, 28), 10, seed) for seed in (1, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_models_that_cannot_be_used(here, forget_modules):
    (here / "my_models.py").write_text(
        "from torch import nn\n"
        "def normed(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, 9), nn.BatchNorm1d(9))\n"
        "def plain(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Dropout(0.1))\n"
        "def nothing(shape, classes): return 3\n"
    )
    with pytest.raises(UserError, match="GroupNorm"):
        build_model("my_models:normed", (28, 28), 10, 1)
    with pytest.raises(UserError, match=r"not a torch\.nn\.Module"):
        build_model("my_models:nothing", (28, 28), 10, 1)
    with pytest.raises(UserError, match="did you mean 'mlp'"):
        build_model("mpl", (28, 28), 10, 1)
    with pytest.raises(UserError, match="16×16"):
        build_model("cnn", (28, 28), 10, 1)
    assert not any(type(m) is nn.Dropout for m in build_model("my_models:plain", (28, 28), 10, 1).modules())


def test_metrics_by_hand():
    x = np.array([50.0, 70.0, 90.0])
    got = {name: metric(x) for name, metric in METRICS.items()}
    assert got["average"] == 70
    assert got["variance"] == pytest.approx(800 / 3)
    assert got["worst"] == got["worst_tenth"] == 50
    assert got["jain"] == pytest.approx(210**2 / (3 * (2500 + 4900 + 8100)))
    assert got["gini"] == pytest.approx((20 + 40 + 20) * 2 / (2 * 3 * 210))
    assert METRICS["worst_tenth"](np.arange(20.0)) == 0.5
    even = summarise(np.array([60.0, 60.0, 10.0, np.nan]), np.array([True, True, False, True]))
    assert (even["average"], even["variance"], even["jain"], even["gini"]) == (60, 0, 1, 0)
    assert np.isnan(summarise(np.array([np.nan]), np.array([True]))["average"])


def test_chosen_images_keep_their_memory_order():
    images = torch.randn(6, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    rows = torch.tensor([4, 0, 4])
    federation = SimpleNamespace(x=images, places=None)
    chosen = Federation.inputs(federation, rows)
    assert torch.equal(chosen, images[rows])
    assert chosen.is_contiguous(memory_format=torch.channels_last)
