"""The group forms: equal to their formulas on whole data, unbiased on small batches, and told apart from wrong use."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairmean import UserError, fair_objective, marginal_weight
from fairmean.data import load
from fairmean.rules.scales import FairMeanSplit
from fairmean.torch.groups import GroupFairMean
from fairmean.torch.robust_groups import GroupRecess, GroupSplit

NAMES = np.array(["north", "south", "east"])


def sample(n=60, seed=0, dtype=torch.float64):
    """Losses, the place of each sample's group, weights."""
    draw = torch.Generator().manual_seed(seed)
    owner = torch.randint(0, 3, (n,), generator=draw)
    losses = (torch.rand(n, generator=draw, dtype=dtype) * (1 + owner)).requires_grad_()
    return losses, owner, torch.rand(n, generator=draw, dtype=dtype) + 0.1


def gradient(scalar, losses):
    (g,) = torch.autograd.grad(scalar, losses, retain_graph=True)
    return g


# The formula, on whole data


def test_whole_data_is_fair_objective():
    losses, owner, weights = sample()
    for w in (None, weights):
        expected = fair_objective(losses, owner, 3.0, 0.5, weights=w)
        criterion = GroupFairMean(owner, 3.0, 0.5, memory=5)
        for _ in range(2):  # the second call remembers the first
            value = criterion(losses, owner, weights=w)
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
            torch.testing.assert_close(gradient(value, losses), gradient_again(losses, owner, w), rtol=1e-6, atol=0)


def gradient_again(losses, owner, w):
    return gradient(fair_objective(losses, owner, 3.0, 0.5, weights=w), losses)


def test_weights_count_like_copies():
    losses, owner, _ = sample()
    times = torch.arange(len(losses)) % 3 + 1
    again = losses.repeat_interleave(times)
    copies = fair_objective(again, owner.repeat_interleave(times), 2.0)
    weighted = fair_objective(losses, owner, 2.0, weights=times)
    torch.testing.assert_close(gradient(weighted, losses), gradient(copies, losses))


def test_groups_that_overlap():
    """Every form of the same groups gives (1/n) Σ a(f_g) ∇f_g, with samples in several sums."""
    pandas = pytest.importorskip("pandas")
    losses, owner, _ = sample()
    old = torch.arange(60) % 2 == 0
    masks = {"north": owner == 0, "old": old, "young": ~old}
    total = sum(marginal_weight(losses[m].mean().item(), 2.0) * losses[m].mean() for m in masks.values()) / 3
    lists = [[name for name, mask in masks.items() if mask[i]] for i in range(60)]
    for groups in (
        masks,
        pandas.DataFrame({name: mask.numpy() for name, mask in masks.items()}),
        lists,
        torch.stack(list(masks.values()), 1).int(),
    ):
        criterion = GroupFairMean(groups, 2.0, memory=5)
        for batch in (groups, criterion.encode(groups)):
            torch.testing.assert_close(
                gradient(criterion(losses, batch), losses), gradient(total, losses), rtol=1e-6, atol=0
            )
    only = copy.deepcopy(masks) | {"young": torch.zeros(60, dtype=torch.bool)}
    with pytest.raises(UserError, match="nobody is in group 'young'"):
        GroupFairMean(only)
    with pytest.warns(UserWarning, match="30 of 60 samples belong to no group"):
        GroupFairMean({"old": old})


def test_names_in_every_form():
    pandas = pytest.importorskip("pandas")
    losses, owner, _ = sample()
    text = NAMES[owner.numpy()]
    expected = gradient(GroupFairMean(owner)(losses, owner), losses)
    columns = [text, list(text), pandas.Series(text, index=np.arange(60) + 7), pandas.Series(text).astype("category")]
    for column in columns:
        criterion = GroupFairMean(column)
        assert criterion.names == sorted(NAMES)
        for batch in (column, tuple(text), criterion.encode(column)):
            criterion = GroupFairMean(column)
            torch.testing.assert_close(gradient(criterion(losses, batch), losses), expected)
    numbers = 10 * owner + 5
    criterion = GroupFairMean(numbers.numpy())
    torch.testing.assert_close(gradient(criterion(losses, numbers), losses), expected)
    assert criterion.names == [5, 15, 25]
    assert set(criterion.running()) == set(criterion.names)
    with pytest.raises(UserError, match="has no name"):
        GroupFairMean(pandas.Series(["a", None, "b"]))


