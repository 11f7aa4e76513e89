"""The models that come with fairmean: shapes for every task, and every path equal to the reference, frozen or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fairmean import Method, method
from fairmean.data import Dataset
from fairmean.data.federation import build as build_federation
from fairmean.engine import Simulator, Training
from fairmean.engine.net import Net
from fairmean.models import MODELS, build
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.optimisers import optimiser
from fairmean.rules.scales import Unscaled
from fairmean.rules.servers.means import Mean
from fairmean.rules.servers.medians import TrimmedMean
from fairmean.theory.estimate import curves, estimate

SMALL = {"mlp": (2, 3), "linear": (5,), "cnn": (3, 16, 16), "resnet18": (3, 8, 8)}
TOKENS = ("transformer", "lstm")
RULES = {
    "one pass": method("fairmean"),
    "losses": method("term"),
    "inner products": method("krum", f=1),
    "coordinates": method("cwtm", f=1),
}


def tokens(length=5, vocabulary=7, classes=3, n=48):
    draw = np.random.default_rng(0)
    x = draw.integers(0, vocabulary, size=(n, length))
    x[0], x[1] = 0, 0  # alike, which must not look like a model that mixes samples
    x[2, 0] = vocabulary - 1
    return Dataset("tokens", x, np.arange(n) % classes, x[:12], np.arange(12) % classes, classes)


def images(shape=(3, 8, 8), n=24):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((n, *shape)).astype(np.float32)
    return Dataset("images", x, np.arange(n) % 3, x[:6], np.arange(6) % 3, 3)


def clients_of(data, n=4):
    return build_federation(
        data, clients=n, partition_options={"min_size": 3}, attack="pairwise", poisoned=np.array([3])
    )


def made(name, fed, **options):
    return build(name, fed.shape, fed.outputs, 3, fed.x[:1], vocabulary=fed.vocabulary, **options)


def trained(fed, make, rule, engine="fast", rounds=2, optimiser_name="plain", **training):
    room = training.pop("room", None)
    chosen = Training(**{"lr": 0.05} | training)
    simulator = Simulator(
        fed, make(), rule, chosen, dtype=torch.float64, engine=engine, chunk=10, room=room,
        optimiser=optimiser(optimiser_name),
    )  # fmt: skip
    for t in range(rounds):
        simulator.step(t)
    return simulator


def same(one, other):
    return (one.w - other.w).norm() <= 1e-9 * other.w.norm()


# Shapes


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("name", SMALL)
def test_as_many_outputs_as_the_task_needs(name, outputs):
    task = "regression" if outputs == 1 else "classification"
    model = build(name, SMALL[name], outputs, 1, plain=True, task=task).eval()
    assert model(torch.randn(3, *SMALL[name])).shape == (3, outputs)


@pytest.mark.parametrize(
    ("task", "outputs", "shape"),
    [("classification", 4, (3, 4)), ("binary", 1, (3, 1)), ("regression", 1, (3, 1)), ("next-token", 9, (3, 6, 9))],
)
@pytest.mark.parametrize("name", TOKENS)
def test_tokens_for_every_task(name, task, outputs, shape):
    model = build(name, (6,), outputs, 1, task=task, vocabulary=9)
    assert model(torch.arange(18).view(3, 6) % 9).shape == shape


@pytest.mark.parametrize("name", TOKENS)
def test_the_next_token_is_predicted_from_those_before_alone(name):
    model = build(name, (6,), 9, 1, task="next-token", vocabulary=9)
    x = torch.arange(12).view(2, 6) % 9
    changed = x.clone()
    changed[:, 4:] = 8
    before, after = model(x), model(changed)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert (after[:, 4:] != before[:, 4:]).any(2).all()
    free = build(name, (6,), 9, 1, vocabulary=9)
    assert not torch.equal(free(x), free(changed))


def test_sizes_are_those_that_are_told():
    count = {name: sum(p.numel() for p in build(name, (3, 32, 32), 10, 1).parameters()) for name in ("cnn", "resnet18")}
    assert count == {"cnn": 797_962, "resnet18": 11_173_962}
    for name, number in count.items():
        assert f"{number:,} parameters on CIFAR-10" in (MODELS[name].__doc__ or "")


def test_resnet_begins_with_a_wide_stride_on_large_images_alone():
    small, large = (build("resnet18", (1, side, side), 2, 1) for side in (32, 64))
    assert (small.stem[0].kernel_size, small.stem[0].stride) == ((3, 3), (1, 1))
    assert (large.stem[0].kernel_size, large.stem[0].stride) == ((7, 7), (2, 2))
    assert isinstance(large.stem[3], nn.MaxPool2d)
    assert not any(isinstance(module, nn.MaxPool2d) for module in small.modules())
    assert large(torch.randn(2, 1, 64, 64)).shape == (2, 2)
    grey = build("resnet18", (32, 32), 2, 1)
    x = torch.randn(2, 32, 32)
    torch.testing.assert_close(grey(x), small(x[:, None]))


def test_rooms_for_many_samples_are_sized_from_any_output():
    net = Net(build("transformer", (6,), 9, 1, task="next-token", vocabulary=9))
    chunk = net.chunk_rows(torch.zeros(4, 6, dtype=torch.int64))
    assert chunk.rows >= 16
    assert chunk.bytes_per_row > 6 * 9 * 4


def test_the_lstm_leaves_cudnn_aside(monkeypatch):
    """Whose kernels cannot be differentiated twice; a layer that is run again by itself does so, too."""
    seen, forward = [], nn.LSTM.forward

    def noted(layer, *arguments):
        seen.append(torch.backends.cudnn.enabled)
        return forward(layer, *arguments)

    monkeypatch.setattr(nn.LSTM, "forward", noted)
    model = build("lstm", (6,), 3, 1, vocabulary=9)
    model(torch.zeros(2, 6, dtype=torch.int64))
    model.recurrent.forward(torch.zeros(2, 6, 64))
    assert seen == [False, False]
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("frozen", [[], ["tokens"]], ids=["whole", "frozen"])
def test_the_curvature_of_models_of_tokens_can_be_estimated(name, frozen):
    fed = clients_of(tokens())
    start = partial(made, name, fed, frozen=frozen)
    at_start, there = (
        estimate(curves(start, fed, 10, 1, "cpu", w), 4.0, 1.0, 10, most=2) for w in (None, Net(start()).flat)
    )
    assert 0 < at_start.L < np.inf
    assert 0 < at_start.gamma < np.inf
    assert there == at_start


# Every path equals the reference


FEDERATIONS = {"transformer": tokens, "lstm": tokens, "resnet18": images}


LARGE = ("one pass", "coordinates")  # of the large model, the cheapest and the dearest rung


@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name in FEDERATIONS for rule in RULES if name in TOKENS or rule in LARGE]
)
def test_equal_to_the_reference(name, rule):
    fed = clients_of(FEDERATIONS[name]())
    fast, plain = (
        trained(fed, lambda: made(name, fed), RULES[rule], engine, rounds=1 if name == "resnet18" else 2)
        for engine in ("fast", "reference")
    )
    assert same(fast, plain)
    if rule in ("inner products", "coordinates"):
        assert fast.capture is not None  # clients share passes


def with_task(data, task):
    """The same inputs, with targets for another task."""
    if task == "next-token":
        return replace(
            data, train_y=np.roll(data.train_x, -1, 1), test_y=np.roll(data.test_x, -1, 1), classes=7, task=task
        )
    if task == "binary":
        return replace(data, train_y=data.train_y % 2, test_y=data.test_y % 2, classes=2, task=task)
    numbers = (np.sin(np.arange(len(y)), dtype=np.float32) for y in (data.train_y, data.test_y))
    return replace(data, train_y=next(numbers), test_y=next(numbers), classes=1, task=task)


@pytest.mark.parametrize("rule", ["one pass", "losses", "inner products", "coordinates", "local"])
@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("transformer", "next-token"),
        ("lstm", "next-token"),
        ("transformer", "binary"),
        ("lstm", "regression"),
        ("mlp", "binary"),
        ("linear", "regression"),
    ],
)
def test_equal_to_the_reference_for_every_task(name, task, rule):
    data = with_task(tokens() if name in TOKENS else images((2, 3), n=48), task)
    fed = build_federation(data, clients=4, partition_name="iid")
    assert fed.outputs == (7 if task == "next-token" else 1)
    chosen = replace(RULES.get(rule, RULES["coordinates"]), objective=OBJECTIVES[fed.task.objective]())
    training = {"local_steps": 2, "batch": 4} if rule == "local" else {}
    fast, plain = (
        trained(fed, lambda: made(name, fed, task=task), chosen, engine, **training) for engine in ("fast", "reference")
    )
    assert same(fast, plain)
    assert np.isfinite(fast.evaluate()[0]).any()  # a client may have no test data
    if rule in ("inner products", "coordinates"):
        assert fast.capture is not None


@pytest.mark.parametrize("name", TOKENS)
def test_a_sequence_that_repeats_itself_is_continued(name):
    x = (np.arange(60)[:, None] + np.arange(6)) % 5
    data = Dataset("repeating", x[:40], (x[:40] + 1) % 5, x[40:], (x[40:] + 1) % 5, 5, task="next-token")
    fed = build_federation(data, clients=2, partition_name="iid")
    rule = replace(method("fairmean"), objective=OBJECTIVES["next-token"]())
    simulator = trained(fed, lambda: made(name, fed, task="next-token"), rule, rounds=40, lr=0.3)
    assert simulator.evaluate()[0].mean() > 90


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_that_says_the_class_is_found(name):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 12, (240, 6)), draw.integers(0, 3, 240)
    x[np.arange(240), draw.integers(0, 6, 240)] = 12 + y
    fed = build_federation(Dataset("told", x[:180], y[:180], x[180:], y[180:], 3), clients=3, partition_name="iid")
    simulator = trained(fed, lambda: made(name, fed), method("fairmean"), rounds=60, lr=0.1)
    assert simulator.evaluate()[0].mean() > 85


# Frozen parts


MODES = {
    "full": {},
    "minibatch": {"batch": 4},
    "local": {"local_steps": 2},
    "in parts": {"room": 1e-5},
}


IN_PARTS = ("inner products", "coordinates")


@pytest.mark.parametrize(
    ("mode", "rule"), [(mode, rule) for mode in MODES for rule in RULES if mode != "in parts" or rule in IN_PARTS]
)
@pytest.mark.parametrize("frozen", [["1"], ["3"], ["1.weight", "5.bias"]], ids=["first", "middle", "parts"])
def test_frozen_parameters_stay_bit_for_bit_and_all_paths_agree(frozen, rule, mode):
    fed = clients_of(images((2, 3), n=48))
    make = lambda: made("mlp", fed, frozen=frozen)  # noqa: E731
    start, names = (
        make().double(),
        [name for name, parameter in make().named_parameters() if not parameter.requires_grad],
    )
    fast = trained(fed, make, RULES[rule], optimiser_name="momentum", **MODES[mode])
    training = {key: value for key, value in MODES[mode].items() if key != "room"}
    plain = trained(fed, make, RULES[rule], "reference", optimiser_name="momentum", **training)
    assert bool(fast.bounded) == (mode == "in parts")
    assert same(fast, plain)
    for simulator in (fast, plain):
        moved = dict(simulator.net.model.named_parameters())
        for name, before in start.named_parameters():
            assert torch.equal(moved[name], before) == (name in names), name


@pytest.mark.parametrize("name", FEDERATIONS)
@pytest.mark.parametrize("rule", ["one pass", "coordinates"])
def test_frozen_parts_of_other_models(name, rule):
    fed = clients_of(FEDERATIONS[name]())
    frozen = {
        "transformer": ["tokens", "blocks.1.*"],
        "lstm": ["recurrent.*_hh_*"],
        "resnet18": ["stem", "blocks.[1-6]"],
    }
    make = lambda: made(name, fed, frozen=frozen[name])  # noqa: E731
    fast, plain = (trained(fed, make, RULES[rule], engine, rounds=1) for engine in ("fast", "reference"))
    assert same(fast, plain)
    if rule == "coordinates":
        assert fast.capture is not None
    for before, after in zip(make().double().parameters(), fast.net.model.parameters(), strict=True):
        assert before.requires_grad or torch.equal(before, after)


class Half(nn.Module):
    """A user's own: one of its layers was frozen by its factory."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body, self.head = nn.Linear(shape[0], 4), nn.Linear(4, classes)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@pytest.mark.parametrize("rule", RULES)
