"""A machine that traces and times a made-up model, for tests of measured plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.traced_model import TracedModel
from lingvo_pipe.planner.measured import measured_models
from lingvo_pipe.planner.search.correction import Correction
from tests.planner.made_up_model import NUM_CELLS, made_up_model

BATCH_SIZE = 64


class Machine:
    """A machine that traces and times the cells of a made-up model.

    Attributes:
        traced: numbers of rows traced so far.
        timed: numbers of rows timed so far.

    Args:
        fixed: seconds of a cell for any number of rows.
        slow: numbers of rows that take longer than the line through others.
        most: most rows with which its memory does not run out.
    """

    num_cells = NUM_CELLS

    def __init__(
        self, fixed: float = 0.5, slow: Sequence[int] = (), most: int = BATCH_SIZE
    ):
        self._most = most
        self.traced: list[int] = []
        self.timed: list[int] = []
        self._fixed, self._slow = fixed, slow

    def trace(self, num_rows: int, counts_flops: bool) -> Any:
        self.traced.append(num_rows)
        costs = made_up_model(num_rows)
        layers: Any = num_rows  # `time` takes them.
        return TracedModel(costs, layers, {})

    def time(self, num_rows: int, specs: Mapping[int, Any], device: str) -> Any:
        self.timed.append(num_rows)
        if num_rows > self._most:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
        return [self._of(i, num_rows) for i in range(NUM_CELLS + 1)]

    def seconds(self, num_rows: int) -> list[CellSeconds]:
        """Returns the seconds of cells; the loss is part of the last."""
        *cells, last, loss = [self._of(i, num_rows) for i in range(NUM_CELLS + 1)]
        both = CellSeconds(last.forward + loss.forward, last.backward + loss.backward)
        return [*cells, both]

    def _of(self, cell: int, num_rows: int) -> CellSeconds:
        seconds = self._fixed + (1 + cell % 3) * num_rows
        if num_rows in self._slow:
            seconds *= 10
        return CellSeconds(seconds, 2 * seconds)


def installed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Replaces the real machine by this one; returns it."""
    replace_times(monkeypatch, machine.time)
    return machine


def replace_times(monkeypatch: pytest.MonkeyPatch, seconds: Callable[..., Any]) -> None:
    """Takes the times of cells from a function, and runs no real steps."""
    monkeypatch.setattr(measured_models, "measured_seconds", seconds)
    monkeypatch.setattr(measured_models, "measured_correction", lambda *_: Correction())
