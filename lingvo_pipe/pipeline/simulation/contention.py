"""Simulation of devices that slow each other down.

    device 0   ####======######
    device 1       ======          '#' runs alone, '=' runs slower with the other
    busy       1   2     1

How fast an operation runs depends on how many devices compute at the same time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs
from lingvo_pipe.pipeline.simulation.simulate import Progress
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


def simulate_with_contention(
    schedule: Schedule, costs: Costs, slowdown: Callable[[int], float]
) -> Timeline:
    """Predicts the timeline of a schedule on devices that slow each other down.

    `costs` hold while no other device computes. `slowdown(n)` is the factor by which
    operations take longer while n devices compute.

    Raises:
        ValueError: if the schedule can't run, or `costs` are not for its stages.
    """
    return _Simulation(Progress(schedule, costs), slowdown).run(schedule.num_devices)


class _Simulation:
    def __init__(self, progress: Progress, slowdown: Callable[[int], float]):
        self._progress, self._slowdown = progress, slowdown
        # By device: the operation that runs, or will run, and its work left.
        self._next: dict[int, TimedOp] = {}
        self._left: dict[int, float] = {}
        self._now = 0.0

    def run(self, num_devices: int) -> Timeline:
        has_ended = True  # Other operations may start only after one has ended.
        while True:
            for device in range(num_devices) if has_ended else ():
                if device not in self._next and (op := self._progress.next_op(device)):
                    self._next[device], self._left[device] = op, op.seconds
            if not self._next:
                return self._progress.timeline()
            has_ended = self._advance()

    def _advance(self) -> bool:
        """Runs until an operation starts or ends, and returns whether one has ended."""
        running = [d for d, timed in self._next.items() if timed.start <= self._now]
        starts = [t.start for t in self._next.values() if t.start > self._now]
        factor = self._slowdown(len(running)) if running else 1.0
        least = min((self._left[device] for device in running), default=math.inf)
        until = min([self._now + least * factor, *starts])
        has_ended = False
        for device in running:
            if until < self._now + self._left[device] * factor:
                self._left[device] -= (until - self._now) / factor
            else:
                timed = self._next.pop(device)
                self._progress.end(device, timed._replace(end=until))
                has_ended = True
        self._now = until
        return has_ended


def busy_shares(timeline: Timeline) -> list[float]:
    """Returns the share of the devices' busy time in which 1, 2, ... devices are busy.

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
