"""What tests of the command line share."""

from __future__ import annotations

import sys
import types

import pytest

from tests.terminal.fake_tracker import Fake


@pytest.fixture
def fake(monkeypatch):
    """The fake instead of TensorBoard."""
    module = types.ModuleType("fairmean.export.tensorboard")
    module.open_tracker, module.INSTALL = Fake, "pip install fake"
    monkeypatch.setitem(sys.modules, "fairmean.export.tensorboard", module)
    Fake.told, Fake.rounds = {}, {}
    return Fake
