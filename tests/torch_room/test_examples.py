"""The examples run as their first lines say, without a warning of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fairmean

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCURACY = r"the worst client is \w+ with (\d+)%"


def run(name, ranks):
    """What an example prints, in one process or under torchrun on the loopback device."""
    words = [str(EXAMPLES / name)]
    if ranks:
        place = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        words = ["-m", "torch.distributed.run", *place, f"--nproc-per-node={ranks}", *words]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(fairmean.__file__).parents[1]), *filter(None, sys.path)]),
    }
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "UserWarning" not in done.stderr, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "ranks", "starts", "needs"),
    [
        ("ddp.py", 2, "ddp: rank 0 has Ambridge, Hollerton; ", None),
        ("accumulation.py", 0, "accumulation: ", None),
        ("accumulation.py", 2, "accumulation under DDP: ", None),
        ("lightning_example.py", 0, "lightning: ", "lightning"),
        ("accelerate_example.py", 2, "accelerate on 2 ranks: ", "accelerate"),
    ],
)
def test_every_client_is_served(name, ranks, starts, needs):
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed: pip install {needs}")
    out = run(name, ranks)
    (accuracy,) = re.findall(re.escape(starts) + ACCURACY, out)
    assert int(accuracy) >= 60  # chance is a third


def test_fsdp2():
    out = run("fsdp2.py", 2)
    clients = dict(re.findall(r"rank (\d) has (\w+), the last loss is \d\.\d+", out))
    assert clients == {"0": "Ambridge", "1": "Borchester"}


def test_groups_from_pandas():
    pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    trust = dict(re.findall(r"(\w+) (\d\.\d\d)", run("groups_from_pandas.py", 0)))
    assert float(trust.pop("Hollerton")) < 0.1
    assert min(map(float, trust.values())) > 0.9


def test_all_examples_are_here():
    tested = {"ddp.py", "accumulation.py", "lightning_example.py", "accelerate_example.py", "fsdp2.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested | {"groups_from_pandas.py", "clients.py"}
