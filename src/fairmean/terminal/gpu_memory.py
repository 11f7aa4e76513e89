"""How much memory of a GPU other processes use, as ``nvidia-smi`` tells it."""

from __future__ import annotations

import shutil
import subprocess


def by_process() -> dict[int, float]:
    """GiB of GPU memory by process id; empty where there is no GPU, or where it does not say."""
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    used: dict[int, float] = {}
    for line in answer.splitlines():
        process, _, mebibytes = line.partition(",")
        try:  # a process may use several GPUs
            used[int(process)] = used.get(int(process), 0.0) + float(mebibytes) / 1024
        except ValueError:  # "[N/A]"
            continue
    return used
