"""Proves a schedule before anything is built from it. Pure.

A schedule that passes can't hang: each operation stands exactly once, on one device a
stage; running the columns together never gets stuck; and since neighbours talk through
first-in-first-out channels, both ends of a channel go through the micro-batches in the
same order. Each kind takes the micro-batches of a stage in ascending order, which makes
sums of gradients, and so the trained bytes, the same in every schedule.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from lingvo_pipe.pipeline.schedules.fault_list import listed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.slots import num_kept


def check(schedule: Schedule, max_kept: int | Sequence[int] | None = None) -> None:
    """Checks a schedule.

    Args:
        schedule: any.
        max_kept: of how many (micro-batch, stage) pairs a device may keep residuals at
            a time: a number for each device, or one for all. None: any number.

    Raises:
        ValueError: naming the faults of the first sort found: device and operation.
    """
    for find_faults in (_misplaced, _miscounted, _out_of_order, _stuck):
        _raise_if_any(find_faults(schedule))
    if max_kept is not None:
        _raise_if_any(_too_much_kept(schedule, _limits(schedule, max_kept)))


def _raise_if_any(faults: list[str]) -> None:
    if faults:
        raise ValueError(f"This schedule can't be run: {listed(faults)}")


def _misplaced(schedule: Schedule) -> list[str]:
    homes: dict[int, int] = {}
    faults = []
    for device, op in schedule.ops():
        if not 0 <= op.stage < schedule.num_stages:
            limit = f"stages are 0..{schedule.num_stages - 1}"
            faults.append(f"device {device} has the {op}, but {limit}")
        elif not 0 <= op.micro_batch < schedule.num_micro_batches:
            limit = f"micro-batches are 0..{schedule.num_micro_batches - 1}"
            faults.append(f"device {device} has the {op}, but {limit}")
        elif homes.setdefault(op.stage, device) != device:
            faults.append(
                f"device {device} has the {op}, but stage {op.stage} belongs to "
                f"device {homes[op.stage]}"
            )
    return faults


def _miscounted(schedule: Schedule) -> list[str]:
    counts = Counter(op for _, op in schedule.ops())
    once = {Kind.FORWARD}
    if schedule.kinds != once:
        once.add(Kind.BACKWARD)
    if Kind.WEIGHT_GRADIENT in schedule.kinds:
        once.add(Kind.WEIGHT_GRADIENT)
    return [
        f"the {op} stands {counts[op]} times instead of "
        + ("once" if op.kind in once else "at most once")
        for op in _possible_ops(schedule)
        if counts[op] > 1 or (counts[op] == 0 and op.kind in once)
    ]


def _possible_ops(schedule: Schedule) -> Iterator[Op]:
    return itertools.starmap(
        Op,
        itertools.product(
            Kind, range(schedule.num_micro_batches), range(schedule.num_stages)
        ),
    )


def _out_of_order(schedule: Schedule) -> list[str]:
    faults = []
    last: dict[tuple[Kind, int], Op] = {}
    for device, op in schedule.ops():
        before = last.get((op.kind, op.stage))
        if before and before.micro_batch > op.micro_batch:
            faults.append(
                f"on device {device} the {op} stands after micro-batch "
                f"{before.micro_batch}, but a stage must take them in ascending order"
            )
        last[op.kind, op.stage] = op
    return faults


def _stuck(schedule: Schedule) -> list[str]:
    """Runs the columns together, ignoring time, until nothing moves."""
    done: set[Op] = set()
    positions = [0] * schedule.num_devices
    moved = True
    while moved:
        moved = False
        for device, column in enumerate(schedule.columns):
            while positions[device] < len(column):
                op = column[positions[device]]
                if not done.issuperset(schedule.dependencies(op)):
                    break
                done.add(op)
                positions[device] += 1
                moved = True
    faults = []
    for device, column in enumerate(schedule.columns):
        if positions[device] < len(column):
            op = column[positions[device]]
            missing = [need for need in schedule.dependencies(op) if need not in done]
            faults.append(
                f"device {device} waits forever in the {op} for the {missing[0]}"
            )
    return faults


def _limits(schedule: Schedule, max_kept: int | Sequence[int]) -> Sequence[int]:
    if not isinstance(max_kept, Sequence):
        return [max_kept] * schedule.num_devices
    if len(max_kept) != schedule.num_devices:
        raise ValueError(
            f"max_kept must be one number, or one for each of {schedule.num_devices} "
            f"devices; got {list(max_kept)}."
        )
    return max_kept


def _too_much_kept(schedule: Schedule, limits: Sequence[int]) -> list[str]:
    """Names the first operation on each device that exceeds its limit."""
    faults = []
    for device, limit in enumerate(limits):
        numbers = num_kept(schedule, device)
        for op, now in zip(schedule.columns[device], numbers, strict=True):
            if now.residuals > limit:
                faults.append(
                    f"device {device} may keep the residuals of {limit} micro-batches, "
                    f"but has those of {now.residuals} after the {op}"
                )
                break
    return faults
