import inspect
from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.schedules.building_block import v_half, v_min
from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, interleaved
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.split_backward import dualpipe_v, zero_bubble_v
from tests.pipeline.schedules.every_schedule import every_schedule
from tests.support.errors import fails


def test_every_schedule_can_be_run() -> None:
    for name, schedule in every_schedule():
        try:
            check(schedule)
        except ValueError as error:
            pytest.fail(f"{name}: {error}")


def test_stages_go_round_the_devices_or_up_and_down() -> None:
    for name, schedule in every_schedule():
        number = schedule.num_devices
        in_turn = [*range(number)] * (schedule.num_stages // number)
        if name.startswith(V_SHAPED_NAMES):
            in_turn = [*range(number), *reversed(range(number))]
        assert schedule.device_of_stage() == dict(enumerate(in_turn)), name


@pytest.mark.parametrize(
    "generate", [gpipe, interleaved, zero_bubble_v, v_half, v_min, dualpipe_v]
)
@pytest.mark.parametrize("wrong", [0, 1.0, True])
def test_wrong_sizes_are_refused_together(
    generate: Callable[..., Schedule], wrong: int
) -> None:
    num = len(inspect.signature(generate).parameters)
    with fails() as error:
        generate(*[wrong] * num)
    assert [problem.got for problem in error.value.problems] == [wrong] * num
