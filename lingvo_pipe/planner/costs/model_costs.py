"""The costs of a model by layer, for micro-batches of one size.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence

from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, SharedWeight, Workspace
from lingvo_pipe.pipeline.memory.stage_memory import ALLOCATOR_LOSS, StageMemory
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds, boundary_bytes


@dataclasses.dataclass(frozen=True)
class ModelCosts:
    """The costs of a model's cells, and of the loss after them, for b rows."""

    num_rows: int
    flops: Sequence[int]  # Of each cell's forward pass.
    num_parameters: Sequence[int]  # Of each cell, only trained ones.
    # Of each cell: optimizer state and averages, in the device's memory.
    slot_bytes: Sequence[int]
    calls: Sequence[CallBytes]  # Of the cells and the loss.
    value_bytes: Mapping[int, int]  # Of values between calls, by number.
    in_place: bool = False  # See `StageMemory`.
    shared_weights: Sequence[SharedWeight] = ()
    weight_shares: Sequence[float] = ()  # See `Phases`, for each cell; if (), 0.5.
    output_shares: Sequence[float] = ()  # See `Phases`, for each cell; if (), 0.
    allocator_loss: float = ALLOCATOR_LOSS  # See `StageMemory`.
    host_slot_bytes: Sequence[int] = ()  # Of each cell, on the host; if (), 0.

    @property
    def num_cells(self) -> int:
        """The number of cells, L."""
        return len(self.flops)

    @property
    def left_out(self) -> Sequence[float]:
        """For each cell, the fraction of its forward pass that a recomputation skips.

        Only a cell that is the last of a stage has a part that is skipped. Under XLA
        nothing is skipped, and the result is ().
        """
        return () if self.in_place else self.output_shares

    @functools.cached_property
    def memory(self) -> StageMemory:
        """The memory that stages need if there is one replica, without slots."""
        return StageMemory(
            self.calls,
            self.value_bytes,
            self.in_place,
            self.shared_weights,
            self.allocator_loss,
        )

    @functools.cached_property
    def replicated_memory(self) -> StageMemory:
        """The memory that stages need if there are several replicas, without slots.

        Unlike in `memory`, a shared weight counts once for each call that uses it.
        """
        return dataclasses.replace(self, shared_weights=()).memory

    def with_roles(
        self, recomputed: Collection[int], offloaded: Collection[int]
    ) -> ModelCosts:
        """Returns the costs if these cells are recomputed, and those are offloaded.

        The schedule decides where and when. The loss has the last cell's roles.
        """
        last = self.num_cells - 1
        calls = [
            call._replace(
                recomputed=min(i, last) in recomputed,
                offloaded=min(i, last) in offloaded,
            )
            for i, call in enumerate(self.calls)
        ]
        return dataclasses.replace(self, calls=calls)

    def part(self, start: int, end: int) -> ModelCosts:
        """Returns the costs of cells `start` to `end` - 1, numbered from 0.

        The loss is a part of the last cell.
        """
        stop = end + (end == self.num_cells)
        inside = [
            (num_bytes, [i - start for i in calls if start <= i < stop])
            for num_bytes, calls in self.shared_weights
        ]
        return dataclasses.replace(
            self,
            flops=self.flops[start:end],
            num_parameters=self.num_parameters[start:end],
            slot_bytes=self.slot_bytes[start:end],
            calls=self.calls[start:stop],
            shared_weights=[SharedWeight(*x) for x in inside if len(x[1]) > 1],
            weight_shares=self.weight_shares[start:end],
            output_shares=self.output_shares[start:end],
            host_slot_bytes=self.host_slot_bytes[start:end],
        )

    @property
    def without_host(self) -> ModelCosts:
        """The costs on a device that has no other memory than its host's."""
        if not self.host_slot_bytes:
            return self
        slots = map(operator.add, self.slot_bytes, self.host_slot_bytes)
        return dataclasses.replace(self, slot_bytes=list(slots), host_slot_bytes=())

    @functools.cached_property
    def boundary_bytes(self) -> list[int]:
        """The bytes that would cross a stage boundary after each cell."""
        *cells, loss = [(call.used, call.made) for call in self.calls]
        return boundary_bytes(cells, loss[0], self.value_bytes)


# Maps the rows of a micro-batch to the model's costs and to the seconds of its cells.
Models = Callable[[int], tuple[ModelCosts, Sequence[CellSeconds]]]


def at_rows(a: ModelCosts, b: ModelCosts, num_rows: int) -> ModelCosts:
    """Returns the costs for `num_rows`, from the costs for two other numbers of rows.

    The size of a tensor is constant or proportional to the rows, so the bytes at each
    moment of a pass are linear in the rows. The peak of a pass is not.
    """
    offset, interval = num_rows - a.num_rows, b.num_rows - a.num_rows

    def line(x: int, y: int) -> int:
        return x + (y - x) * offset // interval

    def moments(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
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