def test_split_is_the_federated_rule():
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 4, generator=draw, requires_grad=True)
    labels, owner = torch.randint(0, 4, (60,), generator=draw), torch.arange(60) % 3
    losses = F.cross_entropy(logits, labels, reduction="none")
    criterion = GroupSplit(owner, 5.0, 0.7, 2.0, memory=5)
    direction = gradient(criterion(losses, owner, logits, labels), logits)
    f = torch.stack([losses[owner == g].mean() for g in range(3)])
    p = torch.softmax(logits.detach(), 1)
    entropy = torch.stack([-(p * p.log()).sum(1)[owner == g].mean() for g in range(3)])
    s = FairMeanSplit(5.0, 0.7, 2.0)(f.detach(), {"entropy": entropy}, None)
    torch.testing.assert_close(direction, gradient((s * f).sum() / s.sum(), logits), rtol=1e-5, atol=1e-8)
    assert criterion.trust().keys() == {0, 1, 2}


def test_two_classes_as_one_number():
    draw = torch.Generator().manual_seed(3)
    z, labels, owner = torch.randn(30, generator=draw, requires_grad=True), torch.arange(30) % 2, torch.arange(30) % 3
    losses = F.binary_cross_entropy_with_logits(z, labels.float(), reduction="none")
    directions = [
        gradient(GroupSplit(owner)(losses, owner, logits, labels), z)
        for logits in (z, z[:, None], torch.stack([torch.zeros(30), z], 1))
    ]
    for other in directions[1:]:
        torch.testing.assert_close(other, directions[0])


# Small batches


@pytest.fixture(scope="module")
def sites():
    """Six sites of very different sizes that see different classes, and the logits of a model that is half trained."""
    data = load("fashion-mnist-mini")
    y = torch.from_numpy(data.train_y.astype(np.int64))
    x = torch.from_numpy(data.train_x.reshape(len(y), -1).astype(np.float32)) / 255
    torch.manual_seed(0)
    order = (y + 3 * torch.randn(len(y))).argsort()
    owner = torch.empty(len(y), dtype=torch.long)
    owner[order] = torch.repeat_interleave(torch.arange(6), torch.tensor([3000, 1500, 900, 400, 150, 50]))
    model = nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(60):
        rows = torch.randperm(len(y))[:128]
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
        optimiser.zero_grad()
    y = torch.where(owner == 5, 9 - y, y)  # the smallest site has its labels inverted, and so the largest loss
    with torch.no_grad():
        return model(x), y, owner, torch.cat([model[:2](x), torch.ones(len(y), 1)], 1)


def averaged(criterion, logits, y, owner, batch, number):
    """The mean over batches of the direction, seen at the logits."""
    total = torch.zeros_like(logits)
    draw = torch.Generator().manual_seed(1)
    for _ in range(number):
        rows = torch.randperm(len(y), generator=draw)[:batch]
        z = logits[rows].clone().requires_grad_()
        total[rows] += gradient(criterion(F.cross_entropy(z, y[rows], reduction="none"), owner[rows]), z)
    return total / number


@pytest.mark.parametrize(("batch", "without"), [(16, 0.9), (64, 0.98)])
def test_small_batches_point_where_all_data_do(batch, without, sites):
    """The cosine of the averaged direction of the last layer to the full one, with running losses and without."""
    logits, y, owner, features = sites
    z = logits.clone().requires_grad_()
    full = gradient(fair_objective(F.cross_entropy(z, y, reduction="none"), owner, 4.0), z).T @ features

    def cosine(criterion):
        mean = averaged(criterion, logits, y, owner, batch, 5000).T @ features
        return F.cosine_similarity(mean.flatten(), full.flatten(), dim=0).item(), (mean.norm() / full.norm()).item()

    plain, _ = cosine(lambda losses, groups: fair_objective(losses, groups, 4.0))
    running, length = cosine(GroupFairMean(owner, 4.0))
    print(f"batch {batch}: cosine without running losses {plain:.4f}, with {running:.4f}, length {length:.3f}")
    assert plain < without
    assert running > 0.995
    there = 1 - (1 - 50 / 6000) ** batch  # how often the smallest site, which has the most weight, is in a batch
    assert abs(length - 1) < 4 * math.sqrt((1 - there) / there / 5000)  # four standard errors of its share


def test_a_group_that_is_missing_keeps_its_share():
    """The probabilities of being in a batch, exact for every batch of three among six."""
    owner, losses = torch.tensor([0, 0, 0, 0, 1, 2]), torch.ones(6, requires_grad=True)
    batches = torch.combinations(torch.arange(6), 3)
    total = 0
    for rows in batches:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fairmean.torch.groups.RARE", 0.0)
            criterion = GroupFairMean(owner)
            criterion.sums.fill_(1.0)
            criterion.mass.fill_(1.0)
            total = total + gradient(criterion(losses[rows], owner[rows]), losses)
    expected = gradient(fair_objective(losses, owner), losses)
    torch.testing.assert_close(total / len(batches), expected, rtol=1e-5, atol=0)


