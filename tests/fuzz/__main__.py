"""python -m tests.fuzz --count 300 --seed 0: run bad inputs, say what is wrong with how they end."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from tests.fuzz.cases import KINDS, cases
from tests.fuzz.check import faults


def main() -> int:
    """Exit code 1 if any ends badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the cases drawn at random")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose kind and name hold this text")
    parser.add_argument("--times", action="store_true", help="how long each took")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ran, bad = Counter[str](), Counter[str]()
    for case in cases(arguments.count, arguments.seed):
        if arguments.only not in case.id:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fairmean-fuzz-") as folder:
            found = faults(case, Path(folder))
        ran[case.kind] += 1
        bad[case.kind] += bool(found)
        if arguments.times:
            print(f"{time.monotonic() - began:6.2f} s  {_printable(case.id)}", flush=True)
        for fault in found:
            print(_printable(f"{case.id}: {fault}"), flush=True)
    for kind in KINDS:
        print(f"{kind:10} {ran[kind]:4} cases, {bad[kind]:4} end badly")
    print(f"{'all':10} {ran.total():4} cases, {bad.total():4} end badly")
    return int(bad.total() > 0)


def _printable(text: str) -> str:
    """Names that are no text, and bytes that steer a terminal, spelled out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


if __name__ == "__main__":
    sys.exit(main())
