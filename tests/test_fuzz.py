"""A sample of the bad inputs of tests/fuzz: exit code 1 or 2, one line, nothing half-written ('make fuzz': all)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.fuzz import models, rules
from tests.fuzz.case import TINY, Case, given
from tests.fuzz.cases import KINDS, cases, drawn
from tests.fuzz.check import faults

SAMPLE = cases(62, seed=0)
RIGHT = [
    Case("settings", "as they should be", given(["run", *TINY])),
    models._model("right", "as it should be", models._net(models.GOOD)),
    rules.Rules("right").weights("as it should be", rules.RIGHT),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The work is tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.id)
def test_bad_input_ends_in_one_line(case, tmp_path):
    assert faults(case, tmp_path) == []


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_what_the_cases_are_made_of_is_right_without_the_mistake(case, tmp_path):
    assert faults(replace(case, codes=frozenset({0}), says=(), table=()), tmp_path) == []


def test_the_sample_has_every_kind_and_all_that_new_users_ran_into():
    assert {case.kind for case in SAMPLE} == set(KINDS)
    assert not any(case.trial for case in cases(1000, seed=0)[len(SAMPLE) :])


def test_the_same_seed_draws_the_same_cases():
    def names(seed):
        return [case.id for case, _ in zip(drawn(seed), range(50), strict=False)]

    assert names(3) == names(3)
    assert names(3) != names(4)
