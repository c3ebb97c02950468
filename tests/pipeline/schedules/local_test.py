"""Blocks with losses of their own do not wait for later blocks."""

from __future__ import annotations

import itertools
import random

import pytest

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.by_rule import local, one_f_one_b
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.schedules.stash_sizes import peak_stashed


def test_without_blocks_it_is_1f1b() -> None:
    assert local(4, 8) == one_f_one_b(4, 8)


@pytest.mark.parametrize("seed", range(40))
def test_a_block_runs_1f1b_as_if_it_were_alone(seed: int) -> None:
    draw = random.Random(seed)
    num_stages, num_micro_batches = draw.randint(1, 9), draw.randint(1, 9)
    block_boundaries = {k for k in range(num_stages - 1) if draw.random() < 0.5}
    schedule = local(num_stages, num_micro_batches, block_boundaries)
    check(schedule)
    bounds = [0, *(end + 1 for end in sorted(block_boundaries)), num_stages]
    for begin, end in itertools.pairwise(bounds):
        alone = one_f_one_b(end - begin, num_micro_batches)
        for stage in range(begin, end):
            moved = [
                op._replace(stage=op.stage + begin)
                for op in alone.columns[stage - begin]
            ]
            assert list(schedule.columns[stage]) == moved


def test_blocks_of_a_stage_stash_one_micro_batch() -> None:
    schedule = make_schedule(
        "local", 4, 16, recompute="never", block_boundaries=[0, 1, 2]
    )
    assert peak_stashed(schedule) == 1


def test_a_backward_pass_waits_for_its_own_block_alone() -> None:
    schedule = make_schedule("gpipe", 3, 2, recompute="never", block_boundaries=[0])
    for _, op in schedule.ops():
        stages = {need.stage for need in schedule.dependencies(op)}
        if op.kind is Kind.BACKWARD:
            assert stages == {op.stage, 2} if op.stage == 1 else {op.stage}
