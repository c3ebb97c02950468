"""Bubbles, times and stashes of the schedules made by rule, in closed form."""

import itertools
from collections.abc import Iterator

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from tests.pipeline.schedules.event_simulation import bubble, makespan
from tests.pipeline.schedules.stash_sizes import peak_stash_sizes

UNIT_COSTS = dict.fromkeys(Kind, 1)
# A backward pass of 1F1B does what both of zero bubble's do.
COSTS = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
SIZES = list(itertools.product(range(1, 9), range(1, 20)))
INTERLEAVED = list(itertools.product(range(1, 7), range(1, 16), range(1, 5)))


def _without(kind: Kind, schedule: Schedule) -> Iterator[tuple]:
    for column in schedule.columns:
        yield tuple(op for op in column if op.kind is not kind)


def _residuals(schedule: Schedule) -> list[int]:
    return [peak.residuals for peak in peak_stash_sizes(schedule)]


def test_gpipe_takes_as_long_as_the_paper_says() -> None:
    """With operations of equal length: 2·(M + K - 1), which gives the bubble."""
    for num_stages, num_micro_batches in SIZES:
        schedule, time = (
            gpipe(num_stages, num_micro_batches),
            num_micro_batches + num_stages - 1,
        )
        assert makespan(schedule, UNIT_COSTS) == 2 * time
        evaluation = schedule.forward_part()
        assert evaluation.kinds == {Kind.FORWARD}
        assert makespan(evaluation, UNIT_COSTS) == time
        for column in schedule.columns:
            kinds = [op.kind for op in column]
            assert kinds == sorted(kinds, key=list(Kind).index)


def test_1f1b_has_the_bubble_of_gpipe_and_stashes_less() -> None:
    for num_stages, num_micro_batches in SIZES:
        schedules = (
            gpipe(num_stages, num_micro_batches),
            one_f_one_b(num_stages, num_micro_batches),
        )
        for schedule, backward in itertools.product(schedules, (1, 2, 3)):
            costs = {Kind.FORWARD: 1, Kind.BACKWARD: backward}
            assert bubble(schedule, costs) == (num_stages - 1) * (1 + backward)
        assert set(_residuals(schedules[0])) == {num_micro_batches}
        assert _residuals(schedules[1]) == [
            min(num_micro_batches, num_stages - stage) for stage in range(num_stages)
        ]


def test_zero_bubble_has_a_third_of_1f1bs_bubble_in_its_memory() -> None:
    for sizes in SIZES:
        num_stages, num_micro_batches = sizes
        schedule, plain = zero_bubble(*sizes), one_f_one_b(*sizes)
        if num_micro_batches >= num_stages:
            assert bubble(schedule, UNIT_COSTS) == num_stages - 1, sizes
        else:
            # The first device's backward passes and weight gradients wait for 2·K - 1
            # others: the first micro-batch's way to the last device and back.
            expected = 2 * num_stages - 1 + 2 * num_micro_batches
            assert makespan(schedule, UNIT_COSTS) == expected, sizes
        assert max(_residuals(schedule)) <= _residuals(plain)[0], sizes
        assert plain.columns == tuple(_without(Kind.WEIGHT_GRADIENT, schedule))


def test_interleaved_has_a_vth_of_1f1bs_bubble_for_any_number_of_micro_batches() -> (
    None
):
    """1F1B's bubble is (K - 1)·(F + B) of devices' time, which is V times a stage's."""
    for sizes in INTERLEAVED:
        num_devices, num_micro_batches, num_stages = sizes
        schedule = interleaved(*sizes)
        if num_micro_batches >= num_devices:
            assert bubble(schedule, COSTS) == 3 * (num_devices - 1), sizes
        else:
            # The last stage runs all micro-batches after K·V - 1 other stages' forward
            # passes. Their backward passes come after it.
            length = num_devices * num_stages + num_micro_batches - 1
            assert makespan(schedule, COSTS) == 3 * length, sizes
        if num_stages == 1:
            assert schedule == one_f_one_b(num_devices, num_micro_batches)


@pytest.mark.parametrize(("num_devices", "num_groups"), [(2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_interleaved_stashes_as_much_as_the_paper_says(
    num_devices: int, num_groups: int, num_stages: int
) -> None:
    schedule = interleaved(num_devices, num_groups * num_devices, num_stages)
    peak = num_groups * num_devices * num_stages
    assert _residuals(schedule) == [
        min(peak, (num_stages - 1) * num_devices + 2 * (num_devices - 1 - device) + 1)
        for device in range(num_devices)
    ]
