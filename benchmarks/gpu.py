"""Many runs at once on a GPU: time, floor, equality with runs on their own, reduced precision.

    python benchmarks/gpu.py ceilings              what the machine can do: matrix products and copies
    python benchmarks/gpu.py study                 240 runs of 2,000 rounds on Fashion-MNIST
    python benchmarks/gpu.py equal                 every method, float32, 50 rounds: together against alone
    python benchmarks/gpu.py precision             final accuracies in bfloat16 and tf32 against float32
    python benchmarks/gpu.py cnn                   the CNN on images of CIFAR-10's shape, 10 draws at once
    python benchmarks/gpu.py local                 five local epochs of 10 of 100 clients, MLP, 1 and 24 runs at once
    python benchmarks/gpu.py local-cnn             the same with the CNN; its runs follow one another, so it is one run
    python benchmarks/gpu.py resnet                ResNet-18, 10 clients × 64 images, against a plain compiled pass
    python benchmarks/gpu.py kernels               where the time of some rounds of the last three goes

Each part prints a table and writes it as CSV (--out folder). Settings key=value change the config: train.rounds=20.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean import compare, method
from fairmean.data.federation import Federation
from fairmean.engine import Simulator, Training
from fairmean.engine.fleet.fleet import Fleet
from fairmean.engine.precision import PRECISIONS
from fairmean.experiments.building import build_federation, build_simulator
from fairmean.experiments.config import gather, literal, parse
from fairmean.experiments.identity import resolve
from fairmean.models import build
from fairmean.rules.named import named_methods, parse_method

STUDY = [
    "mean",
    "fedavg",
    "qffl:q=0.1",
    "fairmean:kappa=1:tau=1",
    "fedmgda+:epsilon=1.0:train.lr=3",
    "adafed:gamma=1.0:train.lr=3",
    "h-nobs:q=0.1:f=2",
    "qffl+cwtm:q=0.1:f=2",
]
ATTACKS = ["none", "random_class", "pairwise"]
SETTINGS: dict[str, Any] = {
    "data.name": "fashion-mnist",
    "train.rounds": 2000,
    "train.lr": 0.2,
    "train.lr_decay": 0.999,
    "attack.pick": "random",
    "run.eval_every": 500,
}
MLP_FLOP = 6 * 60_000 * 198_800 - 2 * 60_000 * 784 * 200  # no gradient of the inputs
MLP_BYTES = 12 * 60_000 * 200 * 2 + 2 * 60_000 * 784 * 2 / 24  # each activation as often as it is needed, X per stack
CNN_FLOP = 2560 * (3 * 2 * (784 * 64 * 75 + 100 * 64 * 1600 + 1600 * 384 + 384 * 192 + 1920) - 2 * 784 * 64 * 75)

PARTS = ("ceilings", "study", "equal", "precision", "cnn", "local", "local-cnn", "resnet", "kernels")

Rows = list[dict[str, Any]]


def seconds(run: Callable[[], object]) -> float:
    wait: Callable[[], None] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def ceilings() -> Rows:
    """Median of twenty, on random numbers."""
    rows: Rows = []
    for name, dtype, size in (("bfloat16", torch.bfloat16, 8192), ("float32", torch.float32, 4096)):
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
        times = [seconds(lambda a=a, b=b: a @ b) for _ in range(23)][3:]  # type: ignore[misc]
        rows.append(
            {"what": f"{name} product {size}³, TFLOP/s", "value": 2 * size**3 / statistics.median(times) / 1e12}
        )
    x = torch.randn(2**30, device="cuda")
    y = torch.empty_like(x)
    times = [seconds(lambda: y.copy_(x)) for _ in range(23)][3:]
    rows.append({"what": "copy, TB/s read and written", "value": 2 * x.nbytes / statistics.median(times) / 1e12})
    product, copy = rows[0]["value"] * 1e12, rows[2]["value"] * 1e12
    for name, flop, moved in (("MLP, full batch", MLP_FLOP, MLP_BYTES), ("CNN, 2,560 images", CNN_FLOP, 0.0)):
        rows.append({"what": f"floor of {name}: {flop / 1e9:.0f} GFLOP in bfloat16, ms", "value": flop / product * 1e3})
        if moved:
            rows.append({"what": f"floor of {name}: {moved / 1e6:.0f} MB moved, ms", "value": moved / copy * 1e3})
    return rows


def study(settings: dict[str, Any], folder: str) -> Rows:
    """The time of everything: building clients, 2,000 rounds, evaluation, tables, checkpoints."""
    known = SETTINGS | {"train.dtype": "bfloat16", "run.dir": folder} | settings
    start = time.perf_counter()
    result = compare(None, methods=STUDY, attacks=ATTACKS, seeds=list(range(1, 11)), **known)
    total = time.perf_counter() - start
    print(result)
    runs, rounds = len(result.records), known["train.rounds"]
    print(f"{runs} runs of {rounds} rounds in {total:.1f} s: {total / runs / rounds * 1e3:.4f} ms per run and round")
    kept = [{key: value for key, value in record.items() if key != "folder"} for record in result.records]
    return [{**record, "seconds_of_all": round(total, 1)} for record in kept]


def equal(settings: dict[str, Any]) -> Rows:
    """‖w_together − w_alone‖ / ‖w_alone‖ after 50 rounds, every method (the first time alone includes warming up)."""
    known = SETTINGS | {"train.rounds": 50, "train.lr": 0.1, "train.lr_decay": 1.0} | settings
    configs = [resolve(parse(gather(known, {"method.name": name}))) for name in named_methods()]
    federation: Federation | None = None

    def simulators() -> list[Simulator]:
        nonlocal federation
        made = []
        for config in configs:
            made.append(build_simulator(config, build_federation(config, like=federation)))
            federation = made[-1].federation
        return made

    together, alone = simulators(), simulators()
    rounds = configs[0].train.rounds
    start = time.perf_counter()
    for _ in Fleet(together).rounds(0, rounds, lambda t: False, lambda t: False):
        pass
    print(f"together {time.perf_counter() - start:.1f} s", flush=True)
    rows = []
    for config, a, b in zip(configs, together, alone, strict=True):
        start = time.perf_counter()
        for t in range(rounds):
            b.step(t)
        error = float((a.w - b.w).norm() / b.w.norm())  # waits for the last round
        taken = time.perf_counter() - start
        rows.append({"method": config.method.name, "relative_error": error, "alone_ms_per_round": taken / rounds * 1e3})
    return rows


def precision(settings: dict[str, Any], folder: str) -> Rows:
    """Final metrics of the same runs at each precision, three draws under pairwise flips."""
    rows: Rows = []
    for dtype in ("bfloat16", "tf32", "float32"):
        known = SETTINGS | {"train.dtype": dtype, "run.dir": f"{folder}/{dtype}"} | settings
        start = time.perf_counter()
        result = compare(None, methods=STUDY, attacks=["pairwise"], seeds=[1, 2, 3], **known)
        taken = time.perf_counter() - start
        print(f"{dtype}: {len(result.records)} runs in {taken:.1f} s", flush=True)
        keep = ("method", "seed", "status", "average", "variance", "worst")
        rows += [{"dtype": dtype, **{key: record[key] for key in keep}} for record in result.records]
    return rows


def cnn(settings: dict[str, Any]) -> Rows:
    """Ten clients with 256 samples a round; random images, which cost what real ones cost."""
    device, count = ("cuda", 50_000) if torch.cuda.is_available() else ("cpu", 200)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, 32, 32, generator=random).to(device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (count,), generator=random).to(device)
    offsets, nothing = np.arange(11) * (count // 10), np.array([], dtype=np.int64)
    none, tests = np.ones(10, bool), (x[:100], y[:100], y[:100], np.arange(11) * 10)
    fed = Federation(x, y, y, offsets, none, *tests, 10, nothing, nothing)
    rows = []
    for dtype in ("bfloat16", "tf32", "float32"):
        for name in ("mean", "fairmean", "term", "h-nobs", "adafed"):
            for together in (1, 10):
                training = Training(lr=0.01, batch=settings.get("train.batch", 256), rounds=1000)
                fleet = Fleet(
                    [
                        Simulator(
                            fed,
                            build("cnn", (3, 32, 32), 10, seed),
                            method(name),
                            training,
                            seed=seed,
                            device=device,
                            precision=PRECISIONS[dtype],
                        )
                        for seed in range(together)
                    ]
                )
                steps = fleet.rounds(0, 45, lambda t: False, lambda t: False)
                for _ in range(4):
                    next(steps)
                row = {"dtype": dtype, "method": name, "together": together, **spread(steps, 40, together)}
                rows.append(row)
                print(row, flush=True)
                del fleet, steps
    return rows


def spread(steps: Iterator[Any], count: int, together: int) -> dict[str, float]:
    """The median time of the next so many rounds of one run, and the middle half, in ms."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        next(steps)
        times.append((time.perf_counter() - start) / together * 1e3)
    low, mid, high = statistics.quantiles(times, n=4)
    return {"ms": mid, "low": low, "high": high}


