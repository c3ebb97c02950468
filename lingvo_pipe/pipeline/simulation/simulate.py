"""Simulation: a step's predicted timeline from a schedule and its costs. Pure."""

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Returns the predicted timeline of a schedule.

    A device runs its column in order. For each operation it spends the overhead, waits
    until all inputs have arrived, and computes. Another device's result arrives one
    transfer after its end; transfers take no device's time and don't delay each other.
    Raises ValueError if the schedule can't run, or the costs have a different number of
    stages.
    """
    check(schedule)
    if len(costs.stages) != schedule.num_stages:
        raise UserValueError(
            f"costs: expected the costs of {schedule.num_stages} stages, as in the "
            f"schedule, got {len(costs.stages)!r}."
        )
    devices = schedule.device_of_stage()
    ends: dict[Op, float] = {}
    columns: list[list[TimedOp]] = [[] for _ in schedule.columns]

    def arrival(need: Op, device: int) -> float:
        is_sent = devices[need.stage] != device
        return ends[need] + (costs.send_seconds(need) if is_sent else 0.0)

    def run_ready_ops(device: int) -> None:
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
            run_ready_ops(device)
    return Timeline(tuple(map(tuple, columns)), schedule.block_boundaries)
