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
        slot_bytes: of each cell, what the optimizer and averages keep of its weights.
        calls: of each cell and of the loss, what they take.
        at_work: of each of these, bytes that it has for itself at each moment while it
            runs.
        value_bytes: of the values between them, by number; those of the mini-batch
            have none.
    """

    num_rows: int
    flops: Sequence[int]
    num_parameters: Sequence[int]
    slot_bytes: Sequence[int]
    calls: Sequence[CallBytes]
    at_work: Sequence[tuple[int, ...]]
    value_bytes: Mapping[int, int]

    @property
    def num_cells(self) -> int:
        """L."""
        return len(self.flops)

    @functools.cached_property
    def memory(self) -> StageMemory:
        """What any consecutive calls need, but for slots."""
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
    def working(self) -> list[int]:
        """Of each cell and of the loss, the most that it has for itself."""
        return [max(moments, default=0) for moments in self.at_work]

    def slots(self, start: int, end: int) -> int:
        """What the optimizer and averages keep of the cells from `start` to `end`."""
        return self._slots_before[end] - self._slots_before[start]

    @functools.cached_property
    def _slots_before(self) -> list[int]:
        return list(itertools.accumulate(self.slot_bytes, initial=0))


def at_rows(a: ModelCosts, b: ModelCosts, num_rows: int) -> ModelCosts:
    """The costs of micro-batches of any size, from those of two sizes.

    A tensor has so many numbers for each row, or as many for any number of rows; so all
    amounts lie on a line, those of each moment too. At which moment there is most may
    change.
    """

    def line(x: int, y: int) -> int:
        return x + (y - x) * (num_rows - a.num_rows) // (b.num_rows - a.num_rows)

    def nearly_line(x: int, y: int) -> int:
        """With a single row a tensor may have the shape of another, by chance."""
        return x + round((y - x) * (num_rows - a.num_rows) / (b.num_rows - a.num_rows))

    @functools.cache  # Many cells are alike.
    def moments(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) != len(y):  # With a single row there may be fewer operations.
            x, y = (max(x),), (max(y),)
        return tuple(nearly_line(*pair) for pair in zip(x, y, strict=True))

    def call(x: CallBytes, y: CallBytes) -> CallBytes:
        return x._replace(
            residuals=line(x.residuals, y.residuals),
            weight_residuals=line(x.weight_residuals, y.weight_residuals),
        )

    return dataclasses.replace(
        a,
        num_rows=num_rows,
        flops=list(map(line, a.flops, b.flops)),
        calls=list(map(call, a.calls, b.calls)),
        at_work=list(map(moments, a.at_work, b.at_work)),
        value_bytes={v: line(n, b.value_bytes[v]) for v, n in a.value_bytes.items()},
    )
