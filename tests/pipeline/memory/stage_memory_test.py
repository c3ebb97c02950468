"""Memory of stages, against counting during each operation of the schedule."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, SharedWeight, Workspace
from lingvo_pipe.pipeline.memory.host_bytes import host_bytes
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.memory.stage_needs import StageNeeds
from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import COPIES, Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, stash_use
from tests.pipeline.boundaries import all_boundaries

NUM_CALLS, NUM_INPUTS = 6, 2
SIZES = [*range(4), 10, 100]
F, R, B, W, *_ = Kind


def random_calls(rng: random.Random) -> tuple[list[CallBytes], dict[int, int]]:
    """Returns calls that use any earlier values; the first values are inputs."""
    calls: list[CallBytes] = []
    number = NUM_INPUTS
    for _ in range(NUM_CALLS):
        made = range(number, number + rng.randrange(3))
        weights, accumulators, residuals, later = rng.choices(SIZES, k=4)
        again = rng.random() < 0.6
        used = rng.choices(range(number), k=rng.randrange(4))
        own = CallBytes(weights, accumulators, residuals, later, again, used, made)
        near = [*used, *made]
        shared = [rng.sample(near, rng.randint(0, len(near))) for _ in range(2)]
        new = rng.choice(SIZES)
        workspace = Workspace(*(tuple(rng.choices(SIZES, k=2)) for _ in range(4)))
        calls.append(
            own._replace(
                residual_values=shared[0],
                weight_residual_values=shared[1],
                new_weight_residuals=new,
                workspace=workspace,
                offloaded=not again and rng.random() < 0.5,
            )
        )
        number += len(made)
    return calls, {value: rng.choice(SIZES) for value in range(NUM_INPUTS, number)}


def test_a_call_needs_no_workspace_unless_it_says_so() -> None:
    assert CallBytes(0, 0, 0, 0, False, [], []).workspace == Workspace(*[(0,)] * 4)


def random_shared_weights(
    rng: random.Random, calls: Sequence[CallBytes]
) -> list[SharedWeight]:
    """Returns weights, each a part of the weights of several calls."""
    left = [call.weights for call in calls]
    found = []
    for _ in range(rng.randrange(4)):
        users = sorted(rng.sample(range(NUM_CALLS), rng.randint(2, 4)))
        num_bytes = rng.randint(0, min(left[i] for i in users))
        for i in users:
            left[i] -= num_bytes
        found.append(SharedWeight(num_bytes, users))
    return found


def schedules() -> Iterator[Schedule]:
    for sizes in [(1, 3), (2, 4), (3, 5), (4, 2)]:
        yield zero_bubble(*sizes)
        yield recomputed(zero_bubble(*sizes), "always")
        for policy, generate in itertools.product(
            ("always", "never", "except_last"), (gpipe, one_f_one_b)
        ):
            yield recomputed(generate(*sizes), policy)
        for policy in ("always", "never"):
            yield offloaded(recomputed(gpipe(sizes[0], 5), policy))
    yield recomputed(interleaved(2, 4, 2), "always")
    yield interleaved(2, 4, 3)


class Stage(NamedTuple):
    """A stage's calls, and the bytes of all values."""

    calls: Sequence[CallBytes]
    values: dict[int, int]
    in_place: bool

    def saved(self) -> set[int]:
        """Returns the buffers from the forward pass that a recomputation needs."""
        found: set[int] = set()
        for call in reversed(self.calls):
            if call.recomputed:
                found = (found - set(call.made)) | set(call.used)
        others = [c for c in self.calls if not (c.recomputed or c.offloaded)]
        return found.union(*(call.residual_values for call in others))

    def copied_values(self) -> int:
        """Returns the bytes of the values that a micro-batch has on the host."""
        copied = [set(c.residual_values) for c in self.calls if c.offloaded]
        return self.bytes_of(set().union(*copied))

    def copied(self) -> int:
        """Returns the bytes that a micro-batch has on the host."""
        own = [call.residuals for call in self.calls if call.offloaded]
        return sum(own) + self.copied_values()

    def buffers(self) -> set[tuple[int, bool]]:
        """Returns values of residuals, and if they are from the recomputation."""
        made = {v for call in self.calls if call.recomputed for v in call.made}
        return {
            (value, call.recomputed and value in made)
            for call in self.calls
            if not call.offloaded
            for value in call.residual_values
        }

    def stashed(self, kind: StashKind | None) -> int:
        """Returns the bytes of a micro-batch in a stash."""
        if kind is StashKind.FOR_RECOMPUTE:
            own = [call.residuals for call in self.calls if not call.recomputed]
            return sum(own) + self.bytes_of(self.saved()) + self.copied_values()
        if kind is StashKind.RESIDUALS:
            own = [call.residuals for call in self.calls]
            buffers = self.bytes_of(value for value, _ in self.buffers())
            return sum(own) + buffers + self.copied_values()
        own = [call.weight_residuals for call in self.calls]
        found = {v for call in self.calls for v in call.weight_residual_values}
        return sum(own) + self.bytes_of(found)

    def bytes_of(self, values: Iterable[int]) -> int:
        return sum(self.values.get(value, 0) for value in values)

    def during(self, kind: Kind, stash: StashKind | None) -> int:
        """Returns the most bytes of a micro-batch while an operation runs on it."""
        if kind is F and stash is StashKind.FOR_RECOMPUTE:
            return self.stashed(stash)
        peaks, calls = [], self.calls
        for j, call in enumerate(calls):
            forward, backward, input_backward, weight_backward = map(
                max, call.workspace
            )
            if kind in (F, R):
                buffers = self.buffers()
                if kind is R:
                    buffers |= {(value, False) for value in self.saved()}
                in_values = self.bytes_of(value for value, _ in buffers)
                in_values += self.copied_values()
                done = sum(x.residuals for x in calls[: j + 1])
                every = sum(x.residuals for x in calls)
                peaks.append(in_values + max(done + forward, every))
            elif kind is W:
                gradients = self.new_gradients(calls[:j])
                late = self.stashed(StashKind.WEIGHT_RESIDUALS)
                peaks.append(late + gradients + weight_backward)
            elif stash is None:
                gradients = self.new_gradients(calls[j + 1 :])
                residuals = self.stashed(StashKind.RESIDUALS)
                peaks.append(residuals + gradients + backward)
            else:
                late = sum(x.new_weight_residuals for x in calls[j:])
                residuals = self.stashed(StashKind.RESIDUALS)
                peaks.append(residuals + late + input_backward)
        return max(peaks)

    def new_gradients(self, calls: Sequence[CallBytes]) -> int:
        return 0 if self.in_place else sum(call.accumulators for call in calls)


