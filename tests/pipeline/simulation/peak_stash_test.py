from __future__ import annotations

import random

import pytest

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.slots import Kept
from lingvo_pipe.pipeline.simulation.peak_stash import peak_stash_bytes
from tests.pipeline.simulation.random_schedules import random_schedule

STAGE = {Kept.FOR_RECOMPUTE: 1, Kept.RESIDUALS: 100}


def test_gpipe_keeps_all_micro_batches_and_1f1b_as_many_as_stages_follow() -> None:
    """The memory of the GPipe paper: inputs of M micro-batches, insides of one."""
    stages = [STAGE] * 3
    assert peak_stash_bytes(gpipe(3, 8), stages) == [800, 800, 800]
    assert peak_stash_bytes(recomputed(gpipe(3, 8), "always"), stages) == [107] * 3
    assert peak_stash_bytes(one_f_one_b(3, 8), stages) == [300, 200, 100]
    assert peak_stash_bytes(recomputed(one_f_one_b(3, 8), "always"), stages) == [
        102,
        101,
        100,
    ]
    assert peak_stash_bytes(gpipe(3, 8).forward_part(), [{}] * 3) == [0, 0, 0]


@pytest.mark.parametrize("seed", range(40))
def test_against_lifetimes(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    stages = [
        {kept: rng.randint(0, 9) for kept in Kept} for _ in range(schedule.num_stages)
    ]
    assert peak_stash_bytes(schedule, stages) == [
        max(
            (_bytes_after(schedule, device, i, stages) for i in range(len(column))),
            default=0,
        )
        for device, column in enumerate(schedule.columns)
    ]


def _bytes_after(
    schedule: Schedule, device: int, index: int, stages: list[dict[Kept, int]]
) -> int:
    """What was written, but not read, by the time that an operation is done."""
    done = schedule.columns[device][: index + 1]
    total = 0
    for _, m, stage in {op for op in done if op.kind is Kind.FORWARD}:
        f, r, b, w, _ = (Op(kind, m, stage) for kind in Kind)
        if r in schedule and r not in done:
            total += stages[stage][Kept.FOR_RECOMPUTE]
        elif b not in done:
            total += stages[stage][Kept.RESIDUALS]
        elif w in schedule and w not in done:
            total += stages[stage][Kept.WEIGHT_RESIDUALS]
    return total


def test_bytes_of_other_stages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\b3\D*\b2\b"):
        peak_stash_bytes(gpipe(3, 2), [STAGE] * 2)
