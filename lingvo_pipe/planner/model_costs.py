"""What a model costs by layer, for micro-batches of one size. Pure.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from lingvo_pipe.pipeline.stage_memory import CallBytes, StageMemory


@dataclasses.dataclass(frozen=True)
class ModelCosts:
    """The cells of a model, and behind them its loss.

    Attributes:
        num_rows: b.
        flops: of each cell's forward pass.
        num_parameters: of each cell, those that are trained.
        calls: of each cell and of the loss, what they take.
        value_bytes: of the values between them, by number; those of the mini-batch
            have none.
    """

    num_rows: int
    flops: Sequence[int]
    num_parameters: Sequence[int]
    calls: Sequence[CallBytes]
    value_bytes: Mapping[int, int]

    @property
    def num_cells(self) -> int:
        """L."""
        return len(self.flops)

    @functools.cached_property
    def memory(self) -> StageMemory:
        """What any consecutive calls need."""
        return StageMemory(self.calls, self.value_bytes)

    @functools.cached_property
    def crossing(self) -> list[int]:
        """For each cell the bytes that it and those in front make for those behind."""
        found, used = [0], set(self.calls[-1].used)
        for call in reversed(self.calls[: self.num_cells]):
            found.append(sum(self.value_bytes.get(v, 0) for v in used))
            used.difference_update(call.made)
            used.update(call.used)
        return found[:0:-1]

    @functools.cached_property
    def parameters_before(self) -> list[int]:
        """The parameters of the first 0, 1, 2, ... cells."""
        return list(itertools.accumulate(self.num_parameters, initial=0))
