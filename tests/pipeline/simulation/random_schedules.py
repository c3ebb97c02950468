"""Random schedules and costs, for tests against brute force."""

from __future__ import annotations

import dataclasses
import random

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.timeline import Timeline


def random_schedule(rng: random.Random, offloads: bool = False) -> Schedule:
    """Returns a valid schedule: any stage anywhere, some recomputations and W.

    If it `offloads`, some micro-batches are offloaded, for any number of operations.
    """
    num_stages, num_micro_batches = rng.randint(1, 5), rng.randint(1, 4)
    owners = [rng.randrange(rng.randint(1, num_stages)) for _ in range(num_stages)]
    pairs = [(m, k) for m in range(num_micro_batches) for k in range(num_stages)]
    ops = [Op(kind, *pair) for kind in (Kind.FORWARD, Kind.BACKWARD) for pair in pairs]
    ops += [Op(Kind.RECOMPUTE, *pair) for pair in pairs if rng.random() < 0.4]
    if rng.random() < 0.5:
        ops += [Op(Kind.WEIGHT_GRADIENT, *pair) for pair in pairs]
    if offloads:
        away = [pair for pair in pairs if rng.random() < 0.5]
        ops += [Op(kind, *pair) for kind in (Kind.OFFLOAD, Kind.LOAD) for pair in away]
    columns: list[list[Op]] = [[] for _ in range(max(owners) + 1)]
    for op in ops:
        columns[owners[op.stage]].append(op)
    schedule = Schedule(num_stages, num_micro_batches, tuple(map(tuple, columns)))
    return shuffled(schedule, rng)


def shuffled(schedule: Schedule, rng: random.Random) -> Schedule:
    """Returns a schedule's operations in a random order that can run."""
    left = list(schedule.ops())
    columns: list[list[Op]] = [[] for _ in schedule.columns]
    done: set[Op] = set()
    while left:
        pair = rng.choice([x for x in left if _can_run(schedule, x[1], done)])
        left.remove(pair)
        device, op = pair
        columns[device].append(op)
        done.add(op)
    return dataclasses.replace(schedule, columns=tuple(map(tuple, columns)))


def _can_run(schedule: Schedule, op: Op, done: set[Op]) -> bool:
    """Returns whether all inputs and all earlier micro-batches are done."""
    earlier = [op._replace(micro_batch=m) for m in range(op.micro_batch)]
    earlier = [other for other in earlier if other in schedule]
    return done.issuperset([*schedule.dependencies(op), *earlier])


def random_costs(rng: random.Random, num_stages: int) -> Costs:
    """Returns costs that are multiples of 1/64 s, so that their sums are exact."""

    def seconds(minimum: int = 0) -> float:
        return rng.randint(minimum, 64) / 64

    stages = (
        StageCosts(
            forward=seconds(1),
            backward=seconds(1),
            recompute=rng.choice([None, seconds(1)]),
            input_gradient=rng.choice([None, seconds(1)]),
            weight_gradient=rng.choice([None, seconds(1)]),
            send_forward=rng.choice([0.0, seconds()]),
            send_backward=rng.choice([0.0, seconds()]),
            offload=rng.choice([0.0, seconds()]),
            load=rng.choice([0.0, seconds()]),
        )
        for _ in range(num_stages)
    )
    return Costs(tuple(stages), overhead=rng.choice([0.0, seconds() / 8]))


def disturbed(timeline: Timeline, rng: random.Random) -> Timeline:
    """Returns a timeline as if measured: all times vary, in the same order."""
    schedule = timeline.schedule
    free = [0.0] * schedule.num_devices
    ends: dict[Op, float] = {}
    rows = []
    for device, timed in sorted(timeline.ops(), key=lambda item: item[1].start):
        wait_start = free[device] + rng.uniform(0, 0.1)
        needed = [
            ends[need] + rng.uniform(0, 0.1) for need in schedule.dependencies(timed.op)
        ]
        start = max([wait_start, *needed])
        free[device] = ends[timed.op] = start + timed.seconds * rng.uniform(0.8, 1.3)
        rows.append((device, timed.op, wait_start, start, free[device]))
    return Timeline.from_rows(rows)
