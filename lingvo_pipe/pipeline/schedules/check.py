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
from collections.abc import Iterator

from lingvo_pipe.pipeline.schedules.fault_list import listed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def check(schedule: Schedule) -> None:
    """Checks a schedule.

    Raises:
        ValueError: naming the faults of the first sort found: device and operation.
    """
    for find_faults in (_misplaced, _miscounted, _out_of_order, _stuck):
        faults = find_faults(schedule)
        if faults:
            raise ValueError(f"This schedule can't be run: {listed(faults)}")


def _misplaced(schedule: Schedule) -> list[str]:
    homes = _homes(schedule)
    faults = []
    for device, op in schedule.ops():
        if not 0 <= op.stage < schedule.num_stages:
            limit = f"stages are 0..{schedule.num_stages - 1}"
            faults.append(f"device {device} has the {op}, but {limit}")
        elif not 0 <= op.micro_batch < schedule.num_micro_batches:
            limit = f"micro-batches are 0..{schedule.num_micro_batches - 1}"
            faults.append(f"device {device} has the {op}, but {limit}")
        elif homes[op.stage] != device:
            faults.append(
                f"device {device} has the {op}, but stage {op.stage} belongs to "
                f"device {homes[op.stage]}"
            )
    return faults


def _homes(schedule: Schedule) -> dict[int, int]:
    """The device of each stage: the first of those that have most of its operations."""
    counts = Counter((op.stage, device) for device, op in schedule.ops())
    homes: dict[int, int] = {}
    for (stage, device), _ in counts.most_common():
        homes.setdefault(stage, device)
    return homes


def _miscounted(schedule: Schedule) -> list[str]:
    counts = Counter(op for _, op in schedule.ops())
    once = {Kind.FORWARD}
    if schedule.kinds != once:
        once.add(Kind.BACKWARD)
    once |= schedule.kinds & {Kind.WEIGHT_GRADIENT, Kind.UPDATE}
    return [
        f"the {op} stands {counts[op]} times instead of "
        + ("once" if op.kind in once else "at most once")
        for op in _possible_ops(schedule)
        if counts[op] > 1 or (counts[op] == 0 and op.kind in once)
    ]


def _possible_ops(schedule: Schedule) -> Iterator[Op]:
    every, per_step = schedule.num_micro_batches, schedule.micro_batches_per_step
    for kind in Kind:
        first = per_step - 1 if kind is Kind.UPDATE else 0
        of_kind = range(first, every, per_step if kind is Kind.UPDATE else 1)
        for m, stage in itertools.product(of_kind, range(schedule.num_stages)):
            yield Op(kind, m, stage)


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
