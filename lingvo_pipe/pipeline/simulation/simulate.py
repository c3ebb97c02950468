"""Simulation: a step's predicted timeline from a schedule and its costs."""

import itertools

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import COPIES, Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Returns the predicted timeline of a schedule.

    A device runs its column in order. For each operation it spends the overhead, waits
    until all inputs have arrived, and computes. A result reaches another device one
    transfer after its operation ends. Transfers keep no device busy and don't delay
    each other. Copies between a device and its host keep no device busy either, but in
    each direction a device makes one copy after another, as if the link were the limit.

    Raises:
        ValueError: if the schedule can't run, or the costs are not for its stages.
    """
    progress = Progress(schedule, costs)
    num_ops = sum(map(len, schedule.columns))
    while progress.num_ended < num_ops:
        for device in range(schedule.num_devices):
            while timed := progress.next_op(device):
                progress.end(device, timed)
    return progress.timeline()


class Progress:
    """The operations of a step that have ended, and what each device runs next.

    Raises:
        ValueError: if the schedule can't run, or the costs are not for its stages.
    """

    def __init__(self, schedule: Schedule, costs: Costs):
        check(schedule)
        if len(costs.stages) != schedule.num_stages:
            raise UserValueError(
                path="costs",
                expected=f"{schedule.num_stages} stages, as in the schedule",
                got=len(costs.stages),
            )
        self._schedule, self._costs = schedule, costs
        self._devices = schedule.device_of_stage()
        self._ends: dict[Op, float] = {}
        self._copy_ends: dict[Op, float] = {}
        self._columns: list[list[TimedOp]] = [[] for _ in schedule.columns]
        self._copies: list[dict[Kind, list[TimedOp]]] = [
            {kind: [] for kind in COPIES} for _ in schedule.columns
        ]

    @property
    def num_ended(self) -> int:
        """Number of operations that have ended, of all devices."""
        return len(self._ends)

    def next_op(self, device: int) -> TimedOp | None:
        """Returns a device's next operation with its times.

        Returns None if the device has no more operations, or if the time at which an
        input arrives is not known yet.
        """
        ran, column = self._columns[device], self._schedule.columns[device]
        if len(ran) == len(column):
            return None
        op = column[len(ran)]
        needs = self._schedule.dependencies(op)
        if not all(need in self._ends for need in needs):
            return None
        wait_start = (ran[-1].end if ran else 0.0) + self._costs.overhead
        arrivals = (self._arrival(op, need, device) for need in needs)
        start = max([wait_start, *arrivals])
        end = start + self._costs.seconds(self._schedule, op)
        return TimedOp(op, wait_start, start, end)

    def end(self, device: int, timed: TimedOp) -> None:
        """Records that a device's next operation has ended, with its times."""
        self._columns[device].append(timed)
        self._ends[timed.op] = timed.end
        if timed.op.kind is Kind.LOAD:
            self._copy(device, timed.op, timed.end)
        elif timed.op.kind is Kind.FORWARD and self._schedule.offloads(timed.op):
            self._copy(device, timed.op._replace(kind=Kind.OFFLOAD), timed.end)

    def timeline(self) -> Timeline:
        """Returns the timeline of the operations that have ended."""
        columns = tuple(map(tuple, self._columns))
        copies = tuple(
            tuple(itertools.chain(*of_device.values())) for of_device in self._copies
        )
        return Timeline(columns, self._schedule.block_boundaries, copies)

    def _copy(self, device: int, copy: Op, begin: float) -> None:
        earlier = self._copies[device][copy.kind]
        start = max(begin, earlier[-1].end if earlier else begin)
        end = self._copy_ends[copy] = start + self._costs.copy_seconds(copy)
        earlier.append(TimedOp(copy, begin, start, end))

    def _arrival(self, op: Op, need: Op, device: int) -> float:
        for copy in (op, need) if self._copy_ends else ():
            if copy in self._copy_ends:  # An OFFLOAD waits for its own copy.
                return self._copy_ends[copy]
        is_sent = self._devices[need.stage] != device
        return self._ends[need] + (self._costs.send_seconds(need) if is_sent else 0.0)
