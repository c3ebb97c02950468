"""Simulation of devices that slow each other down. Pure.

    device 0   ####======######
    device 1       ======          '#' alone, '=' slower, beside the other
    busy       1   2     1

How fast an operation runs depends on how many devices compute at the same time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def simulate_with_contention(
    schedule: Schedule, costs: Costs, slowdown: Callable[[int], float]
) -> Timeline:
    """Returns the predicted timeline of a schedule; see `simulate`.

    Operations cost what they do while no other device computes; `slowdown` is the
    factor by which they take longer while a number of devices compute.

    Raises ValueError if the schedule can't run.
    """
    check(schedule)
    return _Simulation(schedule, costs, slowdown).run()


class _Simulation:
    """A step in progress: what has run, and what each device runs now."""

    def __init__(
        self, schedule: Schedule, costs: Costs, slowdown: Callable[[int], float]
    ):
        self._schedule, self._costs, self._slowdown = schedule, costs, slowdown
        self._devices = schedule.device_of_stage()
        self._ends: dict[Op, float] = {}
        self._columns: list[list[TimedOp]] = [[] for _ in schedule.columns]
        # By device: the operation that runs, or will run, and its work left.
        self._next: dict[int, TimedOp] = {}
        self._left: dict[int, float] = {}
        self._now = 0.0

    def run(self) -> Timeline:
        every = range(len(self._columns))
        changed: Sequence[int] = every  # Devices that have ended an operation.
        while True:
            for device in every if changed else ():
                self._find_next(device)
            if not self._next:
                columns = tuple(map(tuple, self._columns))
                return Timeline(columns, self._schedule.block_boundaries)
            changed = self._advance()

    def _find_next(self, device: int) -> None:
        """Finds when a device starts its next operation, if that is known yet."""
        ran, column = self._columns[device], self._schedule.columns[device]
        if device in self._next or len(ran) == len(column):
            return
        op = column[len(ran)]
        needs = self._schedule.dependencies(op)
        if all(need in self._ends for need in needs):
            wait_start = (ran[-1].end if ran else 0.0) + self._costs.overhead
            arrivals = (self._arrival(need, device) for need in needs)
            start = max([wait_start, *arrivals])
            self._next[device] = TimedOp(op, wait_start, start, math.inf)
            self._left[device] = self._costs.seconds(self._schedule, op)

    def _arrival(self, need: Op, device: int) -> float:
        is_sent = self._devices[need.stage] != device
        return self._ends[need] + (self._costs.send_seconds(need) if is_sent else 0.0)

    def _advance(self) -> list[int]:
        """Runs until an operation starts or ends; returns devices where one ends."""
        running = [d for d, timed in self._next.items() if timed.start <= self._now]
        starts = [t.start for t in self._next.values() if t.start > self._now]
        factor = self._slowdown(len(running)) if running else 1.0
        least = min((self._left[device] for device in running), default=math.inf)
        until = min([self._now + least * factor, *starts])
        ended = []
        for device in running:
            if until < self._now + self._left[device] * factor:
                self._left[device] -= (until - self._now) / factor
                continue
            timed = self._next.pop(device)._replace(end=until)
            self._columns[device].append(timed)
            self._ends[timed.op] = until
            ended.append(device)
        self._now = until
        return ended


def busy_shares(timeline: Timeline) -> list[float]:
    """Returns the shares of devices' busy time by how many are busy, from one.

        device 0   ##########
        device 1      ##########
        busy       1  2      1

    Here 2 devices compute in 14 of 20 device seconds: [0.3, 0.7].
    """
    ops = [timed for _, timed in timeline.ops()]
    changes = sorted([(x.start, 1) for x in ops] + [(x.end, -1) for x in ops])
    seconds = [0.0] * len(timeline.columns)
    busy = 0
    for (time, change), (later, _) in itertools.pairwise(changes):
        busy += change
        if busy:
            seconds[busy - 1] += busy * (later - time)
    total = sum(seconds)
    return [x / total for x in seconds] if total else [1.0, *seconds[1:]]
