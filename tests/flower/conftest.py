"""Flower's files go into a folder of the tests' own, from before Flower is first imported; nothing calls home."""

import os
import tempfile

from fairmean.flower.environment import OFFLINE

os.environ |= {**OFFLINE, "FLWR_HOME": tempfile.mkdtemp(prefix="flwr-home-")}
