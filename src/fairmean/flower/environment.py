"""Flower as a guest: it is there or it is named, it stays offline, and it sends no telemetry unless it is told to."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import MutableMapping

from fairmean.errors import UserError

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What keeps a federation to itself. A value that is set already stays."""


def stay_offline(environment: MutableMapping[str, str] = os.environ) -> MutableMapping[str, str]:
    """Set what keeps Flower and Ray from calling home, unless the user has set something else; the environment."""
    for name, value in OFFLINE.items():
        environment.setdefault(name, value)
    return environment


def need_flower() -> None:
    """Raise a UserError if Flower is not installed; set the environment before it is imported."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError('fairmean.flower needs Flower, which is not installed: pip install "fairmean[flower]"')
    stay_offline()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower itself imports
        importlib.import_module("flwr")
