"""Predicts a step's timeline from a schedule and what its operations cost. Pure."""

from __future__ import annotations

from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Runs a schedule on paper.

    A device runs its column in order. It spends the overhead, waits until all inputs of
    the operation have arrived, and computes. What another device made arrives a
    transfer after its end; transfers take no device's time and don't slow one another.

    Raises:
        ValueError: if the schedule can't be run, or the costs are of another number of
            stages.
    """
    check(schedule)
    if len(costs.stages) != schedule.num_stages:
        raise ValueError(
            f"The costs must be those of the schedule's {schedule.num_stages} stages; "
            f"got costs of {len(costs.stages)}."
        )
    homes = schedule.device_of_stage()
    ends: dict[Op, float] = {}
    columns: list[list[TimedOp]] = [[] for _ in schedule.columns]

    def arrival(need: Op, device: int) -> float:
        away = homes[need.stage] != device
        return ends[need] + (costs.send_seconds(need) if away else 0.0)

    def run_what_can_run(device: int) -> None:
        ran = columns[device]
        for op in schedule.columns[device][len(ran) :]:
            needs = schedule.dependencies(op)
            if not all(need in ends for need in needs):
                return
            wait_start = (ran[-1].end if ran else 0.0) + costs.overhead
            start = max([wait_start, *(arrival(need, device) for need in needs)])
            ends[op] = start + costs.seconds(schedule, op)
            ran.append(TimedOp(op, wait_start, start, ends[op]))

    num_ops = sum(map(len, schedule.columns))
    while len(ends) < num_ops:
        for device in range(schedule.num_devices):
            run_what_can_run(device)
    return Timeline(tuple(map(tuple, columns)), schedule.block_ends)
