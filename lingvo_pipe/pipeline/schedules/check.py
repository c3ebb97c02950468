"""Checks that a schedule can run, before anything is built from the schedule.

    device 1 |    F0 F1 B0 B1          passes
    device 0 | F0 F1       B0 B1

    device 1 |    B0 F0                stuck: B0 waits for F0, which comes after it
    device 0 | F0       B0

A schedule that passes can't hang. It has each required operation exactly once, all
operations of a stage are on one device, and running the columns together never gets
stuck. On each stage, each kind of operation takes the micro-batches in ascending order.
So both ends of a first-in-first-out channel take them in the same order. Sums of
gradients have the same order too, so trained weights are identical in every schedule.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule

_MAX_NAMED = 10


def check(schedule: Schedule, path: str = "schedule") -> None:
    """Raises ValueError if the schedule at `path` can't run.

    Looks for four kinds of problems in turn. The error lists at most ten problems, all
    of the first kind that is found.
    """
    for find_problems in (_misplaced, _miscounted, _out_of_order, _stuck):
        if problems := find_problems(schedule):
            summary = join_problems(problems)
            raise UserValueError(f"{path} cannot run: {summary}", path=path)


def join_problems(problems: Sequence[str]) -> str:
    """Returns a sentence with the first ten problems and the number of further ones."""
    unnamed = len(problems) - _MAX_NAMED
    more = f"; and {unnamed} more" if unnamed > 0 else ""
    return "; ".join(problems[:_MAX_NAMED]) + more + "."


def _misplaced(schedule: Schedule) -> list[str]:
    counts = Counter((op.stage, device) for device, op in schedule.ops())
    # The device with most of a stage's operations, by stage. Among equals, the first.
    devices = dict(pair for pair, _ in reversed(counts.most_common()))
    problems = []
    for device, op in schedule.ops():
        if not 0 <= op.stage < schedule.num_stages:
            reason = f"stages are 0..{schedule.num_stages - 1}"
        elif not 0 <= op.micro_batch < schedule.num_micro_batches:
            reason = f"micro-batches are 0..{schedule.num_micro_batches - 1}"
        elif devices[op.stage] != device:
            reason = f"stage {op.stage} belongs to device {devices[op.stage]}"
        else:
            continue
        problems.append(f"device {device} has the {op}, but {reason}")
    return problems


def _miscounted(schedule: Schedule) -> list[str]:
    counts = Counter(op for _, op in schedule.ops())
    once = {Kind.FORWARD}
    if schedule.kinds != once:
        once.add(Kind.BACKWARD)
    once |= schedule.kinds & {Kind.WEIGHT_GRADIENT, Kind.UPDATE}
    return [
        f"the {op} occurs {number} times instead of "
        + ("once" if op.kind in once else "at most once")
        for op in _possible_ops(schedule, once | schedule.kinds)
        if (number := counts.get(op, 0)) > 1 or (number == 0 and op.kind in once)
    ]


def _possible_ops(schedule: Schedule, kinds: Collection[Kind]) -> Iterator[Op]:
    micro_batches = range(schedule.num_micro_batches)
    for kind in filter(kinds.__contains__, Kind):
        step = schedule.micro_batches_per_step if kind is Kind.UPDATE else 1
        of_kind = micro_batches[step - 1 :: step]
        for m, stage in itertools.product(of_kind, range(schedule.num_stages)):
            yield Op(kind, m, stage)


def _out_of_order(schedule: Schedule) -> list[str]:
    problems = []
    last: dict[tuple[Kind, int], Op] = {}
    for device, op in schedule.ops():
        before = last.get((op.kind, op.stage))
        if before and before.micro_batch > op.micro_batch:
            problems.append(
                f"on device {device} the {op} comes after micro-batch "
                f"{before.micro_batch}, but a stage must take them in ascending order"
            )
        last[op.kind, op.stage] = op
    return problems


def _stuck(schedule: Schedule) -> list[str]:
    """Returns a problem for each device that waits forever when the columns run."""
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
    problems = []
    for device, column in enumerate(schedule.columns):
        if positions[device] < len(column):
            op = column[positions[device]]
            missing = [need for need in schedule.dependencies(op) if need not in done]
            problems.append(
                f"device {device} waits forever in the {op} for the {missing[0]}"
            )
    return problems
