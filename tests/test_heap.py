"""What is freed stays with the process, unless the user said otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, torch
from fairmean.engine.heap import keep_freed_memory
told = keep_freed_memory()
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [torch.zeros(2**20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(told, faults())
"""


def _counted(**environment: str) -> tuple[str, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, env=kept | environment
    )
    told, faults = done.stdout.split()
    return told, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's heap")
def test_freed_tensors_cost_no_page_faults():
    told, faults = _counted()
    assert told == "True"
    assert faults < 100  # 8 tensors of 4 MiB are 8,192 pages


def test_the_environment_has_the_last_word():
    told, _ = _counted(MALLOC_TRIM_THRESHOLD_="1000000")
    assert told == "False"
