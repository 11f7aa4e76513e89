"""The numbers of the paper (Zheng, Zhang & Liu, FairMean): its two tables, and what its text says of its figures.

Every cell is (average, variance, worst), in % and %². The attacks are named as we read them: the paper's "random flip"
is ``random_class`` here, see docs/reproduction.md.
"""

from __future__ import annotations

Cell = tuple[float, float, float]
ATTACKS = ("none", "random_class", "pairwise")
METRICS = ("average", "variance", "worst")

CIFAR10: dict[str, tuple[Cell, Cell, Cell]] = {
    "fedavg": ((71.54, 40.85, 54.57), (60.59, 177.70, 37.62), (59.98, 203.39, 32.96)),
    "qffl": ((67.93, 40.50, 57.24), (60.62, 106.12, 46.30), (62.66, 131.22, 38.42)),
    "adafed": ((70.89, 31.83, 56.18), (61.18, 110.59, 45.98), (61.71, 106.28, 50.53)),
    "fedmgda+": ((70.33, 37.92, 54.41), (55.90, 104.22, 45.18), (63.09, 118.47, 49.04)),
    "h-nobs": ((67.93, 40.50, 57.24), (63.38, 108.06, 50.83), (56.35, 161.16, 41.18)),
    "qffl+cwtm": ((67.93, 40.50, 57.24), (32.71, 406.58, 0.49), (34.29, 379.87, 8.73)),
    "fairmean": ((70.15, 34.46, 55.94), (61.54, 85.33, 52.01), (61.37, 99.34, 50.97)),
}
FASHION_MNIST: dict[str, tuple[Cell, Cell, Cell]] = {
    "fedavg": ((86.90, 20.00, 79.38), (77.08, 141.43, 58.23), (75.65, 153.12, 55.82)),
    "qffl": ((88.35, 16.11, 81.33), (81.69, 73.66, 65.97), (82.56, 48.41, 66.34)),
    "adafed": ((85.62, 12.46, 79.20), (74.55, 129.47, 55.20), (73.10, 139.15, 54.95)),
    "fedmgda+": ((88.62, 15.49, 81.96), (73.68, 126.05, 56.93), (76.93, 155.32, 56.19)),
    "h-nobs": ((88.35, 16.11, 81.33), (84.19, 56.79, 69.60), (83.99, 67.89, 67.47)),
    "qffl+cwtm": ((88.35, 16.11, 81.33), (54.24, 431.55, 19.09), (63.07, 466.48, 19.37)),
    "fairmean": ((87.55, 18.44, 80.36), (81.87, 42.12, 70.55), (82.57, 31.95, 71.29)),
}
TABLES = {"table1": CIFAR10, "table2": FASHION_MNIST}

FIGURE2 = {"qffl": {"variance": 91.99, "worst": 56.19}, "fairmean": {"variance": 75.97, "worst": 60.85}}
"""Figure 2 at δ = 0.3, pairwise flips on Fashion-MNIST; its other points are only drawn."""
