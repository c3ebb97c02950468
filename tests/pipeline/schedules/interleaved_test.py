import itertools

import pytest

from lingvo_pipe.pipeline.schedules.interleaved import interleaved
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.schedules.event_simulation import bubble, makespan
from tests.pipeline.schedules.every_schedule import SIZES
from tests.pipeline.schedules.most_kept import most_kept

# A stage of one of V takes a V-th of a device's time, here the unit.
COSTS = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
ALL_SIZES = list(itertools.product(range(1, 7), range(1, 16), range(1, 5)))


def test_the_bubble_is_a_vth_of_1f1bs_for_any_number_of_micro_batches() -> None:
    """1F1B's bubble is (K - 1)·(F + B) of devices' time, which is V times a stage's."""
    for sizes in ALL_SIZES:
        num_devices, num_micro_batches, _ = sizes
        if num_micro_batches >= num_devices:
            assert bubble(interleaved(*sizes), COSTS) == 3 * (num_devices - 1), sizes


def test_few_micro_batches_take_no_longer_than_their_way() -> None:
    """Nobody can be faster.

    The last stage has all micro-batches to do, after the first one's way there and
    before the last one's way back: K·V - 1 stages, forward and backward.
    """
    for sizes in ALL_SIZES:
        num_devices, num_micro_batches, num_stages = sizes
        if num_micro_batches <= num_devices:
            way = num_devices * num_stages + num_micro_batches - 1
            assert makespan(interleaved(*sizes), COSTS) == 3 * way, sizes


@pytest.mark.parametrize("sizes", SIZES)
def test_one_stage_a_device_is_1f1b(sizes: tuple[int, int]) -> None:
    assert interleaved(*sizes, 1) == one_f_one_b(*sizes)


@pytest.mark.parametrize(("num_devices", "num_groups"), [(2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_keeps_what_the_paper_says(
    num_devices: int, num_groups: int, num_stages: int
) -> None:
    schedule = interleaved(num_devices, num_groups * num_devices, num_stages)
    most = num_groups * num_devices * num_stages
    assert [peak.residuals for peak in most_kept(schedule)] == [
        min(most, (num_stages - 1) * num_devices + 2 * (num_devices - 1 - device) + 1)
        for device in range(num_devices)
    ]
