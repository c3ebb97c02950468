"""Memory of stages, against counting after each operation of the schedule."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence

from lingvo_pipe.pipeline.memory.stage_memory import CallBytes, StageMemory, StageNeeds
from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule

NUM_CALLS = 6
NUM_INPUTS = 2
SIZES = [*range(4), 10, 100]
F, R, B, W, _ = Kind


def random_calls(rng: random.Random) -> tuple[list[CallBytes], dict[int, int]]:
    """Returns calls that use any earlier values; the first values are inputs."""
    calls: list[CallBytes] = []
    number = NUM_INPUTS
    for _ in range(NUM_CALLS):
        made = range(number, number + rng.randrange(3))
        weights, accumulators, residuals, later = rng.choices(SIZES, k=4)
        again = rng.random() < 0.6
        used = rng.choices(range(number), k=rng.randrange(4))
        own = weights, accumulators, residuals, later, again, used, made
        near = [*used, *made]
        shared = [rng.sample(near, rng.randint(0, len(near))) for _ in range(2)]
        calls.append(CallBytes(*own, *shared))
        number += len(made)
    return calls, {value: rng.choice(SIZES) for value in range(NUM_INPUTS, number)}


def schedules() -> Iterator[Schedule]:
    for sizes in [(1, 3), (2, 4), (3, 5), (4, 2)]:
        yield zero_bubble(*sizes)
        yield recomputed(zero_bubble(*sizes), "always")
        for policy, generate in itertools.product(
            ("always", "never", "except_last"), (gpipe, one_f_one_b)
        ):
            yield recomputed(generate(*sizes), policy)
    yield recomputed(interleaved(2, 4, 2), "always")
    yield interleaved(2, 4, 3)


def all_boundaries(num_stages: int) -> Iterator[list[int]]:
    for middle in itertools.combinations(range(1, NUM_CALLS), num_stages - 1):
        yield [*middle, NUM_CALLS]


def stash_bytes(
    schedule: Schedule,
    done: set[Op],
    stage: int,
    calls: Sequence[CallBytes],
    values: dict[int, int],
) -> int:
    """Returns the bytes that a stage must stash after these operations."""
    total = 0
    for m in range(schedule.num_micro_batches):
        last = Op(W if W in schedule.kinds else B, m, stage)
        if Op(F, m, stage) not in done or last in done:
            continue
        recompute = Op(R, m, stage)
        if Op(B, m, stage) in done:
            total += sum(call.weight_residuals for call in calls)
            buffers = {value for call in calls for value in call.weight_residual_values}
        elif recompute not in schedule or recompute in done:
            total += sum(call.residuals for call in calls)
            total += second_buffers(calls, values)
            buffers = {value for call in calls for value in call.residual_values}
        else:
            again = [call for call in calls if call.recomputed]
            others = [call for call in calls if not call.recomputed]
            total += sum(call.residuals for call in others)
            buffers = set()
            for call in reversed(again):
                buffers = (buffers - set(call.made)) | set(call.used)
            buffers.update(value for call in others for value in call.residual_values)
        total += sum(values.get(value, 0) for value in buffers)
    return total


def second_buffers(calls: Sequence[CallBytes], values: dict[int, int]) -> int:
    """Returns the bytes of values that are stashed as first made, and as recomputed."""
    twice = set()
    for i, maker in enumerate(calls):
        users = [call for call in calls[i:] if maker.recomputed]
        for value in maker.made:
            flags = {x.recomputed for x in users if value in x.residual_values}
            if len(flags) == 2:
                twice.add(value)
    return sum(values.get(value, 0) for value in twice)


def counted(
    schedule: Schedule,
    calls: Sequence[CallBytes],
    values: dict[int, int],
    boundaries: Sequence[int],
) -> list[int]:
    """Returns the peak bytes of each device, counted after each of its operations."""
    stage_calls = [calls[a:b] for a, b in itertools.pairwise([0, *boundaries])]
    peaks = []
    for column in schedule.columns:
        stages = {op.stage for op in column}
        own = [call for stage in stages for call in stage_calls[stage]]
        done: set[Op] = set()
        peak = 0
        for op in column:
            done.add(op)
            stash = [
                stash_bytes(schedule, done, stage, stage_calls[stage], values)
                for stage in stages
            ]
            peak = max(peak, sum(stash))
        peaks.append(peak + sum(call.weights + call.accumulators for call in own))
    return peaks


def test_devices_need_what_is_counted_after_each_operation() -> None:
    rng = random.Random(0)
    for schedule in schedules():
        for boundaries in all_boundaries(schedule.num_stages):
            calls, values = random_calls(rng)
            memory = StageMemory(calls, values)
            want = counted(schedule, calls, values, boundaries)
            assert memory.of_devices(schedule, boundaries) == want


def test_a_stage_by_itself_needs_what_its_device_does() -> None:
    """Several stages of a device need no more together than one by one."""
    rng = random.Random(1)
    for schedule in schedules():
        owners = schedule.device_of_stage()
        for boundaries in all_boundaries(schedule.num_stages):
            memory = StageMemory(*random_calls(rng))
            needs = StageNeeds(memory, schedule)
            alone = [0] * schedule.num_devices
            for stage, pair in enumerate(itertools.pairwise([0, *boundaries])):
                alone[owners[stage]] += needs(stage, *pair)
            together = memory.of_devices(schedule, boundaries)
            if schedule.num_stages == schedule.num_devices:
                assert alone == together
            else:
                assert all(a >= b for a, b in zip(alone, together, strict=True))


def test_a_longer_stage_needs_no_less() -> None:
    rng = random.Random(2)
    for schedule in schedules():
        needs = StageNeeds(StageMemory(*random_calls(rng)), schedule)
        for stage, start in itertools.product(
            range(schedule.num_stages), range(NUM_CALLS)
        ):
            sizes = [needs(stage, start, e) for e in range(start + 1, NUM_CALLS + 1)]
            assert sizes == sorted(sizes)


def test_the_lower_bound_is_a_lower_bound() -> None:
    """It does not fall where a stage grows, in either direction."""
    rng = random.Random(3)
    less = 0
    for schedule in schedules():
        needs = StageNeeds(StageMemory(*random_calls(rng)), schedule)
        for stage in range(schedule.num_stages):
            bound = functools.partial(needs.lower_bound, stage)
            for start, end in itertools.combinations(range(NUM_CALLS + 1), 2):
                assert bound(start, end) <= needs(stage, start, end)
                less += bound(start, end) < needs(stage, start, end)
                assert start == 0 or bound(start, end) <= bound(start - 1, end)
                assert end == NUM_CALLS or bound(start, end) <= bound(start, end + 1)
    assert less


def test_stages_of_one_key_need_the_same() -> None:
    rng = random.Random(4)
    shared = different = 0
    for schedule in schedules():
        needs = StageNeeds(StageMemory(*random_calls(rng)), schedule)
        keys = needs.stage_keys()
        assert len(keys) == schedule.num_stages
        for a, b in itertools.combinations(range(schedule.num_stages), 2):
            for start, end in itertools.combinations(range(NUM_CALLS + 1), 2):
                if keys[a] == keys[b]:
                    assert needs(a, start, end) == needs(b, start, end)
                    assert needs.lower_bound(a, start, end) == needs.lower_bound(
                        b, start, end
                    )
            shared += keys[a] == keys[b]
            different += keys[a] != keys[b]
    assert shared
    assert different
