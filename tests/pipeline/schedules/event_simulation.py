"""Simulation of a schedule's columns with integer durations, by events alone."""

from collections.abc import Mapping

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def makespan(schedule: Schedule, costs: Mapping[Kind, int]) -> int:
    """Returns the end of the last operation.

    Raises:
        ValueError: if the devices wait for each other.
    """
    ends: dict[Op, int] = {}
    free = [0] * schedule.num_devices
    left = [list(reversed(column)) for column in schedule.columns]
    while any(left):
        num_done = len(ends)
        for device, column in enumerate(left):
            while column and ends.keys() >= set(schedule.dependencies(column[-1])):
                op = column.pop()
                needed = [ends[need] for need in schedule.dependencies(op)]
                ends[op] = free[device] = max([free[device], *needed]) + costs[op.kind]
        if len(ends) == num_done:
            raise ValueError(f"Stuck before {[str(c[-1]) for c in left if c]}.")
    return max(free)


def bubble(schedule: Schedule, costs: Mapping[Kind, int]) -> int:
    """Returns the idle time of the busiest device."""
    busy = [sum(costs[op.kind] for op in column) for column in schedule.columns]
    return makespan(schedule, costs) - max(busy)
