"""What stages need, against going through the schedule and counting what is there."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.interleaved import interleaved
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble
from lingvo_pipe.pipeline.stage_memory import CallBytes, StageMemory, StageNeeds

NUM_CALLS = 6
NUM_INPUTS = 2
SIZES = [*range(4), 10, 100]
F, R, B, W, _ = Kind


def random_calls(rng: random.Random) -> tuple[list[CallBytes], dict[int, int]]:
    """Calls that use values of any before them; the first values are inputs."""
    calls: list[CallBytes] = []
    number = NUM_INPUTS
    for _ in range(NUM_CALLS):
        made = range(number, number + rng.randrange(3))
        weights, totals, residuals, later = rng.choices(SIZES, k=4)
        again = rng.random() < 0.6
        used = rng.choices(range(number), k=rng.randrange(4))
        calls.append(CallBytes(weights, totals, residuals, later, again, used, made))
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


def all_ends(num_stages: int) -> Iterator[list[int]]:
    for middle in itertools.combinations(range(1, NUM_CALLS), num_stages - 1):
        yield [*middle, NUM_CALLS]


def kept_bytes(
    schedule: Schedule,
    done: set[Op],
    stage: int,
    calls: Sequence[CallBytes],
    values: dict[int, int],
) -> int:
    """What a stage must keep, when these operations are done."""
    total = 0
    for m in range(schedule.num_micro_batches):
        last = Op(W if W in schedule.kinds else B, m, stage)
        if Op(F, m, stage) not in done or last in done:
            continue
        recompute = Op(R, m, stage)
        if Op(B, m, stage) in done:
            total += sum(call.weight_residuals for call in calls)
        elif recompute not in schedule or recompute in done:
            total += sum(call.residuals for call in calls)
        else:
            again = [call for call in calls if call.recomputed]
            kept = [call for call in calls if not call.recomputed]
            total += sum(call.residuals for call in kept)
            needed: set[int] = set()
            for call in reversed(again):
                needed = (needed - set(call.made)) | set(call.used)
            total += sum(values.get(value, 0) for value in needed)
    return total


def counted(
    schedule: Schedule,
    calls: Sequence[CallBytes],
    values: dict[int, int],
    ends: Sequence[int],
) -> list[int]:
    """The most that each device needs, counted after each of its operations."""
    of_stage = [calls[a:b] for a, b in itertools.pairwise([0, *ends])]
    peaks = []
    for column in schedule.columns:
        stages = {op.stage for op in column}
        own = [call for stage in stages for call in of_stage[stage]]
        done: set[Op] = set()
        most = 0
        for op in column:
            done.add(op)
            kept = [
                kept_bytes(schedule, done, stage, of_stage[stage], values)
                for stage in stages
            ]
            most = max(most, sum(kept))
        peaks.append(most + sum(call.weights + call.totals for call in own))
    return peaks


def test_devices_need_what_is_counted_after_each_operation() -> None:
    rng = random.Random(0)
    for schedule in schedules():
        for ends in all_ends(schedule.num_stages):
            calls, values = random_calls(rng)
            memory = StageMemory(calls, values)
            want = counted(schedule, calls, values, ends)
            assert memory.of_devices(schedule, ends) == want


def test_a_stage_by_itself_needs_what_its_device_does() -> None:
    """And several stages of a device no more than all together."""
    rng = random.Random(1)
    for schedule in schedules():
        homes = schedule.device_of_stage()
        for ends in all_ends(schedule.num_stages):
            memory = StageMemory(*random_calls(rng))
            needs = StageNeeds(memory, schedule)
            alone = [0] * schedule.num_devices
            for stage, pair in enumerate(itertools.pairwise([0, *ends])):
                alone[homes[stage]] += needs(stage, *pair)
            together = memory.of_devices(schedule, ends)
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


def test_but_for_what_it_starts_from_a_stage_needs_no_more() -> None:
    """And no less if it is longer, to the front too."""
    rng = random.Random(3)
    less = 0
    for schedule in schedules():
        needs = StageNeeds(StageMemory(*random_calls(rng)), schedule)
        for stage in range(schedule.num_stages):
            least = functools.partial(needs.at_least, stage)
            for start, end in itertools.combinations(range(NUM_CALLS + 1), 2):
                assert least(start, end) <= needs(stage, start, end)
                less += least(start, end) < needs(stage, start, end)
                assert start == 0 or least(start, end) <= least(start - 1, end)
                assert end == NUM_CALLS or least(start, end) <= least(start, end + 1)
    assert less


def test_stages_that_are_alike_need_the_same() -> None:
    rng = random.Random(4)
    shared = different = 0
    for schedule in schedules():
        needs = StageNeeds(StageMemory(*random_calls(rng)), schedule)
        keys = needs.alike()
        assert len(keys) == schedule.num_stages
        for a, b in itertools.combinations(range(schedule.num_stages), 2):
            for start, end in itertools.combinations(range(NUM_CALLS + 1), 2):
                if keys[a] == keys[b]:
                    assert needs(a, start, end) == needs(b, start, end)
                    assert needs.at_least(a, start, end) == needs.at_least(
                        b, start, end
                    )
            shared += keys[a] == keys[b]
            different += keys[a] != keys[b]
    assert shared
    assert different
