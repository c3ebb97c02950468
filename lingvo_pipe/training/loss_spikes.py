"""Spikes of the loss, from which a run goes back to its last checkpoint.

loss   2.1  2.0  2.1  1.9  2.0 [ 9.7 ]       a spike: over 3 times the median
saved        *          *                    back to here, then on with other batches
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from lingvo_pipe.hyperparams import Params

_NUM_RECENT = 20
_NUM_NEEDED = 5


def define_spike_params(p: Params) -> None:
    """Defines what is a spike among the params of a task's training."""
    p.Define(
        "loss_spike_factor",
        None,
        "A loss that is over so many times the median of the last 20 reported ones is "
        "a spike: the run goes back to its last checkpoint, and on with the batches "
        "after that of the spike. None: losses may be any.",
    )
    p.Define(
        "max_rollbacks",
        3,
        "How often a run may go back to the same checkpoint for a spike of the loss. "
        "One spike more ends the run.",
    )


def check_spike_params(p: Params) -> None:
    """Raises ValueError if a param can't be used."""
    factor, largest = p.loss_spike_factor, p.max_rollbacks
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if factor is not None and not (is_number and factor > 1):
        raise ValueError(
            f"task.train.loss_spike_factor must be a number above 1; got {factor!r}. "
            "None looks for no spikes."
        )
    if not isinstance(largest, int) or isinstance(largest, bool) or largest < 0:
        raise ValueError(
            "task.train.max_rollbacks must be an integer of at least 0; got "
            f"{largest!r}. With 0 the first spike of the loss ends the run."
        )


class LossSpikeError(FloatingPointError):
    """A spike of the loss.

    Attributes:
        step: in which.
    """

    def __init__(self, step: int, loss: float, usual: float):
        super().__init__(
            f"in step {step} the loss is {loss:.4g}; the median of those reported "
            f"before is {usual:.4g}"
        )
        self.step = step


class LossSpikes:
    """Finds losses that stand far above those before them.

    What it finds follows from the losses that are on file, so that a run which was
    killed finds what one would that was not.

    Args:
        factor: see `loss_spike_factor`.
        records: what the run has reported; see `metrics_log`.
    """

    def __init__(self, factor: float | None, records: Iterable[Mapping[str, Any]]):
        self._factor = factor
        losses = (r["loss"] for r in records if r["split"] == "train")
        self._recent: deque[float] = deque(losses, maxlen=_NUM_RECENT)

    def check(self, step: int, loss: float) -> None:
        """Raises LossSpikeError if a step's loss is a spike."""
        if self._factor is None or len(self._recent) < _NUM_NEEDED:
            return
        usual = median(self._recent)
        # For losses below 0 too: as far above the median as if it were positive.
        if loss > usual + (self._factor - 1) * abs(usual):
            raise LossSpikeError(step, loss, usual)

    def add(self, loss: float) -> None:
        """Takes note of a loss that is reported."""
        self._recent.append(loss)
