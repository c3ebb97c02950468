"""Spikes of the loss, after which a run rolls back to its newest checkpoint.

loss   2.1  2.0  2.1  1.9  2.0 [ 9.7 ]       a spike: over 3 times the median
saved        *          *                    roll back, resume with later batches
"""

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserNumberError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.param_rules import Rule, count, optional

_NUM_RECENT = 20
_MIN_RECENT = 5


def define_spike_params(p: Params) -> None:
    """Adds the params of loss spikes to a task's `train` params."""
    p.Define(
        "loss_spike_factor",
        None,
        "A loss above this multiple of the median of the last 20 reported losses is a "
        "spike: the run rolls back to its newest checkpoint and resumes with the "
        "batches after the spike's. If None, if the median is 0, or before 5 losses "
        "are reported (see report_interval_steps), no loss is a spike.",
    )
    p.Define(
        "max_rollbacks",
        3,
        "Maximum number of roll-backs to the same checkpoint. One more spike of the "
        "loss ends the run.",
    )


SPIKE_RULES = {
    "loss_spike_factor": optional(
        Rule(lambda x: is_number(x) and x > 1, "a number above 1")
    ),
    "max_rollbacks": count(0, "With 0 the first spike of the loss ends the run."),
}


class LossSpikeError(UserNumberError):
    """Error for a spike of the loss in step `step`."""

    def __init__(self, step: int, loss: float, usual: float):
        super().__init__(
            f"in step {step} the loss is {loss:.4g}; the median of the losses reported "
            f"before is {usual:.4g}"
        )
        self.step = step


class LossSpikes:
    """A detector of losses far above earlier ones, which are logged in `records`."""

    def __init__(self, p: Params, records: Iterable[Mapping[str, Any]]):
        self._factor, self._interval = p.loss_spike_factor, p.report_interval_steps
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        for record in records:
            if record["split"] == "train" and "loss" in record:
                self.add(record["step"], record["loss"])

    def check(self, step: int, loss: float) -> None:
        """Raises LossSpikeError if a step's loss is a spike."""
        if self._factor is None or len(self._recent) < _MIN_RECENT:
            return
        usual = median(self._recent)
        # A negative median counts with its absolute value, and 0 has no multiples.
        if usual and loss > usual + (self._factor - 1) * abs(usual):
            raise LossSpikeError(step, loss, usual)

    def add(self, step: int, loss: float) -> None:
        """Adds a loss that was reported, if the report was due at an interval.

        A run that resumes for more steps has one more report, of its old last step.
        """
        if step % self._interval == 0:
            self._recent.append(loss)
