r"""Memory of a schedule's stages, for any grouping of the layers. Pure.

    weights and gradient accumulators of a stage     during the whole training
    stash of a micro-batch                           while the schedule holds it

The stash of a micro-batch holds the residuals of the stage's layers. Between a forward
pass and its recomputation, it holds instead the values from which the recomputation
starts, and the residuals of the layers that are not recomputed. A value between layers
that several of them stash counts once, since they share its buffer; only if it is
recomputed, and a layer stashes it that is not, there are two. The workspace of running
operations does not count.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.loops.dataflow import saved_by_call
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import (
    StashKind,
    peak_stash_bytes,
    stash_counts,
)


class CallBytes(NamedTuple):
    """Bytes of a layer, or of the loss, at its position in the model."""

    weights: int
    accumulators: int  # Of its gradients.
    residuals: int  # Its own that its backward pass needs, per micro-batch.
    weight_residuals: int  # The same for its deferred weight gradients.
    recomputed: bool  # Wherever the schedule recomputes.
    used: Sequence[int]  # Numbers of the values that its forward pass takes.
    made: Sequence[int]  # Numbers of the values that it makes.
    residual_values: Sequence[int] = ()  # Values that are residuals too.
    weight_residual_values: Sequence[int] = ()


class StageMemory:
    """Bytes of stages, each given as the range of its calls from `start` to `end`."""

    def __init__(self, calls: Sequence[CallBytes], value_bytes: Mapping[int, int]):
        """Initializes the memory of all calls of a model, in order.

        `value_bytes` are of the values between calls, for one micro-batch, without the
        mini-batch's inputs, which are not stashed.
        """
        self._calls = calls
        self._value_bytes = value_bytes
        self._weights = _running_sums(call.weights for call in calls)
        self._accumulators = _running_sums(call.accumulators for call in calls)
        # Of each StashKind.
        self._own = (
            _running_sums(0 if call.recomputed else call.residuals for call in calls),
            _running_sums(call.residuals for call in calls),
            _running_sums(call.weight_residuals for call in calls),
        )
        self._values = functools.cache(self._values_from)

    def weights(self, start: int, end: int) -> int:
        """Returns the bytes of the weights."""
        return self._weights[end] - self._weights[start]

    def accumulators(self, start: int, end: int) -> int:
        """Returns the bytes of the gradient accumulators."""
        return self._accumulators[end] - self._accumulators[start]

    def stash(self, start: int, end: int) -> dict[StashKind, int]:
        """Returns the bytes of each stash, for one micro-batch."""
        return dict(zip(StashKind, self.stash_bytes(start, end), strict=True))

    def stash_bytes(self, start: int, end: int) -> tuple[int, ...]:
        """Returns the bytes of each `StashKind`, for one micro-batch."""
        values = self._values(start)
        sums = values.for_recompute, values.residuals, values.weight_residuals
        return self._with_own(sums, start, end)

    def residuals(self, start: int, end: int) -> tuple[int, ...]:
        """Returns `stash_bytes` without the values that recomputation needs."""
        values = self._values(start)
        sums = values.not_recomputed, values.residuals, values.weight_residuals
        return self._with_own(sums, start, end)

    def _with_own(
        self, sums: Sequence[_LazySums], start: int, end: int
    ) -> tuple[int, ...]:
        number = end - start
        every = zip(self._own, sums, strict=True)
        return tuple(own[end] - own[start] + more[number] for own, more in every)

    def of_devices(self, schedule: Schedule, boundaries: Sequence[int]) -> list[int]:
        """Returns the peak bytes of each device, for a training schedule."""
        stages = list(itertools.pairwise([0, *boundaries]))
        peaks = peak_stash_bytes(schedule, [self.stash(*stage) for stage in stages])
        for stage, device in schedule.device_of_stage().items():
            pair = stages[stage]
            peaks[device] += self.weights(*pair) + self.accumulators(*pair)
        return peaks

    def _values_from(self, start: int) -> _StashedValues:
        """Returns the bytes of the values that a stage from `start` stashes."""

        def calls() -> Iterator[CallBytes]:
            return itertools.islice(self._calls, start, None)

        def stashed() -> Iterator[Sequence[int]]:
            return (() if each.recomputed else each.residual_values for each in calls())

        saved = saved_by_call(
            (each.used, each.made, each.recomputed) for each in calls()
        )
        return _StashedValues(
            for_recompute=self._sums(map(itertools.chain, saved, stashed())),
            not_recomputed=self._sums(stashed()),
            residuals=self._sums(_buffers(calls())),
            weight_residuals=self._sums(
                each.weight_residual_values for each in calls()
            ),
        )

    def _sums(self, by_call: Iterable[Iterable[int]]) -> _LazySums:
        """Returns the bytes of the distinct buffers of the first calls."""
        known: set[int] = set()

        def new_bytes() -> Iterator[int]:
            for buffers in by_call:
                new = set(buffers) - known
                known.update(new)
                yield sum(self._value_bytes.get(max(x, ~x), 0) for x in new)

        return _LazySums(new_bytes())


class _StashedValues(NamedTuple):
    """Bytes of the values that a stage stashes, by its number of calls.

    Those that calls that are not recomputed stash are of `for_recompute` too.
    """

    for_recompute: _LazySums
    not_recomputed: _LazySums
    residuals: _LazySums
    weight_residuals: _LazySums


def _buffers(calls: Iterable[CallBytes]) -> Iterator[list[int]]:
    """Yields the values that are residuals of each of a stage's calls.

    A value that the stage recomputes has two buffers, one from each pass. The second
    is given as ~value.
    """
    again: set[int] = set()
    for call in calls:
        if call.recomputed:
            again.update(call.made)
        yield [
            ~value if call.recomputed and value in again else value
            for value in call.residual_values
        ]


class _LazySums:
    """Sums of the first 0, 1, 2, ... values, computed on demand."""

    def __init__(self, values: Iterable[int]):
        self._more = itertools.accumulate(values, initial=0)
        self._found: list[int] = []

    def __getitem__(self, number: int) -> int:
        missing = number + 1 - len(self._found)
        self._found += itertools.islice(self._more, max(missing, 0))
        return self._found[number]


class StageNeeds:
    """Peak bytes of each stage of a schedule, for any range of calls."""

    def __init__(self, memory: StageMemory, schedule: Schedule):
        """Initializes the needs for a training schedule."""
        self._memory = memory
        self._moments = _moments(schedule)

    def stage_keys(self) -> list[tuple[tuple[int, ...], ...]]:
        """Returns a key for each stage, equal for stages with equal needs."""
        return [tuple(sorted(moments)) for moments in self._moments]

    def __call__(self, stage: int, start: int, end: int) -> int:
        """Returns the stage's peak bytes; a longer stage needs no less."""
        return self._persistent(start, end) + self.stash(stage, start, end)

    def stash(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes of the stage's stash at its peak."""
        return self._peak(stage, self._memory.stash_bytes(start, end))

    def lower_bound(self, stage: int, start: int, end: int) -> int:
        """Returns the peak bytes without the values that recomputation needs.

        So if two stages start or end at the same call, the longer one needs no less.
        """
        residuals = self._memory.residuals(start, end)
        return self._persistent(start, end) + self._peak(stage, residuals)

    def _persistent(self, start: int, end: int) -> int:
        return self._memory.weights(start, end) + self._memory.accumulators(start, end)

    def _peak(self, stage: int, each: Sequence[int]) -> int:
        return max(
            sum(map(operator.mul, numbers, each)) for numbers in self._moments[stage]
        )


def _moments(schedule: Schedule) -> list[list[tuple[int, ...]]]:
    """Returns for each stage the numbers of micro-batches that it may hold at once.

    Each has a number for each StashKind; those that others dominate are left out.
    """
    found: list[set[tuple[int, ...]]] = [set() for _ in range(schedule.num_stages)]
    device_of_stage = schedule.device_of_stage()
    for device in range(schedule.num_devices):
        stages = [stage for stage, own in device_of_stage.items() if own == device]
        for held in stash_counts(schedule, device):
            for stage in stages:
                found[stage].add(tuple(held[stage, kind] for kind in StashKind))
    return [
        [a for a in moments if not any(a != b and _dominates(b, a) for b in moments)]
        for moments in found
    ]


def _dominates(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(map(operator.ge, a, b))


def _running_sums(values: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(values, initial=0))
