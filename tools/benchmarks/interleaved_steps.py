"""A trainer's steps and bare steps, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

# After a turn of bare steps the input has prefetched batches.
_NUM_WARM = 3


class InterleavedSteps:
    """An input for the trainer's loop that records when the loop requests batches.

    A trainer's step lasts from the moment it gets a batch until it gets the next one.
    After each turn of the trainer, equally many bare steps of the model follow.
    """

    def __init__(
        self,
        train_input: Any,
        bare: Callable[[Any], Any],
        num_steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.params = train_input.params
        self._input = train_input
        self._bare = bare
        self._num_steps = num_steps
        self._clock = clock
        self._trainer_times: list[list[float]] = []
        self._bare_times: list[list[float]] = []

    def TrainBatches(self, start_step: int = 0) -> Any:
        """Returns the input's batches; runs bare steps between turns."""
        batches = self._input.TrainBatches(start_step)
        return _Batches(batches.element_spec, self._turns(batches))

    def table(self, save_interval: int) -> str:
        """Returns the trainer's overhead as text."""
        # The first turn warms up, and none follows the last one.
        turns = list(zip(self._trainer_times[:-1], self._bare_times, strict=True))[1:]
        ratios = [median(ours[_NUM_WARM:]) / median(bare) for ours, bare in turns]
        step = median(x for ours, _ in turns for x in ours[_NUM_WARM:])
        stall = self._stall(save_interval)
        return (
            f"step of the trainer: {1e3 * step:.1f} ms, {median(ratios):.3f} times "
            f"the bare one ({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} "
            "turns)\n"
            f"a checkpoint stalls training for {1e3 * stall:.1f} ms, "
            f"{stall / step:.2f} steps"
        )

    def _stall(self, interval: int) -> float:
        """Returns the extra seconds of the steps before and during a save."""
        usual: list[float] = []
        saving: list[float] = []
        for turn, times in enumerate(self._trainer_times[1:-1], start=1):
            for i, seconds in enumerate(times[_NUM_WARM:], start=_NUM_WARM):
                is_saving = (turn * self._num_steps + i + 1) % interval in (0, 1)
                (saving if is_saving else usual).append(seconds)
        return 2 * max(0.0, sum(saving) / len(saving) - median(usual))

    def _turns(self, batches: Any) -> Iterator[Any]:
        start = None
        for number, batch in enumerate(batches):
            now = self._clock()
            if start is not None:
                self._trainer_times[-1].append(now - start)
            if number % self._num_steps == 0:
                if number:
                    self._run_bare(batch)
                self._trainer_times.append([])
            start = self._clock()
            yield batch

    def _run_bare(self, batch: Any) -> None:
        times = []
        for _ in range(self._num_steps):
            start = self._clock()
            self._bare(batch)
            times.append(self._clock() - start)
        self._bare_times.append(times)


class _Batches:
    def __init__(self, element_spec: Any, batches: Iterator[Any]):
        self.element_spec = element_spec
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches
