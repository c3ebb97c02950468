r"""What ran when during a step, simulated or measured. Pure.

    device 1 |      .F0 F1     . B0
    device 0 | F0 F1        .........B0      '.' it waits for a message
             0 s                      ^ seconds

Between two operations a device first does what is neither of them, such as its loop's
own work; then it waits for the messages that the next one needs; then it runs it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Op, Schedule


class TimedOp(NamedTuple):
    """One operation in time, in seconds since the step began.

    Attributes:
        op: the operation.
        wait_start: from when the device waited for the operation's inputs.
        start: when it had them all and began to compute.
        end: when it was done.
    """

    op: Op
    wait_start: float
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it computed."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A step: what each device ran when. It begins at 0 s.

    Attributes:
        columns: for each device, its operations in the order of time.
        block_ends: of the schedule.
    """

    columns: tuple[tuple[TimedOp, ...], ...]
    block_ends: frozenset[int] = frozenset()

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[int, Op, float, float, float]],
        block_ends: frozenset[int] = frozenset(),
    ) -> Timeline:
        """The timeline of a measured step.

        Args:
            rows: (device, operation, wait_start, start, end) in any order, in seconds
                of one clock; the earliest of all times becomes 0.
            block_ends: of the schedule.

        Raises:
            ValueError: naming every operation whose times contradict themselves or the
                operation before it on its device.
        """
        rows = list(rows)
        begin = min((row[2] for row in rows), default=0.0)
        num_devices = max((row[0] for row in rows), default=-1) + 1
        columns: list[list[TimedOp]] = [[] for _ in range(num_devices)]
        for device, op, *times in rows:
            columns[device].append(TimedOp(op, *(time - begin for time in times)))
        for column in columns:
            column.sort(key=lambda timed: timed[1:])
        timeline = cls(tuple(map(tuple, columns)), block_ends)
        timeline._check_order()
        return timeline

    def _check_order(self) -> None:
        faults = []
        for device, column in enumerate(self.columns):
            free = 0.0
            for op, wait_start, start, end in column:
                if not free <= wait_start <= start <= end:
                    faults.append(
                        f"device {device} is free at {free:g} s, but the {op} has "
                        f"{wait_start:g}, {start:g} and {end:g} s"
                    )
                free = end
        if faults:
            raise ValueError(
                "On each device an operation's times must ascend: the end of the one "
                "before it, wait_start, start, end. " + "; ".join(faults) + "."
            )

    def ops(self) -> Iterator[tuple[int, TimedOp]]:
        """All operations as (device, operation)."""
        for device, column in enumerate(self.columns):
            for timed in column:
                yield device, timed

    @property
    def schedule(self) -> Schedule:
        """What ran, without its times."""
        ops = [timed.op for _, timed in self.ops()]
        return Schedule(
            num_stages=max((op.stage for op in ops), default=-1) + 1,
            num_micro_batches=max((op.micro_batch for op in ops), default=-1) + 1,
            columns=tuple(tuple(t.op for t in column) for column in self.columns),
            block_ends=self.block_ends,
        )

    @functools.cached_property
    def step_seconds(self) -> float:
        """How long the step took."""
        return max((timed.end for _, timed in self.ops()), default=0.0)

    def busy_seconds(self, device: int) -> float:
        """How long a device computed."""
        return sum(timed.seconds for timed in self.columns[device])

    def idle_seconds(self, device: int) -> float:
        """How long a device did not compute while the step lasted."""
        return self.step_seconds - self.busy_seconds(device)

    @property
    def bubble_fraction(self) -> float:
        """The part of the devices' time in which they did not compute."""
        total = self.step_seconds * len(self.columns)
        idle = sum(map(self.idle_seconds, range(len(self.columns))))
        return idle / total if total else 0.0
