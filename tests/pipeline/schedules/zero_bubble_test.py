import itertools

from lingvo_pipe.pipeline.schedules.by_rule import one_f_one_b, zero_bubble
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.schedules.event_simulation import bubble, makespan
from tests.pipeline.schedules.stash_sizes import peak_stash_sizes

UNIT_COSTS = dict.fromkeys(Kind, 1)
# 1F1B's backward does what both of the others do.
COSTS_1F1B = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
SIZES = list(itertools.product(range(1, 9), range(1, 20)))


def test_the_bubble_is_a_third_of_1f1bs() -> None:
    for sizes in SIZES:
        num_stages, num_micro_batches = sizes
        if num_micro_batches >= num_stages:
            assert bubble(zero_bubble(*sizes), UNIT_COSTS) == num_stages - 1, sizes
            assert bubble(one_f_one_b(*sizes), COSTS_1F1B) == 3 * (num_stages - 1)


def test_few_micro_batches_take_the_least_time_possible() -> None:
    """The first device's backward passes and weight gradients wait for 2·K - 1 others.

    These are the first micro-batch's way to the last device and back.
    """
    for sizes in SIZES:
        num_stages, num_micro_batches = sizes
        if num_micro_batches <= num_stages:
            expected = 2 * num_stages - 1 + 2 * num_micro_batches
            assert makespan(zero_bubble(*sizes), UNIT_COSTS) == expected, sizes


def test_no_device_stashes_more_than_1f1bs_first() -> None:
    for sizes in SIZES:
        num_stages, num_micro_batches = sizes
        limit = peak_stash_sizes(one_f_one_b(*sizes))[0].residuals
        for device, peak in enumerate(peak_stash_sizes(zero_bubble(*sizes))):
            assert peak.residuals <= limit, (sizes, device)


def test_without_weight_gradients_it_is_1f1b() -> None:
    for sizes in SIZES:
        schedule = zero_bubble(*sizes)
        assert one_f_one_b(*sizes).columns == tuple(
            tuple(op for op in column if op.kind is not Kind.WEIGHT_GRADIENT)
            for column in schedule.columns
        )