def counted(
    schedule: Schedule,
    calls: Sequence[CallBytes],
    values: dict[int, int],
    boundaries: Sequence[int],
    in_place: bool,
    shared: Sequence[SharedWeight],
) -> list[int]:
    """Returns the peak bytes of each device, counted during each of its operations."""
    stages = [
        Stage(calls[a:b], values, in_place)
        for a, b in itertools.pairwise([0, *boundaries])
    ]
    loss = 1 if in_place else Fraction(6, 5)  # The allocator's.
    peaks = []
    for column in schedule.columns:
        stash: dict[tuple[int, int], int] = {}
        peak = 0
        for op in column:
            stage, pair = stages[op.stage], (op.stage, op.micro_batch)
            if op.kind in COPIES:
                stash[pair] += stage.copied() * (1 if op.kind is Kind.LOAD else -1)
                peak = max(peak, sum(stash.values()))
                continue
            written = stash_use(schedule, op).write
            stash[pair] = int(stage.during(op.kind, written) * loss)
            peak = max(peak, sum(stash.values()))
            stash[pair] = stage.stashed(written) if written else 0
        held, ranges = 0, []
        for k in sorted({op.stage for op in column}):
            ranges.append(range([0, *boundaries][k], boundaries[k]))
            held += sum(calls[i].weights + calls[i].accumulators for i in ranges[-1])
        for num_bytes, users in shared:
            numbers = [sum(i in own for i in users) for own in ranges]
            is_owner = any(users[0] in own for own in ranges)
            num_copies = 1 if is_owner else sum(map(bool, numbers))
            held -= num_bytes * (sum(numbers) - num_copies)
        peaks.append(peak + held)
    return peaks


