"""Schedules made tick by tick, by a rule that chooses each device's operations.

A tick is as long as one operation. In each tick, each device runs an operation whose
inputs were there before the tick, or waits. Weight gradients are operations of their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


class Ticks:
    """The state before a tick: `done` counts the past operations by kind and stage."""

    def __init__(self, num_stages: int, num_micro_batches: int):
        kinds = Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENT
        self.done = {kind: [0] * num_stages for kind in kinds}
        self.num_micro_batches = num_micro_batches

    def ready(self, kind: Kind, stage: int) -> Op | None:
        """Returns a stage's next operation of a kind, or None if it must wait."""
        forward, backward, _ = self.done.values()
        if kind is Kind.FORWARD:
            arrived = forward[stage - 1] if stage else self.num_micro_batches
        elif kind is Kind.BACKWARD:
            is_last = stage + 1 == len(forward)
            arrived = forward[stage] if is_last else backward[stage + 1]
        else:
            arrived = backward[stage]
        number = self.done[kind][stage]
        return Op(kind, number, stage) if number < arrived else None

    def num_stashed(self, stages: Sequence[int]) -> int:
        """Returns how many micro-batches these stages stash, summed over the stages."""
        forward, _, weights = self.done.values()
        return sum(forward[stage] - weights[stage] for stage in stages)


def tick_by_tick(
    placement: Sequence[Sequence[int]],
    num_micro_batches: int,
    rule: Callable[[Ticks, int], Op | None],
) -> Schedule:
    """Returns the schedule that a rule makes.

    `rule(state, device)` returns the operation that the device then runs, or None. It
    is called once for each tick and device. `placement` has each device's stages.
    """
    num_stages = sum(map(len, placement))
    ticks = Ticks(num_stages, num_micro_batches)
    columns: list[list[Op]] = [[] for _ in placement]
    while any(ops := [rule(ticks, device) for device in range(len(placement))]):
        for column, op in zip(columns, ops, strict=True):
            if op:
                column.append(op)
                ticks.done[op.kind][op.stage] += 1
    return Schedule(num_stages, num_micro_batches, tuple(map(tuple, columns)))


def v_shape(num_devices: int) -> list[list[int]]:
    """Returns the stages of each device in a V: the first K go up, the others down."""
    return [[k, 2 * num_devices - 1 - k] for k in range(num_devices)]
