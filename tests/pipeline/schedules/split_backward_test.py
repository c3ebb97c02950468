import itertools
import re
from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.schedules.building_block import v_half, v_min
from lingvo_pipe.pipeline.schedules.by_rule import interleaved, one_f_one_b, zero_bubble
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.split_backward import (
    dualpipe_v,
    interleaved_zero_bubble,
    zero_bubble_v,
)
from tests.pipeline.schedules.event_simulation import bubble, makespan
from tests.pipeline.schedules.stash_sizes import peak_stashed

UNIT_COSTS = dict.fromkeys(Kind, 1)
SIZES = list(itertools.product(range(1, 8), range(1, 17)))


def _two_interleaved(num_devices: int, num_micro_batches: int) -> Schedule:
    return interleaved_zero_bubble(num_devices, num_micro_batches, 2)


@pytest.mark.parametrize(
    ("make", "num_more"), [(zero_bubble_v, 2), (_two_interleaved, 2), (dualpipe_v, 0)]
)
def test_the_bubble_fills_the_pipeline_once(
    make: Callable[[int, int], Schedule], num_more: int
) -> None:
    """No schedule in which the last device waits for the first can have less."""
    for sizes in SIZES:
        num_devices, num_micro_batches = sizes
        if num_micro_batches >= 2 * num_devices:
            idle = bubble(make(*sizes), UNIT_COSTS)
            assert num_devices - 1 <= idle <= num_devices - 1 + num_more, sizes


def test_the_memory_is_that_of_the_schedules_with_a_larger_bubble() -> None:
    for sizes in SIZES:
        # A stage of ZB-V is half of 1F1B's.
        assert peak_stashed(zero_bubble_v(*sizes)) <= 2 * peak_stashed(
            one_f_one_b(*sizes)
        ), sizes
        assert peak_stashed(dualpipe_v(*sizes)) <= 2 * sizes[0] + 1, sizes
        for num_stages in (2, 3):
            ours = peak_stashed(interleaved_zero_bubble(*sizes, num_stages))
            limit = (num_stages + 1) * sizes[0] - 1
            assert ours <= min(limit, num_stages * sizes[1]), sizes


def test_zero_bubble_v_is_faster_than_1f1b_and_interleaved() -> None:
    """K=8, M=32, and a stage of 1F1B, with F=B=W=2, is two of the others."""
    halves = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
    wholes = {Kind.FORWARD: 2, Kind.BACKWARD: 4}
    ours = makespan(zero_bubble_v(8, 32), UNIT_COSTS)
    assert ours == 199
    assert ours < makespan(interleaved(8, 32, 2), halves) == 213
    assert ours < makespan(one_f_one_b(8, 32), wholes) == 234


@pytest.mark.parametrize("sizes", SIZES)
def test_one_stage_per_device_is_zero_bubble(sizes: tuple[int, int]) -> None:
    assert interleaved_zero_bubble(*sizes, 1) == zero_bubble(*sizes)


@pytest.mark.parametrize(
    ("make", "documented"),
    [
        (zero_bubble_v, zero_bubble_v),
        (v_half, v_half),
        (v_min, v_min),
        (_two_interleaved, interleaved_zero_bubble),
        (dualpipe_v, dualpipe_v),
    ],
)
def test_the_picture_is_the_schedule(
    make: Callable[[int, int], Schedule], documented: Callable[..., Schedule]
) -> None:
    """Capital letters are of a device's first stage."""
    rows = re.findall(r"\d \|(.*)", documented.__doc__ or "")
    drawn = [re.findall(r"([A-Za-z])(\d+)", row) for row in reversed(rows)]
    assert drawn
    num_micro_batches = 1 + max(int(number) for row in drawn for _, number in row)
    columns = make(len(drawn), num_micro_batches).columns
    letters = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.WEIGHT_GRADIENT: "W"}
    for row, column in zip(drawn, columns, strict=True):
        first = column[0].stage
        made = [(letters[op.kind], op.stage, str(op.micro_batch)) for op in column]
        assert row == [
            (letter if stage == first else letter.lower(), number)
            for letter, stage, number in made
        ]


def test_few_micro_batches_are_the_beginning_of_more() -> None:
    few, more = dualpipe_v(4, 3), dualpipe_v(4, 8)
    assert few.columns == tuple(
        tuple(op for op in column if op.micro_batch < 3) for column in more.columns
    )