def test_a_model_whose_factory_froze_a_layer(rule, monkeypatch):
    monkeypatch.setitem(MODELS, "half", Half)
    fed = clients_of(images((5,), n=48))
    fast, plain = (trained(fed, lambda: made("half", fed), RULES[rule], engine) for engine in ("fast", "reference"))
    assert same(fast, plain)
    assert torch.equal(fast.net.model.body.weight, made("half", fed).double().body.weight)


@dataclass(frozen=True)
class Pushing(TrimmedMean):
    """A rule that adds something to every coordinate."""

    def direction(self, round):
        return super().direction(round) + 1.0


def test_not_even_a_rule_that_pushes_everything_moves_frozen_parameters():
    fed = clients_of(images((5,), n=48))
    rule = Method("pushing", Unscaled(), Pushing(f=1))
    simulator = trained(fed, lambda: made("mlp", fed, frozen=["1"]), rule)
    before, after = made("mlp", fed).double(), simulator.net.model
    assert torch.equal(before[1].weight, after[1].weight)
    assert (before[5].bias != after[5].bias).all()
    free = trained(fed, lambda: made("mlp", fed), rule)
    assert (before[1].weight != free.net.model[1].weight).all()


def test_frozen_networks_of_linear_layers_are_not_stacked():
    from fairmean.engine.fleet.fleet import stack_key

    fed = clients_of(images((5,), n=48))
    rule = Method("mean", Unscaled(), Mean())
    assert stack_key(trained(fed, lambda: made("mlp", fed), rule, rounds=0)) is not None
    assert stack_key(trained(fed, lambda: made("mlp", fed, frozen=["1"]), rule, rounds=0)) is None


def test_the_vocabulary_is_that_of_all_samples():
    data = tokens()
    assert clients_of(data).vocabulary == 7
    test_x = data.test_x.copy()
    test_x[0, 0] = 30
    assert clients_of(replace(data, test_x=test_x)).vocabulary == 31
    assert clients_of(images()).vocabulary is None
