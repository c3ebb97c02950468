import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.building_block import v_half, v_min
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
from tests.support.errors import fails


def test_names_make_their_schedules() -> None:
    v_shaped = {
        "zero_bubble_v": zero_bubble_v(2, 4),
        "v_half": v_half(2, 4),
        "v_min": v_min(2, 4),
        "dualpipe_v": dualpipe_v(2, 4),
    }
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


def test_a_file_follows_a_given_policy_or_stays_as_it_is(file: str) -> None:
    for schedule in (recomputed(gpipe(2, 3), "except_last"), gpipe(2, 3)):
        write_csv(schedule, file)
        assert make_schedule(file, 2, 3) == schedule
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


def test_a_file_may_have_several_stages_a_device(file: str) -> None:
    write_csv(interleaved(2, 3, 2), file)
    assert make_schedule(file, 2, 3, stages_per_device=2) == interleaved(2, 3, 2)


def test_a_file_that_cannot_train_the_pipeline_is_refused(file: str) -> None:
    absent = f"'{re.escape(file)}'.*{os.strerror(errno.ENOENT)}"
    with pytest.raises(UserValueError, match=absent):
        make_schedule(file, 2, 3)
    write_csv(gpipe(2, 3), file)
    for num_devices, num_micro_batches, per_device in [(3, 3, 1), (2, 4, 1), (2, 3, 2)]:
        num_stages = num_devices * per_device
        words = "{} devices, {} stages and {} micro-batches"
        sizes = words.format(num_devices, num_stages, num_micro_batches)
        got = f"{words.format(2, 2, 3)} in {file}"
        with fails(path="schedule", expected=f"a file for {sizes}", got=got):
            make_schedule(file, num_devices, num_micro_batches, per_device)
    columns, missing = gpipe(2, 3).columns, Op(Kind.BACKWARD, 2, 1)
    write_csv(Schedule(2, 3, (columns[0], columns[1][:-1])), file)
    with fails(path=file) as error:
        make_schedule(file, 2, 3)
    assert re.search(rf"{missing}\D*\b0\b", str(error.value))
    write_csv(gpipe(2, 3).forward_part(), file)
    with fails(path="schedule", got=file):
        make_schedule(file, 2, 3)


@pytest.mark.parametrize(
    ("name", "per_device", "path", "hint"),
    [
        ("gpip", 1, "schedule", "'gpipe'"),
        ("1F1B", 1, "schedule", "'1f1b'"),
        ("gpipe", 2, "stages_per_device", "'interleaved'"),
        ("local", 2, "stages_per_device", "'interleaved'"),
        ("zero_bubble_v", 1, "stages_per_device", "splits"),
        ("v_half", 1, "stages_per_device", "splits"),
        ("v_min", 4, "stages_per_device", "splits"),
        ("dualpipe_v", 3, "stages_per_device", "splits"),
    ],
)
def test_wrong_arguments_are_refused(
    name: str, per_device: int, path: str, hint: str
) -> None:
    got = name if path == "schedule" else per_device
    with fails(path=path, got=got) as error:
        make_schedule(name, 2, 2, per_device)
    assert hint in error.value.hint


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "some.csv"])
@pytest.mark.parametrize("wrong", [0, 1.0, True])
def test_impossible_sizes_are_refused_together(name: str, wrong: Any) -> None:
    with fails() as error:
        make_schedule(name, wrong, wrong, wrong)
    assert [problem.path for problem in error.value.problems] == [
        "num_devices",
        "num_micro_batches",
        "stages_per_device",
    ]
