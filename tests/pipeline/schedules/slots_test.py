from __future__ import annotations

import itertools
from collections import Counter

import pytest

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.slots import (
    Kept,
    SlotPair,
    assign_slots,
    stash_use,
)
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble
from tests.pipeline.schedules.every_schedule import every_schedule
from tests.pipeline.schedules.most_kept import NumKept, most_kept, num_kept

F, R, B, W, _ = Kind


def test_every_read_finds_what_was_written_for_it() -> None:
    """Against brute force: each stash an array, gone through in the columns' order."""
    for name, schedule in every_schedule():
        slots = assign_slots(schedule)
        stashes: dict[tuple[int, Kept, int], int] = {}
        used: Counter[tuple[int, Kept]] = Counter()
        for column, pairs in zip(schedule.columns, slots.columns, strict=True):
            for op, pair in zip(column, pairs, strict=True):
                use = stash_use(schedule, op)
                assert (pair.read == -1) == (use.read is None), name
                assert (pair.write == -1) == (use.write is None), name
                if use.read:
                    found = stashes.pop((op.stage, use.read, pair.read))
                    assert found == op.micro_batch, name
                if use.write:
                    place = (op.stage, use.write, pair.write)
                    free = set(range(used[place[:2]] + 1)) - {
                        slot for *stash, slot in stashes if (*stash,) == place[:2]
                    }
                    assert pair.write == min(free), f"{name}: the lowest free one"
                    stashes[place] = op.micro_batch
                    held = Counter(place[:2] for place in stashes)
                    used |= held
        assert not stashes, name
        assert slots.num_slots == tuple(
            {kept: used[stage, kept] for kept in Kept}
            for stage in range(schedule.num_stages)
        ), f"{name}: no more slots than needed"


def test_what_is_kept_is_what_lies_between_the_operations() -> None:
    for name, schedule in every_schedule():
        if schedule.num_stages * schedule.num_micro_batches > 30:
            continue  # Brute force takes its time.
        for device, column in enumerate(schedule.columns):
            wanted = [
                _num_kept(schedule, set(column[:end]))
                for end in range(1, len(column) + 1)
            ]
            assert num_kept(schedule, device) == wanted, name


def _num_kept(schedule: Schedule, done: set[Op]) -> NumKept:
    """What must be kept, said in other words: by what is done and what is to do."""
    pairs = itertools.product(
        range(schedule.num_micro_batches), range(schedule.num_stages)
    )
    for_recompute = residuals = 0
    for m, stage in pairs if schedule.has_backward else ():
        last = Op(W if W in schedule.kinds else B, m, stage)
        recompute = Op(R, m, stage)
        if Op(F, m, stage) in done and last not in done:
            to_recompute = recompute in schedule and recompute not in done
            for_recompute += to_recompute
            residuals += not to_recompute
    return NumKept(for_recompute, residuals)


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
        {Kept.FOR_RECOMPUTE: 2, Kept.RESIDUALS: 1, Kept.WEIGHT_RESIDUALS: 0},
        {Kept.FOR_RECOMPUTE: 0, Kept.RESIDUALS: 1, Kept.WEIGHT_RESIDUALS: 0},
    )


def test_freed_slots_are_taken_again() -> None:
    for num_micro_batches in (4, 400):
        slots = assign_slots(zero_bubble(3, num_micro_batches))
        assert [dict(of_stage) for of_stage in slots.num_slots] == [
            {Kept.FOR_RECOMPUTE: 0, Kept.RESIDUALS: 3 - k, Kept.WEIGHT_RESIDUALS: k + 1}
            for k in range(3)
        ]


@pytest.mark.parametrize("sizes", [(1, 1), (3, 4)])
def test_evaluation_keeps_nothing(sizes: tuple[int, int]) -> None:
    schedule = gpipe(*sizes).forward_part()
    assert most_kept(schedule) == [NumKept(0, 0)] * schedule.num_devices
    assert {pair for column in assign_slots(schedule).columns for pair in column} == {
        SlotPair(-1, -1)
    }
