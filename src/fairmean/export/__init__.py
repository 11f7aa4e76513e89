"""Runs for experiment trackers: read from the run folder, so that nothing in the engine knows of them.

A tracker is one file here with a class of four functions (``Tracker``). Its library is imported when it is used.
"""

from __future__ import annotations

from fairmean.export.feeding import TRACKERS, Exported, export
from fairmean.export.tracker import Identity, Tracker

__all__ = ["TRACKERS", "Exported", "Identity", "Tracker", "export"]