def test_presence_can_be_counted():
    """A sampler that draws all groups alike: the plain probabilities would be wrong, counted ones are right."""
    owner = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    criterion, total = GroupFairMean(names=[0, 1, 2]), torch.zeros(3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(2000):
        rows = torch.cat([torch.randint(low, high, (2,), generator=draw) for low, high in ((0, 900), (900, 990))])
        if torch.rand((), generator=draw) < 0.25:
            rows = torch.cat([rows, torch.randint(990, 1000, (1,), generator=draw)])
        losses = torch.ones(len(rows), requires_grad=True)
        total.index_add_(0, owner[rows], gradient(criterion(losses, owner[rows]), losses))
    torch.testing.assert_close(total / 2000, torch.full((3,), 0.5), rtol=0.1, atol=0)


# What is told


def test_a_batch_for_itself_warns_of_missing_groups():
    losses, owner, _ = sample()
    criterion = GroupFairMean(owner, memory=0)
    torch.testing.assert_close(
        gradient(criterion(losses, owner), losses), gradient(fair_objective(losses, owner), losses)
    )
    with pytest.warns(UserWarning, match="group 2 is missing from a batch"):
        criterion(losses[owner < 2], owner[owner < 2])
    criterion(losses[owner < 2], owner[owner < 2])  # once is enough


def test_batches_that_are_not_uniform_are_noticed():
    owner = torch.arange(1000) // 250
    criterion = GroupFairMean(owner)
    *early, last = torch.arange(1000).split(10)[:50]  # sorted by group: nobody shuffled
    for rows in early:
        criterion(torch.ones(10), owner[rows])
    with pytest.warns(UserWarning, match=r"group 2 was in 0 of 50 batches.*presence='measured'"):
        criterion(torch.ones(10), owner[last])


def test_a_rare_group_is_noticed():
    with pytest.warns(UserWarning, match=r"group 'rare' will be in 1\.0% of such batches"):
        GroupFairMean(["often"] * 999 + ["rare"])(torch.ones(10), ["often"] * 10)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda c, x, g: c(x.mean(), g), "one number per sample: reduction='none'"),
        (lambda c, x, g: c(x, g[:3]), "60 losses and 3 groups"),
        (lambda c, x, g: c(x[:0], g[:0]), "there is no sample"),
        (lambda c, x, g: c(x - 1, g), "negative, infinite or NaN"),
        (lambda c, x, g: c(x, g, weights=torch.ones(4)), r"weights of shape \(4,\)"),
        (lambda c, x, g: c(x, g, weights=-torch.ones(60)), "weights must be finite"),
        (lambda c, x, g: c(x, g + 1), "unknown group '3'"),
        (lambda c, x, g: GroupFairMean(list(NAMES))(x[:1], ["nort"]), "unknown group 'nort': did you mean 'north'"),
        (lambda c, x, g: GroupFairMean(list(NAMES))(x[:1], torch.tensor([4])), "outside 0 … 2"),
        (lambda c, x, g: GroupFairMean(), "either groups"),
        (lambda c, x, g: GroupFairMean(g, memory=-1), "memory = -1"),
        (lambda c, x, g: GroupFairMean(g, presence="never"), "presence = 'never'"),
        (lambda c, x, g: GroupFairMean(["a", 1, None]), "sample 2 has no name"),
        (lambda c, x, g: GroupFairMean(torch.tensor([[0, 2]])), "0 and 1"),
        (lambda c, x, g: GroupFairMean({"a": [True], "b": [True, False]}), "differ in length"),
        (lambda c, x, g: GroupSplit(g, beta=-1.0), "beta = -1"),
        (lambda c, x, g: GroupSplit(g)(x, g, torch.zeros(60, 4), torch.full((60,), 4)), r"label outside 0 … 3"),
        (lambda c, x, g: GroupSplit(g)(x, g, torch.zeros(60, 4), torch.zeros(60, 4)), "one class per sample"),
        (lambda c, x, g: GroupRecess(g, steps=20, classes=4), "train longer, or use GroupSplit"),
        (lambda c, x, g: GroupRecess([0, 1], steps=200, classes=4), "at least three"),
    ],
)
def test_mistakes(wrong, says):
    losses, owner, _ = sample()
    with pytest.raises(UserError, match=says) as caught:
        wrong(GroupFairMean(owner), losses, owner)
    assert "\n" not in str(caught.value)


# With the rest of PyTorch


def test_pos_weight_and_several_labels():
    """A weighted loss of one's own, with several labels a sample."""
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(30, 4, generator=draw, requires_grad=True), torch.rand(30, 4, generator=draw).round()
    owner = torch.arange(30) % 3
    losses = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0, 9.0]), reduction="none")(z, y)
    expected = gradient(fair_objective(losses.mean(1), owner), z)
    torch.testing.assert_close(gradient(GroupFairMean(owner)(losses, owner), z), expected, rtol=1e-5, atol=1e-8)