def local(settings: dict[str, Any]) -> Rows:
    """W5 of benchmarks/local.py: a round has 25 steps, each of which reads and writes every client's model."""
    found, fed = [], one_of_ten((28, 28))
    for dtype in ("float32", "tf32"):
        for name in ("mean", "fairmean", "term", "krum"):
            for together in (1, 24):
                runs = locally(fed, "mlp", name, dtype, together)
                models = 10 * together * runs[0].w.nbytes
                found.append(timed(runs, {"dtype": dtype, "method": name}, settings.get("train.rounds", 45)))
                found[-1]["moved_gb"] = 2 * 25 * models / 1e9
                del runs
    return found


def local_cnn(settings: dict[str, Any]) -> Rows:
    """W6: the CNN on images of CIFAR-10's shape, 25 steps of 32 images for each of 10 clients."""
    runs = locally(one_of_ten((3, 32, 32)), "cnn", "mean", "tf32", 1)
    return [timed(runs, {"dtype": "tf32", "method": "mean"}, settings.get("train.rounds", 11), warm=2)]


def one_of_ten(shape: tuple[int, ...]) -> Federation:
    """100 clients with 160 random images each; a tenth of them takes part in a round."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random, nothing = torch.Generator().manual_seed(0), np.array([], dtype=np.int64)
    x = torch.randn(100 * 160, *shape, generator=random).to(device)
    if len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (len(x),), generator=random).to(device)
    tests = (x[:100], y[:100], y[:100], np.arange(101))
    return Federation(x, y, y, np.arange(101) * 160, np.ones(100, bool), *tests, 10, nothing, nothing)


def locally(fed: Federation, model: str, name: str, dtype: str, together: int) -> list[Simulator]:
    """Runs with five local epochs in batches of 32."""
    training = Training(lr=1e-3, batch=32, local_epochs=5, participation=0.1, rounds=1000)
    shape, precision = tuple(fed.x.shape[1:]), PRECISIONS[dtype]
    return [
        Simulator(fed, build(model, shape, 10, 0), method(name), training, device=fed.x.device, precision=precision)
        for _ in range(together)
    ]


def timed(runs: list[Simulator], about: dict[str, Any], rounds: int, warm: int = 4) -> dict[str, Any]:
    """A row of a table: the time of rounds of these runs together, after some to warm up."""
    steps = Fleet(runs).rounds(0, rounds, lambda t: False, lambda t: False)
    for _ in range(warm):
        next(steps)
    row = {**about, "together": len(runs), **spread(steps, rounds - warm - 1, len(runs))}
    row["round_ms"] = row["ms"] * len(runs)
    print(row, flush=True)
    return row


def resnet(settings: dict[str, Any]) -> Rows:
    """ResNet-18 with GroupNorm: a round of 10 clients × 64 images against plain passes over 640, in turns."""
    batch, (turns, rounds) = settings.get("train.batch", 64), (5, 10) if torch.cuda.is_available() else (2, 2)
    fed, found = images_of_ten(batch), []
    x, y = fed.x[: 10 * batch], fed.y[: 10 * batch]
    for dtype in settings.get("dtypes", "bfloat16 tf32").split():
        systems: dict[str, Callable[[], object]] = {}
        for kind in ("eager", "compiled"):
            systems[f"plain, {kind}"] = plain_pass(x, y, dtype, kind == "compiled")
        for name in ("mean", "fairmean", "term", "rfa", "krum:f=2"):
            systems[name] = residual(fed, name, dtype, batch)
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(turns):
            for name, one in systems.items():
                one()
                each = [seconds(one) * 1e3 for _ in range(rounds)]
                times[name].append(statistics.median(each))
        for name, values in times.items():
            base = times["plain, compiled"]
            ratios = sorted(value / other for value, other in zip(values, base, strict=True))
            row = {"dtype": dtype, "system": name, "ms": statistics.median(values), "low": min(values)}
            row |= {"high": max(values), "ratio": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
            found.append(row)
            print(row, flush=True)
    return found


def images_of_ten(batch: int) -> Federation:
    """Ten clients with five batches of random images each."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random, nothing = torch.Generator().manual_seed(0), np.array([], dtype=np.int64)
    x = torch.randn(10 * 5 * batch, 3, 32, 32, generator=random)
    x = x.to(device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (len(x),), generator=random).to(device)
    tests = (x[:10], y[:10], y[:10], np.arange(11))
    return Federation(x, y, y, np.arange(11) * 5 * batch, np.ones(10, bool), *tests, 10, nothing, nothing)


