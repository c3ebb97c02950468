"""Progress: lines for files, a bar for terminals, rates by the given clock."""

import io

import pytest

from lingvo_pipe.training.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show(stream, seconds, reports, **kwargs):
    """Reports (step, loss) pairs at the given times, the first that of the start."""
    clock = iter(seconds).__next__
    with Progress(100, batch_size=8, stream=stream, clock=clock, **kwargs) as progress:
        for step, loss in reports:
            progress.report(step, loss)
    return stream.getvalue()


def test_a_file_gets_a_line_for_each_report():
    shown = show(io.StringIO(), [10.0, 15.0, 16.0], [(10, 1.5), (20, float("nan"))])
    assert shown.splitlines() == [
        "step 10/100: 2 steps/s, 16 examples/s, loss 1.5000, 0:00:45 left",
        "step 20/100: 10 steps/s, 80 examples/s, loss nan, 0:00:08 left",
    ]


def test_a_resumed_run_counts_only_its_own_steps():
    shown = show(io.StringIO(), [0.0, 5.0], [(60, 1.0)], start_step=50)
    assert shown.startswith("step 60/100: 2 steps/s")
    assert "0:00:20 left" in shown


def test_a_terminal_gets_a_bar():
    shown = show(Terminal(), [0.0, 5.0], [(50, 1.5)])
    last = shown.split("\r")[-1]
    assert last.startswith(" 50%|")
    assert "50/100, 10 steps/s, 80 examples/s, loss 1.5000, 0:00:05 left" in last
    assert last.endswith("\n")


def test_how_busy_stages_are_is_told_where_it_is_known():
    stream, clock = io.StringIO(), iter([0.0, 5.0, 6.0]).__next__
    with Progress(100, batch_size=8, stream=stream, clock=clock) as progress:
        progress.report(10, 1.5, utilisation=0.914)
        progress.report(20, 1.5, utilisation=None)
    known, unknown = stream.getvalue().splitlines()
    assert "16 examples/s, stages 91% busy, loss 1.5000" in known
    assert "busy" not in unknown


@pytest.mark.parametrize(
    ("step", "left"), [(0, "unknown time left"), (100, "0:00:00 left")]
)
def test_time_left_at_the_ends(step, left):
    assert left in show(io.StringIO(), [0.0, 5.0], [(step, 1.0)])
