import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.schedules.event_simulation import makespan
from tests.pipeline.schedules.every_schedule import SIZES

UNIT_COSTS = dict.fromkeys(Kind, 1)


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_forwards_come_first(num_stages: int, num_micro_batches: int) -> None:
    for column in gpipe(num_stages, num_micro_batches).columns:
        kinds = [op.kind for op in column]
        assert kinds == sorted(kinds, key=list(Kind).index)


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_takes_as_long_as_the_paper_says(
    num_stages: int, num_micro_batches: int
) -> None:
    """With operations of equal length: 2·(M + K - 1), which gives the bubble."""
    time = num_micro_batches + num_stages - 1
    schedule = gpipe(num_stages, num_micro_batches)
    assert makespan(schedule, UNIT_COSTS) == 2 * time
    assert makespan(schedule.forward_part(), UNIT_COSTS) == time


def test_evaluation_has_no_backward() -> None:
    assert gpipe(3, 2).forward_part().kinds == {Kind.FORWARD}
    assert gpipe(3, 2).kinds == {Kind.FORWARD, Kind.BACKWARD}
