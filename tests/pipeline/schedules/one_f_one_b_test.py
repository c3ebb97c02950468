import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.schedules.event_simulation import bubble
from tests.pipeline.schedules.every_schedule import SIZES
from tests.pipeline.schedules.stash_sizes import peak_stash_sizes


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_keeps_no_more_micro_batches_than_stages_follow(
    num_stages: int, num_micro_batches: int
) -> None:
    peaks = peak_stash_sizes(one_f_one_b(num_stages, num_micro_batches))
    assert [peak.residuals for peak in peaks] == [
        min(num_micro_batches, num_stages - stage) for stage in range(num_stages)
    ]
    peaks = peak_stash_sizes(gpipe(num_stages, num_micro_batches))
    assert {peak.residuals for peak in peaks} == {num_micro_batches}


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
@pytest.mark.parametrize("backward", [1, 2, 3])
def test_the_bubble_is_that_of_gpipe(
    num_stages: int, num_micro_batches: int, backward: int
) -> None:
    costs = {Kind.FORWARD: 1, Kind.BACKWARD: backward}
    expected = (num_stages - 1) * (1 + backward)
    for generate in (one_f_one_b, gpipe):
        assert bubble(generate(num_stages, num_micro_batches), costs) == expected
