"""Columns of a schedule run with durations: events and nothing else."""

from collections.abc import Mapping

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def makespan(schedule: Schedule, costs: Mapping[Kind, int]) -> int:
    """The time at which the last operation ends."""
    ends: dict[Op, int] = {}
    free = [0] * schedule.num_devices
    left = [list(reversed(column)) for column in schedule.columns]
    while any(left):
        for device, column in enumerate(left):
            while column and all(n in ends for n in schedule.dependencies(column[-1])):
                op = column.pop()
                needed = [ends[need] for need in schedule.dependencies(op)]
                ends[op] = free[device] = max([free[device], *needed]) + costs[op.kind]
    return max(free)


def bubble(schedule: Schedule, costs: Mapping[Kind, int]) -> int:
    """How long the busiest device is idle."""
    busy = [sum(costs[op.kind] for op in column) for column in schedule.columns]
    return makespan(schedule, costs) - max(busy)
