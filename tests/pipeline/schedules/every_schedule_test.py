import pytest

from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.pipeline.schedules.check import check
from tests.pipeline.schedules.every_schedule import every_schedule


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
