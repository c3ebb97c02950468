"""What a training run shows of its progress."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from typing import TextIO

import tqdm


class Progress:
    """Shows step, speed, how busy stages are, loss and time left.

    It is a bar on a terminal, else lines. Speed is that since the report before. Use it
    as a context manager, or close it.

    Args:
        num_steps: The step at which training ends.
        batch_size: Examples in a step.
        start_step: The steps already trained.
        stream: Where to write; None for standard error.
        clock: Returns the time in seconds.
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
        self._bar = self._create_bar() if self._stream.isatty() else None

    def report(self, step: int, loss: float, utilisation: float | None = None) -> None:
        """Shows that `step` steps are trained.

        Args:
            step: how many.
            loss: of the last.
            utilisation: the part of the stages' time in which they worked in the
                last; None: unknown.
        """
        now = self._clock()
        speed = (step - self._step) / max(now - self._time, 1e-9)
        self._step, self._time = step, now
        busy = "" if utilisation is None else f"stages {utilisation:.0%} busy, "
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
        """Leaves the last state on the screen and ends its line."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _create_bar(self) -> tqdm.tqdm:
        return tqdm.tqdm(
            total=self._num_steps,
            initial=self._step,
            file=self._stream,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
        )

    def _time_left(self, speed: float) -> str:
        if speed <= 0:
            return "unknown time"
        seconds = round((self._num_steps - self._step) / speed)
        return str(datetime.timedelta(seconds=seconds))
