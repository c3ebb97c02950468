"""Training with XLA leaves the same bytes however a model is cut and scheduled.

Compared are all weights, slots and moving averages after three steps, with those of one
stage that recomputes nothing, compiled too: for each number of devices, each way to
recompute, and schedules with one backward pass and with two. The suite for everybody
takes each way to recompute once, and schedules and numbers of devices in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.training_by_schedules import Trainings, task_params
from tests.support.cases import exhaustive


@pytest.fixture(scope="module")
def trainings() -> Trainings:
    return Trainings()


RECOMPUTED = ["always", "except_last", "never", [0, 2]]
SCHEDULES = ["gpipe", "zero_bubble"]


def _cases() -> Iterator[Any]:
    ordinary = set(
        zip(
            [3, 8, 2, 4], itertools.cycle(SCHEDULES), map(str, RECOMPUTED), strict=False
        )
    )
    for case in itertools.product([1, 2, 3, 4, 8], SCHEDULES, RECOMPUTED):
        is_ordinary = (*case[:2], str(case[2])) in ordinary
        yield pytest.param(*case) if is_ordinary else exhaustive(*case)


@pytest.mark.parametrize(("num_devices", "schedule", "recompute"), list(_cases()))
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
