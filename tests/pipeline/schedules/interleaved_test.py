import itertools

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import interleaved, one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.schedules.event_simulation import bubble, makespan
from tests.pipeline.schedules.every_schedule import SIZES
from tests.pipeline.schedules.stash_sizes import peak_stash_sizes

# The unit is a V-th of 1F1B's forward pass.
COSTS = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
ALL_SIZES = list(itertools.product(range(1, 7), range(1, 16), range(1, 5)))


def test_the_bubble_is_a_vth_of_1f1bs_for_any_number_of_micro_batches() -> None:
    """1F1B's bubble is (K - 1)·(F + B) of devices' time, which is V times a stage's."""
    for sizes in ALL_SIZES:
        num_devices, num_micro_batches, _ = sizes
        if num_micro_batches >= num_devices:
            assert bubble(interleaved(*sizes), COSTS) == 3 * (num_devices - 1), sizes


def test_few_micro_batches_take_the_least_time_possible() -> None:
    """The last stage runs all micro-batches after K·V - 1 other stages' forward passes.

    Their backward passes come after it.
    """
    for sizes in ALL_SIZES:
        num_devices, num_micro_batches, num_stages = sizes
        if num_micro_batches <= num_devices:
            length = num_devices * num_stages + num_micro_batches - 1
            assert makespan(interleaved(*sizes), COSTS) == 3 * length, sizes


@pytest.mark.parametrize("sizes", SIZES)
def test_one_stage_a_device_is_1f1b(sizes: tuple[int, int]) -> None:
    assert interleaved(*sizes, 1) == one_f_one_b(*sizes)


@pytest.mark.parametrize(("num_devices", "num_groups"), [(2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_the_stash_sizes_are_the_papers(
    num_devices: int, num_groups: int, num_stages: int
) -> None:
    schedule = interleaved(num_devices, num_groups * num_devices, num_stages)
    peak = num_groups * num_devices * num_stages
    assert [sizes.residuals for sizes in peak_stash_sizes(schedule)] == [
        min(peak, (num_stages - 1) * num_devices + 2 * (num_devices - 1 - device) + 1)
        for device in range(num_devices)
    ]
