"""The times of checkpoints: by steps, by the clock, and on request."""

import time
from collections.abc import Callable

from lingvo_pipe.hyperparams import Params

_POLL_SECONDS = 0.1


class SaveTimes:
    """The times of checkpoints that params of `task.train` or a request ask for.

    Attributes:
        only_due: whether neither a request nor a signal causes a checkpoint. This holds
            for a run that may roll back: the step to which it rolls back would depend
            on when they come.
    """

    def __init__(
        self,
        params: Params,
        request: "SaveRequest",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.only_due = params.loss_spike_factor is not None
        self._request = request
        self._steps = params.save_interval_steps
        self._seconds = params.save_interval_seconds
        self._clock, self._last = clock, clock()

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after `step` steps."""
        is_asked = self._request.is_asked and not self.only_due
        if step % self._steps == 0 or is_asked:
            return True
        return self._seconds is not None and self._clock() - self._last >= self._seconds

    def restart_clock(self) -> None:
        """Counts the seconds from now on, since a checkpoint has been started."""
        self._last = self._clock()


class SaveRequest:
    """A request for a checkpoint, from another thread, which then restarts the process.

    The run waits for the restart for up to `patience` seconds. `is_saved` is true
    while there is a checkpoint of all steps so far, or its writing has begun. It turns
    false before the run waits for the next batch, because a request may come during the
    wait. `is_writing` returns whether a checkpoint is being written.
    """

    def __init__(self, patience: float = 10.0) -> None:
        self._patience = patience
        self.is_asked, self.is_saved = False, True
        self.is_writing: Callable[[], bool] = lambda: False

    def ask(self) -> bool:
        """Asks for a checkpoint. Returns whether all steps so far are saved."""
        self.is_asked = True
        return self.is_saved and not self.is_writing()

    def wait_for_restart(self, is_stopping: Callable[[], bool]) -> None:
        """Waits for the restart, unless the run stops, or the restart takes long."""
        end = time.monotonic() + self._patience
        while time.monotonic() < end and not is_stopping():
            time.sleep(_POLL_SECONDS)
        self.is_asked = False
