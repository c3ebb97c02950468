from __future__ import annotations

import itertools
from collections import Counter

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b, zero_bubble
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.slots import (
    SlotPair,
    StashKind,
    assign_slots,
    stash_use,
)
from tests.pipeline.schedules.every_schedule import every_schedule
from tests.pipeline.schedules.stash_sizes import (
    StashSizes,
    peak_stash_sizes,
    stash_sizes,
)

F, R, B, W, _, AWAY, BACK = Kind


def test_every_read_finds_what_was_written_for_it() -> None:
    """Against brute force: each stash is an array, in the columns' order."""
    for name, schedule in every_schedule():
        slots = assign_slots(schedule)
        stashes: dict[tuple[int, StashKind, int], int] = {}
        used: Counter[tuple[int, StashKind]] = Counter()
        for column, pairs in zip(schedule.columns, slots.columns, strict=True):
            for op, pair in zip(column, pairs, strict=True):
                use = stash_use(schedule, op)
                assert (pair.read == -1) == (use.read is None), name
                assert (pair.write == -1) == (use.write is None), name
                if use.read:
                    found = stashes.pop((op.stage, use.read, pair.read))
                    assert found == op.micro_batch, name
                if use.write:
                    key = (op.stage, use.write, pair.write)
                    free = set(range(used[key[:2]] + 1)) - {
                        slot for *stash, slot in stashes if (*stash,) == key[:2]
                    }
                    assert pair.write == min(free), f"{name}: the lowest free one"
                    stashes[key] = op.micro_batch
                    held = Counter(key[:2] for key in stashes)
                    used |= held
        assert not stashes, name
        assert slots.num_slots == tuple(
            {kind: used[stage, kind] for kind in StashKind}
            for stage in range(schedule.num_stages)
        ), f"{name}: no more slots than needed"


def test_stash_sizes_follow_from_the_operations_done() -> None:
    for name, schedule in every_schedule():
        if schedule.num_stages * schedule.num_micro_batches > 30:
            continue  # Brute force takes its time.
        for device, column in enumerate(schedule.columns):
            expected = [
                _expected_sizes(schedule, set(column[:end]))
                for end in range(1, len(column) + 1)
            ]
            assert stash_sizes(schedule, device) == expected, name


def _expected_sizes(schedule: Schedule, done: set[Op]) -> StashSizes:
    """Returns the sizes that follow from the operations done and left."""
    pairs = itertools.product(
        range(schedule.num_micro_batches), range(schedule.num_stages)
    )
    for_recompute = residuals = away = 0
    for m, stage in pairs if schedule.has_backward else ():
        last = Op(W if W in schedule.kinds else B, m, stage)
        recompute = Op(R, m, stage)
        if Op(F, m, stage) in done and last not in done:
            to_recompute = recompute in schedule and recompute not in done
            for_recompute += to_recompute
            residuals += not to_recompute
            away += Op(AWAY, m, stage) in done and Op(BACK, m, stage) not in done
    return StashSizes(for_recompute, residuals, away)


def test_the_slots_of_a_recomputed_schedule() -> None:
    slots = assign_slots(recomputed(one_f_one_b(2, 2), "always"))
    assert slots.columns[0] == (
        SlotPair(-1, 0),  # F0
        SlotPair(-1, 1),  # F1
        SlotPair(0, 0),  # R0
        SlotPair(0, -1),  # B0
        SlotPair(1, 0),  # R1
        SlotPair(0, -1),  # B1
    )
    assert slots.num_slots == (
        {
            StashKind.FOR_RECOMPUTE: 2,
            StashKind.RESIDUALS: 1,
            StashKind.WEIGHT_RESIDUALS: 0,
            StashKind.OFFLOADED: 0,
        },
        {
            StashKind.FOR_RECOMPUTE: 0,
            StashKind.RESIDUALS: 1,
            StashKind.WEIGHT_RESIDUALS: 0,
            StashKind.OFFLOADED: 0,
        },
    )


def test_freed_slots_are_reused() -> None:
    for num_micro_batches in (4, 400):
        slots = assign_slots(zero_bubble(3, num_micro_batches))
        assert [dict(of_stage) for of_stage in slots.num_slots] == [
            {
                StashKind.FOR_RECOMPUTE: 0,
                StashKind.RESIDUALS: 3 - k,
                StashKind.WEIGHT_RESIDUALS: k + 1,
                StashKind.OFFLOADED: 0,
            }
            for k in range(3)
        ]


@pytest.mark.parametrize("sizes", [(1, 1), (3, 4)])
def test_evaluation_stashes_nothing(sizes: tuple[int, int]) -> None:
    schedule = gpipe(*sizes).forward_part()
    assert peak_stash_sizes(schedule) == [StashSizes(0, 0)] * schedule.num_devices
    assert {pair for column in assign_slots(schedule).columns for pair in column} == {
        SlotPair(-1, -1)
    }
