"""The progress of a training run, as shown to the user. Pure."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

import numpy as np
import tqdm

from lingvo_pipe.pipeline.devices.device_names import device_name


class Progress:
    """Step, speed, utilization, loss and time left, as a bar or as lines.

    Training goes from `start_step` to `num_steps`; a step has `batch_size` examples.
    Speed is measured since the previous report, in seconds by `clock`. If `stream` is
    None, the output is standard error. Use it as a context manager, or close it.
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
        self._time = clock()
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
        """Shows the progress after a step; see `stage_utilization`."""
        now = self._clock()
        speed = (step - self._step) / max(now - self._time, 1e-9)
        self._step, self._time = step, now
        busy = "" if utilization is None else f"stages {utilization:.0%} busy, "
        shown = (
            f"{speed:.3g} steps/s, {speed * self._batch_size:.4g} examples/s, {busy}"
            f"loss {loss:.4f}, {self._time_left(speed)} left"
        )
        if self._bar is None:
            print(
                f"step {step}/{self._num_steps}: {shown}", file=self._stream, flush=True
            )
        else:
            self._bar.n = step
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.refresh()

    def close(self) -> None:
        """Ends the bar's line."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _time_left(self, speed: float) -> str:
        if speed <= 0:
            return "unknown time"
        seconds = round((self._num_steps - self._step) / speed)
        return str(datetime.timedelta(seconds=seconds))


def stage_utilization(
    devices: Sequence[str], times: Sequence[np.ndarray]
) -> float | None:
    """Returns the fraction of a step in which devices worked: 1 minus the bubble.

    Returns None if it is unknown: a GPU has only times of dispatch, several machines
    have several clocks, and a clock may have been set meanwhile. `times` are `[N, 3]`,
    each device's N operations' wait_start, start and end; see `TrainStep.Times`.
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
