"""Training with XLA computes the same bytes for all stages and schedules.

The tests compare weights, slots and moving averages after two steps with one compiled
stage that recomputes nothing: for each number of devices, each recomputation policy,
and schedules with one backward pass and with two. The fast suite takes one of these.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.training_by_schedules import Trainings, task_params


@pytest.fixture(scope="module")
def trainings() -> Trainings:
    return Trainings()


RECOMPUTED = ["always", "except_last", "never", [0, 2]]
SCHEDULES = ["gpipe", "zero_bubble"]
CASES = [*itertools.product([1, 2, 3, 4, 8], SCHEDULES, RECOMPUTED)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("num_devices", "schedule", "recompute"), CASES)
def test_training_leaves_the_bytes_of_one_stage(
    tmp_path: Path,
    trainings: Trainings,
    num_devices: int,
    schedule: str,
    recompute: Any,
) -> None:
    name, p = task_params(
        tmp_path, "streams", num_devices, schedule, recompute, jit_compile=True
    )
    found = trainings.state_after(name, p)
    want = trainings.state_of_one_stage(name, jit_compile=True)
    assert found.keys() == want.keys()
    assert [path for path in want if found[path] != want[path]] == []
    plain = trainings.state_of_one_stage(name)
    assert plain != want, "XLA rounds otherwise"
