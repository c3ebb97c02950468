"""The costs of a model by layer, for micro-batches of one size. Pure.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, SharedWeight, Workspace
from lingvo_pipe.pipeline.memory.stage_memory import ALLOCATOR_LOSS, StageMemory
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds, boundary_bytes


@dataclasses.dataclass(frozen=True)
class ModelCosts:
    """The costs of a model's cells and of its loss, which follows them, for b rows."""

    num_rows: int
    flops: Sequence[int]  # Of each cell's forward pass.
    num_parameters: Sequence[int]  # Trained ones.
    slot_bytes: Sequence[int]  # With averages.
    calls: Sequence[CallBytes]  # Of the cells and the loss.
    value_bytes: Mapping[int, int]  # Between calls, by number, without the batch.
    in_place: bool = False  # See `StageMemory`.
    shared_weights: Sequence[SharedWeight] = ()
    weight_shares: Sequence[float] = ()  # See `Phases`, of each cell; if (), halves.
    output_shares: Sequence[float] = ()  # The same; if (), 0.
    allocator_loss: float = ALLOCATOR_LOSS  # See `StageMemory`.

    @property
    def num_cells(self) -> int:
        """The number of cells, L."""
        return len(self.flops)

    @property
    def left_out(self) -> Sequence[float]:
        """The parts of forward passes that a recomputation at a stage's end leaves out.

        () if nothing is left out. Layers that XLA compiles compute all again.
        """
        return () if self.in_place else self.output_shares

    @functools.cached_property
    def memory(self) -> StageMemory:
        """The memory of consecutive calls, without slots, in a single replica."""
        return StageMemory(
            self.calls,
            self.value_bytes,
            self.in_place,
            self.shared_weights,
            self.allocator_loss,
        )

    @functools.cached_property
    def replicated_memory(self) -> StageMemory:
        """The same in one of several replicas, which have copies of shared weights."""
        return StageMemory(
            self.calls,
            self.value_bytes,
            self.in_place,
            allocator_loss=self.allocator_loss,
        )

    @functools.cached_property
    def boundary_bytes(self) -> list[int]:
        """Bytes that would cross a boundary after each cell."""
        *cells, loss = [(call.used, call.made) for call in self.calls]
        return boundary_bytes(cells, loss[0], self.value_bytes)


# By the number of rows of a micro-batch: the model's costs, and the seconds of cells.
Models = Callable[[int], tuple[ModelCosts, Sequence[CellSeconds]]]


def at_rows(a: ModelCosts, b: ModelCosts, num_rows: int) -> ModelCosts:
    """Returns the costs for any number of rows, from the costs for two.

    The size of a tensor is proportional to the rows or constant, so all costs are
    linear, also at each moment. Their maximum may move to another moment.
    """
    offset, interval = num_rows - a.num_rows, b.num_rows - a.num_rows

    def line(x: int, y: int) -> int:
        return x + (y - x) * offset // interval

    def moments(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
        """Rounds, because tensors of one row may have another's shape by chance."""
        if len(x) != len(y):  # With one row there may be fewer operations.
            x, y = (max(x),), (max(y),)
        pairs = zip(x, y, strict=True)
        return tuple(n + round((m - n) * offset / interval) for n, m in pairs)

    @functools.cache  # Many cells are equal.
    def workspace(x: Workspace, y: Workspace) -> Workspace:
        return Workspace(*map(moments, x, y))

    def call(x: CallBytes, y: CallBytes) -> CallBytes:
        return x._replace(
            residuals=line(x.residuals, y.residuals),
            weight_residuals=line(x.weight_residuals, y.weight_residuals),
            new_weight_residuals=line(x.new_weight_residuals, y.new_weight_residuals),
            workspace=workspace(x.workspace, y.workspace),
        )

    return dataclasses.replace(
        a,
        num_rows=num_rows,
        flops=list(map(line, a.flops, b.flops)),
        calls=list(map(call, a.calls, b.calls)),
        value_bytes={v: line(n, b.value_bytes[v]) for v, n in a.value_bytes.items()},
    )
