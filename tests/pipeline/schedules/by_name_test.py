import errno
import os
import re
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.schedules.by_name import SCHEDULE_NAMES, make_schedule
from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.csv_file import write_csv
from lingvo_pipe.pipeline.schedules.recompute import POLICIES, recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.split_backward import (
    dualpipe_v,
    interleaved_zero_bubble,
    zero_bubble_v,
)


def test_names_make_their_schedules() -> None:
    v_shaped = {"zero_bubble_v": zero_bubble_v(2, 4), "dualpipe_v": dualpipe_v(2, 4)}
    made = {
        name: make_schedule(name, 2, 4, stages_per_device=1 + (name in v_shaped))
        for name in SCHEDULE_NAMES
    }
    assert made == {
        **v_shaped,
        "interleaved_zero_bubble": zero_bubble(2, 4),
        "gpipe": recomputed(gpipe(2, 4), "always"),
        "1f1b": recomputed(one_f_one_b(2, 4), "always"),
        "local": recomputed(one_f_one_b(2, 4), "always"),
        "interleaved": recomputed(one_f_one_b(2, 4), "always"),
        "zero_bubble": zero_bubble(2, 4),
    }
    assert make_schedule("interleaved", 2, 4, stages_per_device=3) == recomputed(
        interleaved(2, 4, 3), "always"
    )
    found = make_schedule("interleaved_zero_bubble", 2, 4, stages_per_device=3)
    assert found == interleaved_zero_bubble(2, 4, 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_is_followed(policy: str) -> None:
    made = make_schedule("1f1b", 2, 4, recompute=policy)
    assert made == recomputed(one_f_one_b(2, 4), policy)


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> str:
    return str(tmp_path / "mine.csv")


def test_a_file_stays_as_it_is(file: str) -> None:
    for schedule in (gpipe(2, 3), recomputed(gpipe(2, 3), "except_last")):
        write_csv(schedule, file)
        assert make_schedule(file, 2, 3) == schedule


def test_a_file_follows_a_given_policy(file: str) -> None:
    write_csv(gpipe(2, 3), file)
    expected = recomputed(gpipe(2, 3), "always")
    assert make_schedule(file, 2, 3, recompute="always") == expected


def test_a_list_of_cells_recomputes_where_a_file_does_or_else_everywhere(
    file: str,
) -> None:
    expected = recomputed(gpipe(2, 3), "always")
    for recompute in ([], [1]):
        assert make_schedule("gpipe", 2, 3, recompute=recompute) == expected
        write_csv(gpipe(2, 3), file)
        assert make_schedule(file, 2, 3, recompute=recompute) == expected
        schedule = recomputed(gpipe(2, 3), "except_last")
        write_csv(schedule, file)
        assert make_schedule(file, 2, 3, recompute=recompute) == schedule


def test_an_absent_file_is_named(file: str) -> None:
    absent = f"'{re.escape(file)}'.*{os.strerror(errno.ENOENT)}"
    with pytest.raises(ValueError, match=absent):
        make_schedule(file, 2, 3)


def test_a_file_may_have_several_stages_a_device(file: str) -> None:
    write_csv(interleaved(2, 3, 2), file)
    assert make_schedule(file, 2, 3, stages_per_device=2) == interleaved(2, 3, 2)


@pytest.mark.parametrize("sizes", [(3, 3, 1), (2, 4, 1), (2, 3, 2)])
def test_a_file_of_other_sizes_is_refused(
    file: str, sizes: tuple[int, int, int]
) -> None:
    write_csv(gpipe(2, 3), file)
    expected = rf"\b{sizes[0]}\D*\b{sizes[0] * sizes[2]}\D*\b{sizes[1]}\b"
    with pytest.raises(ValueError, match=rf"mine\.csv'\D*2\D*2\D*3\D*{expected}"):
        make_schedule(file, *sizes)


def test_a_file_that_cannot_be_run_is_named(file: str) -> None:
    columns, missing = gpipe(2, 3).columns, Op(Kind.BACKWARD, 2, 1)
    write_csv(Schedule(2, 3, (columns[0], columns[1][:-1])), file)
    with pytest.raises(ValueError, match=rf"{re.escape(file)}.*{missing}\D*\b0\b"):
        make_schedule(file, 2, 3)


def test_a_file_without_backward_passes_is_refused(file: str) -> None:
    write_csv(gpipe(2, 3).forward_part(), file)
    with pytest.raises(ValueError, match=rf"{re.escape(file)}.*\bbackward\b"):
        make_schedule(file, 2, 3)


@pytest.mark.parametrize(
    ("name", "near"), [("gpip", "'gpipe'"), ("1F1B", "'1f1b'"), ("zerobubble", "'zer")]
)
def test_an_unknown_name_is_refused_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*{near}"):
        make_schedule(name, 2, 2)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble"])
def test_several_stages_a_device_are_for_interleaved(name: str) -> None:
    given = r"\bstages_per_device=2\b"
    with pytest.raises(ValueError, match=f"'{name}'.*{given}.*'interleaved'"):
        make_schedule(name, 2, 2, stages_per_device=2)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("name", ["zero_bubble_v", "dualpipe_v"])
def test_v_shapes_have_two_stages_a_device(name: str, number: int) -> None:
    given = rf"\bstages_per_device={number}\b"
    with pytest.raises(ValueError, match=f"'{name}'.*{given}"):
        make_schedule(name, 2, 4, stages_per_device=number)


@pytest.mark.parametrize("name", [*SCHEDULE_NAMES, "some.csv"])
def test_impossible_sizes_are_refused_together(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"num_devices\b.*num_micro_.*stages_per_device"
    ):
        make_schedule(name, 0, 0, 0)
