"""The steps after which a run writes a checkpoint, by their number and by the clock."""

import time
from collections.abc import Callable

from lingvo_pipe.hyperparams import Params


class SaveTimes:
    """The times of checkpoints that params of `task.train` ask for."""

    def __init__(
        self, params: Params, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = params.save_interval_steps
        self._seconds = params.save_interval_seconds
        self._clock, self._last = clock, clock()

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after `step` steps."""
        if step % self._steps == 0:
            return True
        return self._seconds is not None and self._clock() - self._last >= self._seconds

    def restart_clock(self) -> None:
        """Counts the seconds from now on, since a checkpoint has been started."""
        self._last = self._clock()
