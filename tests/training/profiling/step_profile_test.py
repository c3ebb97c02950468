"""Profiles of steps with synthetic times, whose results are known."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b, zero_bubble
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.bubble import compare
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline
from lingvo_pipe.training.profiling.step_profile import (
    MemoryPeak,
    PlannedStep,
    StepProfile,
    measured_timeline,
    predict,
)
from tests.support.errors import fails

# Multiples of powers of 2, so that sums and differences of times are exact.
COSTS = Costs(
    (
        StageCosts(1 / 64, 3 / 64, send_forward=1 / 128),
        StageCosts(2 / 64, 5 / 64, send_backward=1 / 64),
    ),
    overhead=1 / 1024,
)
SLOW = Costs((StageCosts(10.0, 20.0),) * 2)
SCHEDULES = {
    "gpipe": gpipe(2, 4),
    "recomputed": recomputed(one_f_one_b(2, 4), "always"),
    "zero_bubble": zero_bubble(2, 4),
}
parametrize_schedule = pytest.mark.parametrize(
    "schedule", SCHEDULES.values(), ids=SCHEDULES
)


def _times(timeline: Timeline, clock: float = 0.0) -> list[np.ndarray]:
    """Returns the times that the devices' loops would record."""
    return [
        np.array([timed[1:] for timed in column]) + clock for column in timeline.columns
    ]


def _profile(step: int = 7) -> StepProfile:
    predicted = simulate(gpipe(2, 4), COSTS)
    measured = simulate(gpipe(2, 4), Costs((StageCosts(1 / 16, 1 / 16),) * 2))
    return StepProfile(step, predicted, measured, ["A note."])


@parametrize_schedule
def test_a_timeline_has_the_recorded_times_from_zero_on(
    schedule: Schedule,
) -> None:
    ran = simulate(schedule, COSTS)
    measured = measured_timeline(schedule, _times(ran, clock=4096.0))
    assert measured.schedule == schedule
    assert _shifted(measured, COSTS.overhead) == list(ran.ops())


def _shifted(timeline: Timeline, seconds: float) -> list:
    return [
        (device, TimedOp(op, wait_start + seconds, start + seconds, end + seconds))
        for device, (op, wait_start, start, end) in timeline.ops()
    ]


@pytest.mark.parametrize(
    ("set_back", "fields"),
    [(1 / 64, {"path": "device 1"}), (8.0, {"hint": "Was its clock set meanwhile?"})],
)
def test_times_of_a_clock_that_was_set_back_are_refused(
    set_back: float, fields: dict[str, Any]
) -> None:
    times = _times(simulate(gpipe(2, 4), COSTS))
    times[1][3:] -= set_back
    with fails(**fields):
        measured_timeline(gpipe(2, 4), times)


@parametrize_schedule
def test_the_prediction_is_the_usual_step(schedule: Schedule) -> None:
    """Slower steps do not change it, nor does the step to compare with."""
    usual, slow = simulate(schedule, COSTS), simulate(schedule, SLOW)
    predicted = predict([usual, slow, usual], usual.schedule)
    assert predicted.schedule == schedule
    assert predicted.step_seconds == pytest.approx(usual.step_seconds)
    assert predicted.bubble_fraction == pytest.approx(usual.bubble_fraction)


def test_a_profile_is_written_and_replaced_atomically(tmp_path: Path) -> None:
    directory, profile = tmp_path / "profile", _profile()
    for _ in range(2):
        profile.write(directory)
        names = {path.name for path in directory.iterdir()}
        assert names == {"step-7.png", "step-7.txt", "step-7.trace.json"}
        assert (directory / "step-7.png").read_bytes() == profile.image
        (directory / "step-7.txt").write_text("cut sh")
    assert profile.image.startswith(b"\x89PNG\r\n")
    events = json.loads((directory / "step-7.trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"predicted", "measured"}
    num_ops = sum(map(len, gpipe(2, 4).columns))
    assert sum(event["ph"] == "X" for event in events) == 2 * num_ops


def test_the_text_holds_notes_and_table() -> None:
    profile = _profile()
    title, note, empty, table = profile.text().split("\n", 3)
    assert (title, note, empty) == ("Step 7: predicted, and measured.", "A note.", "")
    assert table == compare(profile.predicted, profile.measured)


def test_the_line_holds_times_and_bubbles() -> None:
    even = Costs((StageCosts(1 / 16, 1 / 16),) * 2)
    uneven = Costs((StageCosts(1 / 8, 1 / 4),) * 2)
    predicted, measured = (simulate(gpipe(2, 4), costs) for costs in (uneven, even))
    assert StepProfile(7, predicted, measured).line() == (
        "step 7: 625.0 ms in the pipeline, predicted 1875.0 ms; "
        "bubble 20.0%, predicted 20.0%"
    )


MIB = 2**20


def _even_timeline(forward: float) -> Timeline:
    stage = StageCosts(forward=forward, backward=2 * forward)
    return simulate(gpipe(2, 4), Costs((stage, stage)))


def _memory(text: str) -> dict[str, list[str]]:
    """Returns MiB by devices: planned and, if present, measured."""
    lines = re.findall(r"^memory\D*(\d(?:, \d)*)(.*)", text, re.MULTILINE)
    return {devices: re.findall(r"([\d.]+) MiB", rest) for devices, rest in lines}


def test_time_and_memory_stand_side_by_side() -> None:
    planned = PlannedStep(_even_timeline(0.010), [3 * MIB, 5 * MIB])
    peaks = [MemoryPeak([0, 1], 9 * MIB)]
    text = planned.comparison(_even_timeline(0.020), peaks)
    (step,) = [line.split() for line in text.splitlines() if line.startswith("step")]
    assert float(step[3]) == pytest.approx(2 * float(step[1]))
    assert _memory(text) == {"0, 1": ["8.0", "9.0"]}
    text = planned.comparison(_even_timeline(0.020), [])
    assert _memory(text) == {"0": ["3.0"], "1": ["5.0"]}


def test_replicas_need_equal_memory() -> None:
    planned = PlannedStep(_even_timeline(0.010), [3 * MIB, 5 * MIB])
    text = planned.comparison(_even_timeline(0.010), [MemoryPeak([0, 1, 2, 3], 0)])
    assert _memory(text)["0, 1, 2, 3"] == ["16.0", "0.0"]
    text = planned.comparison(_even_timeline(0.010), [MemoryPeak([3], 0)])
    assert _memory(text)["3"] == ["5.0", "0.0"]


def test_a_profile_has_both_predictions(tmp_path: Path) -> None:
    profile = StepProfile(7, _even_timeline(0.011), _even_timeline(0.012))
    assert "Planned" not in profile.text()
    planned = PlannedStep(_even_timeline(0.010), [1, 1])
    with_plan = dataclasses.replace(profile, planned=planned)
    assert with_plan.text().startswith(profile.text())
    assert "Planned" in with_plan.text()
    with_plan.write(tmp_path)
    trace = (tmp_path / "step-7.trace.json").read_text()
    assert all(name in trace for name in ("planned", "predicted", "measured"))