def test_devices_need_what_is_counted_during_each_operation() -> None:
    rng = random.Random(0)
    for schedule in schedules():
        for boundaries in all_boundaries(NUM_CALLS, schedule.num_stages):
            calls, values = random_calls(rng)
            in_place = rng.random() < 0.5
            shared = random_shared_weights(rng, calls)
            memory = StageMemory(calls, values, in_place, shared)
            want = counted(schedule, calls, values, boundaries, in_place, shared)
            assert memory.of_devices(schedule, boundaries) == want


def test_hosts_hold_what_is_counted_from_forward_to_backward() -> None:
    rng = random.Random(5)
    schedule, boundaries = offloaded(interleaved(2, 6, 2)), [1, 3, 4, NUM_CALLS]
    held = 0
    for _ in range(20):
        calls, values = random_calls(rng)
        pairs = itertools.pairwise([0, *boundaries])
        stages = [Stage(calls[a:b], values, False) for a, b in pairs]
        want = [_on_host(column, schedule, stages) for column in schedule.columns]
        assert host_bytes(StageMemory(calls, values), schedule, boundaries) == want
        held += sum(want)
    assert held


def _on_host(column: Iterable[Op], schedule: Schedule, stages: Sequence[Stage]) -> int:
    away: dict[tuple[int, int], int] = {}
    peak = 0
    for op in column:
        if op.kind is B:
            away.pop((op.micro_batch, op.stage), None)
        if op.kind is F and schedule.offloads(op):
            away[op.micro_batch, op.stage] = stages[op.stage].copied()
        peak = max(peak, sum(away.values()))
    return peak


def test_a_stage_by_itself_needs_what_its_device_does() -> None:
    """Several stages need no more than one that runs and others that do not."""
    rng = random.Random(1)
    for schedule in schedules():
        owners = schedule.device_of_stage()
        for boundaries in all_boundaries(NUM_CALLS, schedule.num_stages):
            memory = StageMemory(*random_calls(rng))
            needs = StageNeeds(memory, schedule)
            alone = [0] * schedule.num_devices
            running = list(alone)
            for stage, pair in enumerate(itertools.pairwise([0, *boundaries])):
                own, device = needs(stage, *pair), owners[stage]
                idle = needs(stage, *pair, 2) - own
                running[device] = max(running[device] + idle, alone[device] + own)
                alone[device] += idle
            together = memory.of_devices(schedule, boundaries)
            if schedule.num_stages == schedule.num_devices:
                assert running == together
            else:
                assert all(a >= b for a, b in zip(running, together, strict=True))


def test_a_stage_that_offloads_has_few_moments() -> None:
    """Most moments lie between two others, however many micro-batches there are."""
    memory = StageMemory(*random_calls(random.Random(3)))
    few, many = (
        StageNeeds(memory, offloaded(gpipe(2, number))).stage_keys()
        for number in (6, 60)
    )
    assert [len(moments) for moments, _ in few] == [len(moments) for moments, _ in many]


def test_a_longer_stage_needs_no_less() -> None:
    rng = random.Random(2)
    for schedule in schedules():
        needs = StageNeeds(StageMemory(*random_calls(rng)), schedule)
        for stage, start in itertools.product(
            range(schedule.num_stages), range(NUM_CALLS)
        ):
            sizes = [needs(stage, start, e) for e in range(start + 1, NUM_CALLS + 1)]
            assert sizes == sorted(sizes)


def test_a_stage_has_each_of_its_weights_once() -> None:
    rng = random.Random(4)
    for _ in range(200):
        calls, values = random_calls(rng)
        shared = random_shared_weights(rng, calls)
        memory = StageMemory(calls, values, shared_weights=shared)
        for start, end in itertools.combinations(range(NUM_CALLS + 1), 2):
            own = sum(call.weights for call in calls[start:end])
            for num_bytes, users in shared:
                others = [i for i in users if start <= i < end][1:]
                own -= num_bytes * len(others)
            assert memory.weights(start, end) == own


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
