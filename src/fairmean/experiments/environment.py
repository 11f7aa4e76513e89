"""What a run was made with: versions, machine, commit."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmean._version import __version__


def environment(device: torch.device, ranks: int = 1) -> dict[str, Any]:
    """For environment.json."""
    return {
        "fairmean": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "ranks": ranks,
    }


@functools.cache
def _commit() -> str | None:
    """The commit of fairmean's source tree; None where this file is not tracked there, as inside a project's .venv."""
    here = Path(__file__)
    if _git("ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git("describe", "--always", "--dirty")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
