"""The trainer's overhead is separated from the steps themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tools.benchmarks.interleaved_steps import InterleavedSteps

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.

TURN, INTERVAL = 10, 9


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Numbers:
    """An input whose batches take a second each to be read."""

    params = None
    element_spec = "numbers"

    def __init__(self, clock: Clock):
        self._clock = clock

    def TrainBatches(self, start_step: int) -> Any:
        assert start_step == 0
        return self

    def __iter__(self) -> Iterator[int]:
        for number in range(100):
            self._clock.now += 1.0
            yield number


def test_the_trainers_steps_and_the_bare_ones() -> None:
    clock = Clock()

    def bare(batch: int) -> None:
        clock.now += 4.0

    steps = InterleavedSteps(Numbers(clock), bare, TURN, clock)
    batches = steps.TrainBatches()
    assert batches.element_spec == "numbers"
    for n, number in enumerate(batches, start=1):
        assert number == n - 1
        # Training on it, at first slower; and longer for a save, on both of its sides.
        clock.now += 4.0 if n > TURN else 99.0
        clock.now += {0: 1.5, 1: 0.5}.get(n % INTERVAL, 0.0)
        if n == 4 * TURN:
            break
    step, stall = steps.table(INTERVAL).splitlines()
    # The step, its ratio to the bare one, the extremes, and the number of turns.
    assert re.findall(r"[\d.]+", step) == ["5000.0", "1.250", "1.250", "1.250", "2"]
    assert re.findall(r"[\d.]+", stall) == ["2000.0", "0.40"]
