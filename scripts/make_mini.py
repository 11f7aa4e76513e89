"""Draw the embedded sample from the verified Fashion-MNIST: 600 training and 100 test images per class.

Prints the SHA-256 of its four arrays, which belong in ``fairmean.data.registry``.
"""

from __future__ import annotations

import numpy as np

from fairmean import data
from fairmean.data import store
from fairmean.data.registry import SPECS

PER_CLASS = {"train": 600, "test": 100}


def main() -> None:
    """Write the sample into the package; the same bytes every time."""
    full = data.load("fashion-mnist", progress=print)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, x, y in (("train", full.train_x, full.train_y), ("test", full.test_x, full.test_y)):
        drawn = [rng.choice(np.flatnonzero(y == c), PER_CLASS[part], replace=False) for c in range(full.classes)]
        order = rng.permutation(np.concatenate(drawn))
        arrays[f"x_{part}"] = x[order].astype(np.uint8)
        arrays[f"y_{part}"] = y[order].astype(np.uint8)
    file = SPECS["fashion-mnist-mini"].embedded
    assert file is not None
    store.save(file, arrays, compress=True)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    for name, array in arrays.items():
        print(name, array.shape, store.digest(array))


if __name__ == "__main__":
    main()
