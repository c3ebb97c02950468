"""Checks that run one after another, of which some may fail."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import tensorflow as tf

_FAILURES = (ValueError, RuntimeError, OSError, tf.errors.OpError)
_Result = TypeVar("_Result")


class Checks:
    """Checks with their problems, and the number of checks without time, by kind."""

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self.problems: list[str] = []
        self.no_time_for: dict[str, int] = {}
        self._log, self._clock, self._start = log, clock, clock()

    def run(
        self, kind: str, checks: Mapping[str, Callable[[], _Result]], seconds: float
    ) -> dict[str, _Result]:
        """Returns the results, by name, of the checks that succeed.

        None begins later than `seconds` after this object was made.
        """
        results = {}
        for i, (name, check) in enumerate(checks.items()):
            if self._clock() - self._start > seconds:
                self.no_time_for[kind] = len(checks) - i
                break
            self._log(f"{kind}: {name}")
            try:
                results[name] = check()
            except _FAILURES as error:
                text, _, _ = str(error).strip().partition("\n")
                self.problems.append(f"{kind}: {name}: {type(error).__name__}: {text}")
        return results
