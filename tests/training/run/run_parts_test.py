"""The parts of a run: resumed, cut by roll-backs, timed without the build, damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.run import run_parts
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_parts import (
    RunPart,
    disturbances,
    kinds_note,
    read_parts,
)
from tests.support.errors import fails
from tests.training.toy_run import STEPS, Input, batch, make_task, resumed_steps, run

DATA = Input(*map(batch, range(STEPS + 1)))


def steps(path: Path) -> list[tuple[int, int]]:
    return [(part.after_step, part.last_step) for part in read_parts(path)]


def test_each_start_is_a_part(tmp_path: Path) -> None:
    path, logged = RunDirectory(tmp_path, "toy.Toy").parts_path, list[str]()
    for last in (1, STEPS):
        run(make_task(max_steps=last), DATA, tmp_path, logged.append)
    assert not any("kind of device" in line for line in logged)
    assert steps(path) == [(0, 1), (1, STEPS)]
    first, second = read_parts(path)
    assert first.examples_per_second is None  # Its only step was built, too.
    assert 0 < second.train_seconds < second.seconds
    assert second.num_steps == STEPS - 2
    assert second.place.startswith("parameters: 32; stages: 1 (cpu:0)")


@pytest.mark.exhaustive
def test_a_resume_on_another_kind_of_device_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an earlier part was on this kind, and the last one was not."""
    notes = []
    for last, setting in enumerate(["0", "1", "0"], 1):
        monkeypatch.setenv("TF_CUDNN_DETERMINISTIC", setting)
        logged: list[str] = []
        run(make_task(max_steps=last), DATA, tmp_path, logged.append)
        notes.append([x for x in logged if "TF_CUDNN_DETERMINISTIC" in x])
    assert list(map(len, notes)) == [0, 1, 1]
    assert re.search(r"settings: \w+=0 before, \w+=1 now\b", notes[1][0])
    kinds = [part.device_kinds for part in read_parts(tmp_path / "parts.json")]
    assert [kind["threads"] for of_part in kinds for kind in of_part] == ["1"] * 3


def test_a_part_that_is_cut_off_ends_in_the_middle_of_its_time() -> None:
    part = RunPart(4, "here", last_step=8, begin=10.0, end=30.0, has_stopped=True)
    part.cut_off(8)
    assert (part.last_step, part.end, part.has_stopped) == (8, 30.0, True)
    part.cut_off(5)
    assert (part.last_step, part.end, part.has_stopped) == (5, 15.0, False)


def test_other_kinds_are_named_as_they_were_and_are() -> None:
    parts = [RunPart(0, "here", device_kinds=[{"type": "CPU"}])]
    assert "CPU before, GPU now" in kinds_note(parts, 5, [{"type": "GPU"}])
    assert kinds_note(parts, 5, [{"type": "CPU"}]) == ""
    assert kinds_note([], 5, [{"type": "CPU"}]) == ""
    parts.append(RunPart(3, "there", device_kinds=[{"type": "GPU"}]))
    assert kinds_note(parts, 5, [{"type": "GPU"}]) == ""
    assert "GPU before, CPU now" in kinds_note(parts, 5, [{"type": "CPU"}])
    assert kinds_note(parts, 3, [{"type": "CPU"}]) == ""


@pytest.mark.exhaustive
def test_a_part_of_an_old_run_is_of_an_unknown_kind(tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    logged: list[str] = []
    run(make_task(max_steps=1), DATA, tmp_path)
    (record,) = json.loads(path.read_text())
    del record["device_kinds"]
    path.write_text(json.dumps([record]))
    run(make_task(max_steps=2), DATA, tmp_path, logged.append)
    assert resumed_steps(logged) == [1]
    assert not any("kind of device" in line for line in logged)


def test_a_part_that_goes_back_cuts_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    for start, last in ((0, 4), (4, 9), (2, 5), (5, 7), (7, 0), (0, 3)):
        RunPart(start, "here", last_step=last).write(path)
        if start in (5, 7):  # The last has saved no step.
            assert steps(path) == [(0, 2), (2, 5), (5, 7)]
    assert steps(path) == [(0, 3)]


class Clock:
    """A clock that a test sets, in place of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


def test_speed_is_of_all_calls_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(run_parts, "time", clock)
    part = RunPart(0, "here", 0.25)
    for seconds, num_steps in ((4.0, 1), (1.0, 3), (0.5, 2)):
        with part.timing(num_steps, batch_size=4):
            clock.now += seconds
    assert part.begin == 1e9
    assert part.num_steps == 5
    assert part.train_seconds == 1.5
    assert part.examples_per_second == 20 / 1.5
    part.stages_busy, part.seconds = 0.5, 3725.0
    assert re.fullmatch(
        r"\d+-\d+-\d+ \d+:\d+:\d+ \w+; here; bubble 25\.0% .*; stages 50\.0% .*; "
        r"time 1:02:05; 13\.33 examples/s",
        part.text(),
    )


def test_a_disturbance_costs_the_time_between_parts() -> None:
    cause = "worker:1 is gone."
    first = RunPart(0, "here", last_step=10, cause=cause, begin=100.0, end=200.0)
    second = RunPart(6, "here", last_step=20, begin=215.0, end=300.0, cause="A spike.")
    third = RunPart(20, "here", last_step=21, begin=900.0)
    first.cut_off(6)
    assert (first.last_step, first.end) == (6, 160.0)
    assert disturbances([first, second, third]) == [
        "after step 0: worker:1 is gone.",
        "after step 6: 0:00:55 lost. A spike.",
        "after step 20: 0:10:00 lost. The trainer was started again.",
    ]
    assert not disturbances([RunPart(0, "here"), RunPart(3, "here")])
    second.begin = 155.0  # By a clock that is behind.
    assert disturbances([first, second])[1].startswith("after step 6: 0:00:00 lost.")


def test_a_planned_stop_is_no_disturbance() -> None:
    first = RunPart(0, "", last_step=10, begin=100.0, end=200.0, has_stopped=True)
    second = RunPart(10, "", last_step=20, begin=900.0)
    assert disturbances([first, second]) == []
    second.cause = "worker:1 is gone."
    assert disturbances([first, second]) == [
        f"after step 10: 0:11:40 lost. {second.cause}"
    ]
    first.last_step, second.cause = 12, ""
    first.cut_off(10)
    assert len(disturbances([first, second])) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"[",
        b"[1]",
        b'[{"after_step": 0}]',
        b'[{"after_step": "0", "place": ""}]',
        b'[{"after_step": 0, "place": "", "seconds": 1e300}]',
        b'[{"after_step": 0, "place": 1}]',
        b'[{"after_step": 0, "place": "", "begin": 1234567890123456789}]',
        b'[{"after_step": 0, "place": "", "device_kinds": [{"threads": 1}]}]',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "parts.json"
    path.write_bytes(content)
    with fails(UserDamageError, path=str(path)):
        read_parts(path)


def test_all_that_is_written_is_read(tmp_path: Path) -> None:
    part = RunPart(3, "here", 0.5, last_step=5, stages_busy=0.25)
    part.write(tmp_path / "parts.json")
    (again,) = read_parts(tmp_path / "parts.json")
    assert again == part
    assert len(json.loads((tmp_path / "parts.json").read_text())) == 1
