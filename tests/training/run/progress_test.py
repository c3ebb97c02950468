"""Progress: lines for files, a bar for terminals, speed and utilization where known."""

import io

import numpy as np
import pytest

from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.training.profiling.step_profile import measured_timeline
from lingvo_pipe.training.run.progress import Progress, stage_utilization


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show(stream, seconds, reports, **kwargs):
    """Reports (step, loss) pairs at the given times; the first time is the start."""
    clock = iter(seconds).__next__
    with Progress(100, batch_size=8, stream=stream, clock=clock, **kwargs) as progress:
        for step, loss in reports:
            progress.report(step, loss)
    return stream.getvalue()


def test_a_file_gets_a_line_for_each_report():
    shown = show(io.StringIO(), [10.0, 15.0, 16.0], [(10, 1.5), (20, float("nan"))])
    assert shown.splitlines() == [
        "step 10/100: 2 steps/s (mean 2), 16 examples/s, loss 1.5000, 0:00:45 left",
        "step 20/100: 10 steps/s (mean 3.33), 80 examples/s, loss nan, 0:00:24 left",
    ]


def test_a_resumed_run_counts_only_its_own_steps():
    shown = show(io.StringIO(), [0.0, 5.0], [(60, 1.0)], start_step=50)
    assert shown.startswith("step 60/100: 2 steps/s")
    assert "0:00:20 left" in shown


def test_a_terminal_gets_a_bar():
    shown = show(Terminal(), [0.0, 5.0], [(50, 1.5)])
    last = shown.split("\r")[-1]
    assert last.startswith(" 50%|")
    assert (
        "50/100, 10 steps/s (mean 10), 80 examples/s, loss 1.5000, 0:00:05 left" in last
    )
    assert last.endswith("\n")


def test_the_time_left_is_by_the_last_reports():
    """A slow start is forgotten, and one slow report changes little."""
    steps = range(1, 16)
    seconds = [0.0, *(1000.0 + step for step in steps)]
    shown = show(io.StringIO(), seconds, [(step, 1.0) for step in steps])
    last = shown.splitlines()[-1]
    assert "(mean 0.0148)" in last
    assert "0:01:25 left" in last
    seconds[-1] += 10
    shown = show(io.StringIO(), seconds, [(step, 1.0) for step in steps])
    assert "0:02:50 left" in shown.splitlines()[-1]  # 85 steps of 20 s / 10.


def test_a_file_gets_few_lines_of_a_long_run():
    num = 20_000
    clock, stream = iter([0.0, *range(1, num + 1)]).__next__, io.StringIO()
    with Progress(num, batch_size=8, stream=stream, clock=clock) as progress:
        for step in range(1, num + 1):
            progress.report(step, 1.0)
    steps = [int(line[5 : line.index("/")]) for line in stream.getvalue().splitlines()]
    assert steps[:20] == list(range(1, 21))
    assert steps[-1] == num
    assert 100 < len(steps) < 400
    limits = 0.02 * np.array(steps[1:]) + 1
    assert (np.diff(steps) <= limits).all()


def test_a_bar_moves_between_reports():
    stream, clock = Terminal(), iter([0.0, 5.0, 6.0, 7.0]).__next__
    with Progress(100, batch_size=8, stream=stream, clock=clock) as progress:
        progress.report(50, 1.5)
        progress.advance(51)
    assert "51/100, 10 steps/s" in stream.getvalue().split("\r")[-1]


def test_the_summary_is_of_this_runs_steps():
    clock = iter([100.0, 105.0, 190.0]).__next__
    with Progress(2000, 8, 500, io.StringIO(), clock) as progress:
        progress.report(550, 1.5)
        progress.advance(1850)
    assert progress.summary() == "1,350 steps in 0:01:30"


def test_utilization_is_shown_where_it_is_known():
    stream, clock = io.StringIO(), iter([0.0, 5.0, 6.0]).__next__
    with Progress(100, batch_size=8, stream=stream, clock=clock) as progress:
        progress.report(10, 1.5, utilization=0.914)
        progress.report(20, 1.5, utilization=None)
    known, unknown = stream.getvalue().splitlines()
    assert "16 examples/s, stages 91% busy, loss 1.5000" in known
    assert "busy" not in unknown


@pytest.mark.parametrize(
    ("step", "left"), [(0, "unknown time left"), (100, "0:00:00 left")]
)
def test_time_left_at_start_and_end(step, left):
    assert left in show(io.StringIO(), [0.0, 5.0], [(step, 1.0)])


def times_of(timeline, clock=0.0):
    """Returns the times that the devices' loops would measure."""
    return [
        np.array([timed[1:] for timed in column]) + clock for column in timeline.columns
    ]


@pytest.mark.parametrize(
    "schedule",
    [gpipe(1, 2), one_f_one_b(3, 4), zero_bubble(2, 4), interleaved(2, 4, 2)],
)
def test_utilization_is_1_minus_the_bubble(schedule):
    stages = [StageCosts(1.0 + k, 2.0, send_forward=0.5) for k in range(8)]
    costs = Costs(tuple(stages[: schedule.num_stages]), overhead=0.125)
    times = times_of(simulate(schedule, costs), clock=1e6)
    devices = [f"cpu:{device}" for device in range(len(schedule.columns))]
    bubble = measured_timeline(schedule, times).bubble_fraction
    assert stage_utilization(devices, times) == pytest.approx(1 - bubble, rel=1e-9)


@pytest.mark.parametrize(
    ("devices", "is_known"),
    [
        (["cpu:0", "/job:localhost/replica:0/task:0/device:CPU:1"], True),
        (["worker:1/cpu:0", "worker:1/cpu:1"], True),
        (["worker:0/cpu:0", "worker:1/cpu:0"], False),
        (["cpu:0", "worker:0/cpu:0"], False),
        (["cpu:0", "gpu:0"], False),
        (["gpu:0", "gpu:1"], False),
    ],
)
def test_utilization_is_known_for_cpus_with_one_clock(devices, is_known):
    timeline = simulate(gpipe(2, 4), Costs((StageCosts(1.0, 2.0),) * 2))
    assert (stage_utilization(devices, times_of(timeline)) is not None) == is_known


def test_utilization_is_unknown_if_the_clock_was_set():
    times = np.array([[10.0, 10.5, 12.0], [13.0, 14.0, 15.0]])
    assert stage_utilization(["cpu:0"], [times]) == pytest.approx(2.5 / 5)
    for moment in range(1, times.size):
        later = np.arange(times.size).reshape(times.shape) >= moment
        assert stage_utilization(["cpu:0"], [times - 100.0 * later]) is None


def test_utilization_is_unknown_for_steps_too_short_for_the_clock():
    assert stage_utilization(["cpu:0"], [np.full([2, 3], 5.0)]) is None
