import itertools

from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble
from tests.pipeline.schedules.event_simulation import bubble, makespan
from tests.pipeline.schedules.most_kept import most_kept

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


def test_few_micro_batches_take_no_longer_than_their_way() -> None:
    """Nobody can be faster.

    The first micro-batch is back at the first device, but for its backward there, after
    2·K - 1 operations; all that device's backwards and weight gradients come later.
    """
    for sizes in SIZES:
        num_stages, num_micro_batches = sizes
        if num_micro_batches <= num_stages:
            wanted = 2 * num_stages - 1 + 2 * num_micro_batches
            assert makespan(zero_bubble(*sizes), UNIT_COSTS) == wanted, sizes


def test_no_device_keeps_more_than_1f1bs_first() -> None:
    for sizes in SIZES:
        num_stages, num_micro_batches = sizes
        limit = most_kept(one_f_one_b(*sizes))[0].residuals
        for device, peak in enumerate(most_kept(zero_bubble(*sizes))):
            assert peak.residuals <= limit, (sizes, device)


def test_without_weight_gradients_it_is_1f1b() -> None:
    for sizes in SIZES:
        schedule = zero_bubble(*sizes)
        assert one_f_one_b(*sizes).columns == tuple(
            tuple(op for op in column if op.kind is not Kind.WEIGHT_GRADIENT)
            for column in schedule.columns
        )
