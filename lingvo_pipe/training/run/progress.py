"""The progress of a training run, as shown to the user."""

import collections
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TextIO

import numpy as np
import tqdm

from lingvo_pipe.pipeline.devices.device_names import device_name

_NUM_SMOOTHED = 10  # The time left follows from the speed over these reports.
# A file has a line for each of the first reports. A later report gets a line if at
# least 2% of the run's time so far has passed since the last line.
_NUM_FIRST_LINES, _LINE_GAP = 20, 0.02


class Progress(AbstractContextManager["Progress"]):
    """A display of step, speed, utilization, loss and time left, as a bar or lines.

    The speed is measured since the previous report, and the mean speed since the
    start. The time left follows from the speed over the last few reports. A terminal
    shows a bar. A file gets a line for each of the first reports, and for few later
    ones. The default `stream` is standard error.
    """

    def __init__(
        self,
        num_steps: int,
        batch_size: int,
        start_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._step = start_step
        # Step and time of the start and of the last reports.
        self._start = (start_step, clock())
        self._reports = collections.deque([self._start], _NUM_SMOOTHED + 1)
        self._num_lines, self._line_time = 0, self._start[1]
        self._time = self._start[1]
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm.tqdm(
                total=num_steps,
                initial=start_step,
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
            )

    def report(self, step: int, loss: float, utilization: float | None = None) -> None:
        """Shows the progress after a step, with the `stage_utilization` if known."""
        last, now = self._reports[-1], (step, self._clock())
        self._step = step
        self._reports.append(now)
        speed, smoothed = _speed(last, now), _speed(self._reports[0], now)
        busy = "" if utilization is None else f"stages {utilization:.0%} busy, "
        shown = (
            f"{speed:.3g} steps/s (mean {_speed(self._start, now):.3g}), "
            f"{speed * self._batch_size:.4g} examples/s, {busy}loss {loss:.4f}, "
            f"{self._time_left(smoothed)} left"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.n = step
            self._bar.refresh()
        elif self._is_line_due(now[1]):
            print(
                f"step {step}/{self._num_steps}: {shown}", file=self._stream, flush=True
            )

    def advance(self, step: int) -> None:
        """Notes that a step is done, and moves the bar."""
        self._step, self._time = step, self._clock()
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def summary(self) -> str:
        """Returns a text with the number of trained steps and the time they took."""
        first, start = self._start
        return f"{self._step - first:,} steps in {_duration(self._time - start)}"

    def _is_line_due(self, now: float) -> bool:
        """Returns whether this report gets a line in a file, and counts the line."""
        is_last = self._step >= self._num_steps
        gap = (now - self._start[1]) * _LINE_GAP
        if self._num_lines >= _NUM_FIRST_LINES and now - self._line_time < gap:
            return is_last
        self._num_lines, self._line_time = self._num_lines + 1, now
        return True

    def close(self) -> None:
        """Ends the bar's line."""
        if self._bar is not None:
            self._bar.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _time_left(self, speed: float) -> str:
        if speed <= 0:
            return "unknown time"
        return _duration((self._num_steps - self._step) / speed)


def _speed(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[0] - start[0]) / max(end[1] - start[1], 1e-9)


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def stage_utilization(
    devices: Sequence[str], times: Sequence[np.ndarray]
) -> float | None:
    """Returns the mean fraction of a step in which devices worked, or None if unknown.

    The fraction is unknown for GPUs, which have only times of dispatch, for several
    machines, which have several clocks, and if a clock was set. `times`, from
    `TrainStep.Times`, has an array `[N, 3]` for each device.
    """
    names = [device_name(device) for device in devices]
    several_clocks = len({name.worker for name in names}) > 1
    if several_clocks or any(name.kind != "CPU" for name in names):
        return None
    if any((np.diff(rows.ravel()) < 0).any() for rows in times):
        return None
    rows = np.concatenate(times)
    seconds = rows[:, 2].max() - rows[:, 0].min()
    busy = (rows[:, 2] - rows[:, 1]).sum()
    return float(busy / (seconds * len(times))) if seconds else None