def residual(fed: Federation, name: str, dtype: str, batch: int) -> Callable[[], object]:
    """A function that does one round."""
    training = Training(lr=0.01, batch=batch, rounds=10_000)
    model, precision = build("resnet18", (3, 32, 32), 10, 0), PRECISIONS[dtype]
    run = Simulator(fed, model, parse_method(name), training, device=fed.x.device, precision=precision)
    return partial(next, Fleet([run]).rounds(0, 10_000, lambda t: False, lambda t: False))


def kernels(settings: dict[str, Any]) -> Rows:
    """The kernels that take most of a round's time on the device, by the profiler; five rounds after five others."""
    batch, fed = settings.get("train.batch", 64), one_of_ten((28, 28))
    images = images_of_ten(batch)
    together = locally(fed, "mlp", "mean", "tf32", settings.get("together", 24))
    rounds: dict[str, Callable[[], object]] = {
        "W5, mean, tf32": partial(next, Fleet(together).rounds(0, 1000, lambda t: False, lambda t: False)),
        "ResNet-18, mean, bfloat16": residual(images, "mean", "bfloat16", batch),
        "ResNet-18, krum, bfloat16": residual(images, "krum:f=2", "bfloat16", batch),
        "ResNet-18, plain, bfloat16": plain_pass(images.x[: 10 * batch], images.y[: 10 * batch], "bfloat16", True),
    }
    found: Rows = []
    for workload, one in rounds.items():
        for _ in range(5):
            one()
        on_gpu = torch.cuda.is_available()
        watched = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[watched]) as profile:
            taken = seconds(lambda one=one: [one() for _ in range(5)]) / 5  # type: ignore[misc]
        times: dict[str, list[float]] = {}
        for event in profile.key_averages():
            spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            times.setdefault(event.key[:80], []).append(spent / 5e3)
        sums = sorted(((sum(each), name) for name, each in times.items()), reverse=True)
        found.append({"workload": workload, "kernel": "a round, by the clock", "ms": taken * 1e3})
        found.append({"workload": workload, "kernel": "all kernels", "ms": sum(spent for spent, _ in sums)})
        found += [{"workload": workload, "kernel": name, "ms": spent} for spent, name in sums[:14]]
    return found


