"""The costs of a model by layer, for micro-batches of one size. Pure.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from lingvo_pipe.pipeline.memory.stage_memory import CallBytes, StageMemory
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds


@dataclasses.dataclass(frozen=True)
class ModelCosts:
    """The costs of a model's cells and of its loss, which follows them.

    Attributes:
        num_rows: b.
        flops: flops of each cell's forward pass.
        num_parameters: number of each cell's trained parameters.
        slot_bytes: bytes of each cell's optimizer slots and averages.
        calls: bytes of each cell and of the loss.
        workspace_bytes: bytes of each cell's and the loss's own tensors, for each
            moment while it runs.
        value_bytes: bytes of the values between calls, by number; inputs of the
            mini-batch are left out.
    """

    num_rows: int
    flops: Sequence[int]
    num_parameters: Sequence[int]
    slot_bytes: Sequence[int]
    calls: Sequence[CallBytes]
    workspace_bytes: Sequence[tuple[int, ...]]
    value_bytes: Mapping[int, int]

    @property
    def num_cells(self) -> int:
        """L."""
        return len(self.flops)

    @functools.cached_property
    def memory(self) -> StageMemory:
        """The memory of consecutive calls, without slots and workspace."""
        return StageMemory(self.calls, self.value_bytes)

    @functools.cached_property
    def boundary_bytes(self) -> list[int]:
        """Bytes that would cross a boundary after each cell."""
        found, used = [0], set(self.calls[-1].used)
        for call in reversed(self.calls[: self.num_cells]):
            found.append(sum(self.value_bytes.get(v, 0) for v in used))
            used.difference_update(call.made)
            used.update(call.used)
        return found[:0:-1]

    @functools.cached_property
    def max_workspace_bytes(self) -> list[int]:
        """The largest workspace of each cell and of the loss."""
        return [max(moments, default=0) for moments in self.workspace_bytes]

    def slots(self, start: int, end: int) -> int:
        """Returns the bytes of slots and averages of the cells `start` to `end`."""
        return self._slot_sums[end] - self._slot_sums[start]

    @functools.cached_property
    def _slot_sums(self) -> list[int]:
        return list(itertools.accumulate(self.slot_bytes, initial=0))


# By the number of rows of a micro-batch: the model's costs, and the seconds of cells.
Models = Callable[[int], tuple[ModelCosts, Sequence[CellSeconds]]]


def at_rows(a: ModelCosts, b: ModelCosts, num_rows: int) -> ModelCosts:
    """Returns the costs for any number of rows, from the costs for two.

    The size of a tensor is proportional to the rows or constant, so all costs are
    linear, also at each moment. Their maximum may move to another moment.
    """

    def line(x: int, y: int) -> int:
        return x + (y - x) * (num_rows - a.num_rows) // (b.num_rows - a.num_rows)

    def rounded_line(x: int, y: int) -> int:
        """Rounds; with one row, tensors may have another's shape by chance."""
        return x + round((y - x) * (num_rows - a.num_rows) / (b.num_rows - a.num_rows))

    @functools.cache  # Many cells are equal.
    def moments(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) != len(y):  # With one row there may be fewer operations.
            x, y = (max(x),), (max(y),)
        return tuple(rounded_line(*pair) for pair in zip(x, y, strict=True))

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
        workspace_bytes=list(map(moments, a.workspace_bytes, b.workspace_bytes)),
        value_bytes={v: line(n, b.value_bytes[v]) for v, n in a.value_bytes.items()},
    )