def test_half_precision_and_a_gradient_scaler():
    owner = torch.arange(4000) % 2
    criterion = GroupFairMean(owner, check=False)
    losses = torch.full((4000,), 0.7, dtype=torch.bfloat16, requires_grad=True)
    assert criterion(losses, owner).item() == pytest.approx(0.7 + 0.7 - math.log(1.7), rel=3e-3)
    before = criterion.running()
    criterion(torch.full((4000,), math.inf, requires_grad=True), owner).backward()  # a scaler skips such a step
    assert criterion.running() == before
    model = nn.Linear(3, 2)
    optimiser, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    x, y = torch.randn(4000, 3), torch.randint(0, 2, (4000,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = criterion(F.cross_entropy(model(x), y, reduction="none"), owner)
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert loss.dtype == torch.float32
    assert criterion.running() != before


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, while compiling
@pytest.mark.parametrize("form", ["fairmean", "split", "recess"])
def test_compiled(form):
    """The whole step in one graph; the running means are the same as without."""
    owner, y = torch.arange(60) % 3, torch.arange(60) % 4
    make = {
        "fairmean": lambda: GroupFairMean(owner),
        "split": lambda: GroupSplit(owner),
        "recess": lambda: GroupRecess(owner, steps=60, classes=4),
    }[form]
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, criterion = nn.Linear(5, 4), make()
        x = torch.randn(60, 5)

        def loss(x, y, owner, model=model, criterion=criterion):
            logits = model(x)
            losses = F.cross_entropy(logits, y, reduction="none")
            return criterion(losses, owner, *(() if form == "fairmean" else (logits, y)))

        if compiled:
            loss = torch.compile(loss, backend="aot_eager", fullgraph=True)
        for rows in torch.arange(60).split(12) * 8:
            loss(x[rows], y[rows], owner[rows]).backward()
        results.append((model.weight.grad, criterion.sums, criterion.batches))
    assert results[0][2] == 40
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(plain, other, rtol=1e-4, atol=1e-6)


def test_nothing_is_remembered_without_gradients():
    losses, owner, _ = sample()
    criterion = GroupFairMean(owner)
    with torch.no_grad():
        value = criterion(losses, owner)
    assert criterion.running() == {}
    torch.testing.assert_close(value, fair_objective(losses, owner).detach())


def test_a_stopped_training_goes_on():
    losses, owner, _ = sample()
    one, other = GroupFairMean(owner), GroupFairMean(owner)
    one(losses[:20], owner[:20])
    other.load_state_dict(one.state_dict())
    rows = slice(20, 40)
    assert gradient(one(losses[rows], owner[rows]), losses).equal(gradient(other(losses[rows], owner[rows]), losses))


# Groups that take turns


def steps_of_recess(flipped, steps=480, groups=6):
    """A linear model on groups of which one has its labels moved on by one class; how often each group rested."""
    draw = torch.Generator().manual_seed(4)
    y = torch.randint(0, 4, (1200,), generator=draw)
    x = torch.randn(1200, 8, generator=draw) + 2 * F.one_hot(y, 8)
    owner = torch.arange(1200) % groups
    labels = torch.where(owner == flipped, (y + 1) % 4, y)
    torch.manual_seed(1)
    model, criterion = nn.Linear(8, 4), GroupRecess(owner, steps=steps, classes=4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    rested = torch.zeros(groups, dtype=torch.long)
    for _ in range(steps):
        rows = torch.randperm(1200, generator=draw)[:120]
        resting = criterion.resting()
        rested[torch.tensor(resting, dtype=torch.long)] += 1
        logits = model(x[rows])
        logits.retain_grad()
        criterion(F.cross_entropy(logits, labels[rows], reduction="none"), owner[rows], logits, labels[rows]).backward()
        out = torch.isin(owner[rows], torch.tensor(resting, dtype=torch.long))
        assert not logits.grad[out].any()
        assert logits.grad[~out].any()
        optimiser.step()
        optimiser.zero_grad()
    accuracy = (model(x).argmax(1) == y)[owner != flipped].float().mean()
    return criterion, rested, accuracy


def test_groups_take_turns_and_wrong_labels_lose_trust():
    criterion, rested, accuracy = steps_of_recess(flipped=2)
    assert (rested == 2 * criterion.rest).all()  # every group, in both cycles
    trust = criterion.trust()
    assert trust[2] < 0.05
    assert min(value for name, value in trust.items() if name != 2) > 0.8
    assert accuracy > steps_of_recess(flipped=-1)[2] - 0.02  # as if its labels were right
    assert criterion.weights()[2] < 0.02


def test_nobody_loses_trust_without_wrong_labels():
    criterion, _, _ = steps_of_recess(flipped=-1)
    assert min(criterion.trust().values()) > 0.8
