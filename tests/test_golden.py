"""Results that change without a new numerics version would be taken for the old ones."""

from __future__ import annotations

import copy
import json

import pytest

from fairmean.experiments.identity import NUMERICS
from tests.golden import FILE, differing, measured


@pytest.fixture(scope="module")
def stored():
    return json.loads(FILE.read_text())


def test_results_are_those_of_the_numerics_version(stored, tmp_path):
    assert stored["numerics"] == NUMERICS, "store the results of this version: python -m tests.golden"
    changed = differing(stored["results"], measured(tmp_path))
    assert not changed, (
        f"fairmean gives other results for {sorted(changed)}. If that is meant, raise NUMERICS in "
        "fairmean.experiments.identity, so that stored runs are not taken for "
        "today's, and store the new results: python -m tests.golden"
    )


@pytest.mark.parametrize("key", ["draws", "losses", "parameters", "accuracy"])
def test_a_change_is_noticed(key, stored):
    changed = copy.deepcopy(stored["results"])
    value = changed["krum"][key]
    if key == "draws":
        changed["krum"][key] = "0" * 16
    elif key == "accuracy":
        changed["krum"][key] = value * (1 + 1e-5)
    else:
        value[0] *= 1 + 1e-5
    assert differing(stored["results"], changed) == ["krum"]
