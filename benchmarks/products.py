"""How fast a CPU multiplies float32 matrices: by PyTorch's usual library, and by oneDNN, at the sizes of our layers.

    python benchmarks/products.py --csv results/products-cpu.csv

Billions of operations a second (GFLOP/s), one thread: the best of seven blocks for each library, which take turns.
``forward`` is x Wᵀ, ``inputs`` is δW, the gradient of a layer's inputs, and ``update`` is δᵀx, that of its weights.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable

import torch
from torch import Tensor

SIZES = [
    (32, 784, 200),
    (32, 200, 200),
    (320, 784, 200),
    (2048, 64, 192),
    (2048, 256, 64),
    (6000, 200, 200),
    (6000, 784, 200),
]
"""Rows, inputs and outputs of a layer."""
BLOCK = 0.02  # seconds


def best(systems: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least time of a call of each, in seconds."""
    count = {}
    for name, call in systems.items():
        call()
        start = time.perf_counter()
        call()
        count[name] = max(3, int(BLOCK / max(1e-7, time.perf_counter() - start)))
    least = dict.fromkeys(systems, float("inf"))
    for _ in range(7):
        for name, call in systems.items():
            start = time.perf_counter()
            for _ in range(count[name]):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / count[name])
    return least


def onednn(a: Tensor, b: Tensor) -> Tensor:
    """a @ b."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", help="write the rows there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    found = []
    for rows, inputs, outputs in SIZES:
        x, weight, delta = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        for product, (a, b) in {
            "forward": (x, weight.t()),
            "inputs": (delta, weight),
            "update": (delta.t(), x),
        }.items():
            least = best({"mkl": lambda a=a, b=b: a @ b, "onednn": lambda a=a, b=b: onednn(a, b)})  # type: ignore[misc]
            row = {"rows": rows, "inputs": inputs, "outputs": outputs, "product": product}
            row |= {name: round(2e-9 * rows * inputs * outputs / taken) for name, taken in least.items()}
            found.append(row)
            print("  ".join(f"{value:>8}" for value in row.values()), flush=True)
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, found[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