def plain_pass(x: Tensor, y: Tensor, dtype: str, compiled: bool) -> Callable[[], object]:
    """One forward and backward pass of the same model over all images, as PyTorch does it, in its fastest setting."""
    model: Any = build("resnet18", (3, 32, 32), 10, 0).to(x.device)
    model = model.to(memory_format=torch.channels_last)
    precision = PRECISIONS[dtype]

    def losses(images: Tensor) -> Any:
        with torch.autocast(x.device.type, dtype=precision.storage, enabled=precision.mixed):
            return F.cross_entropy(model(images).float(), y)

    known: Any = torch.compile(losses, mode="reduce-overhead" if x.is_cuda else "default") if compiled else losses

    def one() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision.tf32 else "highest")
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=precision.tf32):
            known(x).backward()
        torch.set_float32_matmul_precision(before)
        model.zero_grad(set_to_none=True)

    for _ in range(4):
        one()
    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the CSV file")
    arguments = parser.parse_args()
    settings = {key: literal(value) for key, _, value in (word.partition("=") for word in arguments.settings)}
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Callable[[], Rows]] = {
            "ceilings": ceilings,
            "study": lambda: study(settings, folder),
            "equal": lambda: equal(settings),
            "precision": lambda: precision(settings, folder),
            "cnn": lambda: cnn(settings),
            "local": lambda: local(settings),
            "local-cnn": lambda: local_cnn(settings),
            "resnet": lambda: resnet(settings),
            "kernels": lambda: kernels(settings),
        }
        rows = parts[arguments.part]()
    for row in rows if len(rows) <= 70 else []:
        print("  ".join(f"{value:.5g}" if isinstance(value, float) else str(value) for value in row.values()))
    with open(arguments.out / f"gpu-{arguments.part}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
