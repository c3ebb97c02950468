"""Steps of the trainer's loop and bare steps of the same model, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from lingvo_pipe.core.errors import UserValueError

# After a turn of bare steps the input has prefetched batches.
_NUM_WARM = 3


def check_turns(num_turns: int, num_steps: int, save_interval: int) -> None:
    """Checks that a run would measure steps with and without a save.

    Raises:
        ValueError: if the run is too short for this.
    """
    kinds = {saves for *_, saves in _measured(num_turns, num_steps, save_interval)}
    if kinds != {True, False}:
        raise UserValueError(
            path="--blocks and --steps",
            expected=f"steps with and without a save in all {save_interval} steps, not "
            f"counting the first and last turn, and {_NUM_WARM} steps of each",
            got=(num_turns, num_steps),
            hint="Raise one of them.",
        )


def _measured(
    num_turns: int, num_steps: int, save_interval: int
) -> Iterator[tuple[int, int, bool]]:
    """Yields (turn, index, whether a save is near) for each step that counts.

    A save is near if it comes just after the step, or runs during the step.
    """
    for turn in range(1, num_turns - 1):
        for i in range(_NUM_WARM, num_steps):
            yield turn, i, (turn * num_steps + i + 1) % save_interval in (0, 1)


class InterleavedSteps:
    """An input for the trainer's loop that records when the loop requests batches.

    A step of the trainer lasts from one batch to the next. After each turn of the
    trainer, the same number of bare steps of the model follows.
    """

    def __init__(
        self,
        train_input: Any,
        bare: Callable[[Any], Any],
        num_steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.params = train_input.params
        self._input, self._bare = train_input, bare
        self._num_steps, self._clock = num_steps, clock
        self._trainer_times: list[list[float]] = []
        self._bare_times: list[list[float]] = []

    def TrainBatches(self, start_step: int = 0) -> InterleavedSteps:
        """Returns an iterable of the input's batches that also runs the bare steps."""
        self._batches = self._input.TrainBatches(start_step)
        self.element_spec = self._batches.element_spec
        return self

    def table(self, save_interval: int) -> str:
        """Returns the trainer's overhead as text."""
        # The first turn warms up. No bare steps follow the last turn.
        turns = list(zip(self._trainer_times[:-1], self._bare_times, strict=True))[1:]
        ratios = [median(trainer[_NUM_WARM:]) / median(bare) for trainer, bare in turns]
        step = median(x for trainer, _ in turns for x in trainer[_NUM_WARM:])
        stall = self._stall(save_interval)
        return (
            f"step of the trainer: {1e3 * step:.1f} ms, {median(ratios):.3f} times "
            f"the bare one ({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} "
            "turns)\n"
            f"a checkpoint stalls training for {1e3 * stall:.1f} ms, "
            f"{stall / step:.2f} steps"
        )

    def _stall(self, interval: int) -> float:
        """Returns the extra seconds of the steps before and during a save, in total."""
        times: dict[bool, list[float]] = {True: [], False: []}
        turns = self._trainer_times
        for turn, i, saves in _measured(len(turns), self._num_steps, interval):
            times[saves].append(turns[turn][i])
        return 2 * max(0.0, sum(times[True]) / len(times[True]) - median(times[False]))

    def __iter__(self) -> Iterator[Any]:
        start = None
        for number, batch in enumerate(self._batches):
            now = self._clock()
            if start is not None:
                self._trainer_times[-1].append(now - start)
            if number % self._num_steps == 0:
                if number:
                    self._bare_times.append([])
                    for _ in range(self._num_steps):
                        now = self._clock()
                        self._bare(batch)
                        self._bare_times[-1].append(self._clock() - now)
                self._trainer_times.append([])
            start = self._clock()
            yield batch
