"""Timelines: the operations of each device in time, simulated or measured.

    device 1 |      .F0 F1     . B0
    device 0 | F0 F1        .........B0      '.' is a wait for a message
             0 s                      ^ seconds

Between two operations, a device first does other work, for instance its loop's. Then it
waits for the messages of the next operation, and runs the operation.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError, Words, raise_problems
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


class TimedOp(NamedTuple):
    """An operation in time, in seconds since the step began.

    From `wait_start` to `start` the device waits for the operation's inputs.
    """

    op: Op
    wait_start: float
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """The seconds that the operation computes."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A step's operations, in order of time for each device. The step begins at 0 s.

    `copies` are each device's copies to and from its host, which run beside its
    operations. A measured timeline has none, because they are not measured.
    """

    columns: tuple[tuple[TimedOp, ...], ...]
    block_boundaries: frozenset[int] = frozenset()
    copies: tuple[tuple[TimedOp, ...], ...] = ()

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[int, Op, float, float, float]],
        block_boundaries: frozenset[int] = frozenset(),
    ) -> Timeline:
        """Returns the timeline of a measured step.

        The rows are (device, operation, wait_start, start, end) in any order, in
        seconds of one clock. The earliest of all times becomes 0.

        Raises:
            ValueError: if times do not ascend, or a device's operations overlap.
        """
        rows = list(rows)
        begin = min((row[2] for row in rows), default=0.0)
        num_devices = max((row[0] for row in rows), default=-1) + 1
        columns: list[list[TimedOp]] = [[] for _ in range(num_devices)]
        for device, op, *times in rows:
            columns[device].append(TimedOp(op, *(time - begin for time in times)))
        problems = []
        for device, column in enumerate(columns):
            column.sort(key=lambda timed: timed[1:])
            free = 0.0
            for op, wait_start, start, end in column:
                if not free <= wait_start <= start <= end:
                    problem = UserValueError(
                        path=f"device {device}",
                        expected=f"ascending times of the {op}, from {free:g} s on",
                        got=Words(f"{wait_start:g}, {start:g} and {end:g} s"),
                    )
                    problems.append(problem)
                free = end
        raise_problems(
            problems,
            "An operation's times are the previous one's end, wait_start, start, end.",
        )
        return cls(tuple(map(tuple, columns)), block_boundaries)

    def ops(self) -> Iterator[tuple[int, TimedOp]]:
        """Yields all operations as pairs (device, TimedOp)."""
        for device, column in enumerate(self.columns):
            for timed in column:
                yield device, timed

    @property
    def schedule(self) -> Schedule:
        """The schedule that ran."""
        ops = [timed.op for _, timed in self.ops()]
        return Schedule(
            num_stages=max((op.stage for op in ops), default=-1) + 1,
            num_micro_batches=max((op.micro_batch for op in ops), default=-1) + 1,
            columns=tuple(tuple(t.op for t in column) for column in self.columns),
            block_boundaries=self.block_boundaries,
        )

    @functools.cached_property
    def step_seconds(self) -> float:
        """The duration of the step, in seconds."""
        return max((timed.end for _, timed in self.ops()), default=0.0)

    def busy_seconds(self, device: int) -> float:
        """Returns a device's seconds of computation."""
        return sum(timed.seconds for timed in self.columns[device])

    def idle_seconds(self, device: int) -> float:
        """Returns a device's seconds without computation during the step."""
        return self.step_seconds - self.busy_seconds(device)

    @property
    def bubble_fraction(self) -> float:
        """The fraction of the devices' time without computation."""
        total = self.step_seconds * len(self.columns)
        idle = sum(map(self.idle_seconds, range(len(self.columns))))
        return idle / total if total else 0.0


def steps_ahead(timeline: Timeline) -> dict[int, int]:
    """Returns the maximum lead of each stage over the next stage, in steps.

    The lead is the number of earlier steps that the next stage had not finished when
    the stage started a step. MAX_STEPS_AHEAD limits it.
    """
    schedule = timeline.schedule
    starts: dict[int, dict[int, float]] = defaultdict(dict)
    ends: dict[int, list[float]] = defaultdict(list)
    for _, (op, _, start, end) in timeline.ops():
        if op.kind is Kind.FORWARD:
            n = op.micro_batch // schedule.micro_batches_per_step
            starts[op.stage].setdefault(n, start)
        elif op.kind is Kind.UPDATE:
            ends[op.stage].append(end)
    return {
        k: max(
            n - bisect.bisect_right(sorted(ends[k + 1]), start)
            for n, start in starts[k].items()
        )
        for k in range(schedule.num_stages - 1)
    }
