from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Schedule
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
        if name.startswith(("zero_bubble_v", "dualpipe_v")):
            in_turn = [*range(number), *reversed(range(number))]
        assert schedule.device_of_stage() == dict(enumerate(in_turn)), name


@pytest.mark.parametrize("generate", [gpipe, one_f_one_b, zero_bubble])
@pytest.mark.parametrize("wrong", [0, -2, 1.0, True])
def test_sizes_below_one_are_refused_together(
    generate: Callable[[int, int], Schedule], wrong: int
) -> None:
    number = rf"\b1\b.* {wrong}\b"
    named = rf"\bnum_stages\b.*{number}.*\bnum_micro_batches\b.*{number}"
    with pytest.raises(ValueError, match=named):
        generate(wrong, wrong)


def test_a_wrong_number_of_stages_a_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^stages_per_device\D*\b1\D*\b0\b"):
        interleaved(2, 2, 0)
