r"""How much memory the stages of a schedule need, however layers are grouped. Pure.

    a stage's weights, totals of gradients      as long as training lasts
    what it keeps of micro-batches              as many as the schedule has it keep

What it keeps of one are the residuals of its layers; or, between a forward pass and its
recomputation, the values from which that starts, and the residuals of the layers that
are not computed again. A tensor that two layers keep counts twice, although it is there
once. What an operation needs while it runs is not counted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.loops.dataflow import saved_by_call
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import Kept, kept_over_time
from lingvo_pipe.pipeline.simulation.peak_stash import peak_stash_bytes


class CallBytes(NamedTuple):
    """What a layer, or the loss, takes at its place in the model.

    Attributes:
        weights: bytes of its weights.
        totals: bytes of the totals of their gradients.
        residuals: bytes that its backward pass needs of a micro-batch.
        weight_residuals: bytes that the gradients of its weights need of one, where
            they are put off.
        recomputed: whether it is computed again where the schedule recomputes.
        used: the values that its forward pass is given, by number.
        made: the values that it makes.
    """

    weights: int
    totals: int
    residuals: int
    weight_residuals: int
    recomputed: bool
    used: Sequence[int]
    made: Sequence[int]


class StageMemory:
    """The bytes that stages of consecutive calls need."""

    def __init__(self, calls: Sequence[CallBytes], value_bytes: Mapping[int, int]):
        """Initialises the memory.

        Args:
            calls: all of a model, in order.
            value_bytes: of the values between them, for one micro-batch; the inputs of
                the mini-batch, which are not kept, have none.
        """
        self._calls = calls
        self._value_bytes = value_bytes
        self._weights = _running_sums(call.weights for call in calls)
        self._totals = _running_sums(call.totals for call in calls)
        self._residuals = _running_sums(call.residuals for call in calls)
        self._later = _running_sums(call.weight_residuals for call in calls)
        self._not_again = _running_sums(
            0 if call.recomputed else call.residuals for call in calls
        )
        self._saved = functools.cache(self._saved_from)

    def weights(self, start: int, end: int) -> int:
        """Bytes of the weights of the calls from `start` up to `end`."""
        return self._weights[end] - self._weights[start]

    def totals(self, start: int, end: int) -> int:
        """Bytes of the totals of their gradients."""
        return self._totals[end] - self._totals[start]

    def kept(self, start: int, end: int) -> dict[Kept, int]:
        """Bytes that a stage of them keeps of one micro-batch, by stash."""
        not_again, residuals, later = self.computed(start, end)
        return {
            Kept.FOR_RECOMPUTE: self._saved(start)[end - start] + not_again,
            Kept.RESIDUALS: residuals,
            Kept.WEIGHT_RESIDUALS: later,
        }

    def computed(self, start: int, end: int) -> tuple[int, int, int]:
        """As `kept`, without the values from which a recomputation starts."""
        sums = self._not_again, self._residuals, self._later
        not_again, residuals, later = (own[end] - own[start] for own in sums)
        return not_again, residuals, later

    def of_devices(self, schedule: Schedule, ends: Sequence[int]) -> list[int]:
        """Bytes that each device needs at the worst moment.

        Args:
            schedule: for training.
            ends: of its stages.
        """
        stages = list(itertools.pairwise([0, *ends]))
        peaks = peak_stash_bytes(schedule, [self.kept(*stage) for stage in stages])
        for stage, device in schedule.device_of_stage().items():
            peaks[device] += self.weights(*stages[stage]) + self.totals(*stages[stage])
        return peaks

    def _saved_from(self, start: int) -> _GrowingSums:
        """Bytes of the values saved by a stage from `start`, by its number of calls."""
        calls = (self._calls[i] for i in range(start, len(self._calls)))
        new = saved_by_call((call.used, call.made, call.recomputed) for call in calls)
        return _GrowingSums(
            sum(self._value_bytes.get(value, 0) for value in values) for values in new
        )


class _GrowingSums:
    """The sums of the first 0, 1, 2, ... values, as far as they are asked for."""

    def __init__(self, values: Iterable[int]):
        self._more = itertools.accumulate(values, initial=0)
        self._found: list[int] = []

    def __getitem__(self, number: int) -> int:
        missing = number + 1 - len(self._found)
        self._found += itertools.islice(self._more, max(missing, 0))
        return self._found[number]


class StageNeeds:
    """What a stage of a schedule would need by itself, of any consecutive calls."""

    def __init__(self, memory: StageMemory, schedule: Schedule):
        """Initialises the needs.

        Args:
            memory: of the calls.
            schedule: for training.
        """
        self._memory = memory
        self._moments = _moments(schedule)

    def alike(self) -> list[tuple[tuple[int, ...], ...]]:
        """For each stage something that is the same for those that need the same."""
        return [tuple(sorted(moments)) for moments in self._moments]

    def __call__(self, stage: int, start: int, end: int) -> int:
        """Bytes that the stage needs at its worst moment; more if it is longer."""
        memory = self._memory
        held = memory.weights(start, end) + memory.totals(start, end)
        return held + self.kept(stage, start, end)

    def kept(self, stage: int, start: int, end: int) -> int:
        """Those of them that it keeps of micro-batches."""
        each = list(self._memory.kept(start, end).values())
        return self._largest(stage, each)

    def at_least(self, stage: int, start: int, end: int) -> int:
        """Bytes that the stage needs but for the values that it starts again from.

        So of two stages that start or end at the same call the longer needs more.
        """
        memory = self._memory
        held = memory.weights(start, end) + memory.totals(start, end)
        return held + self._largest(stage, memory.computed(start, end))

    def _largest(self, stage: int, each: Sequence[int]) -> int:
        return max(
            sum(map(int.__mul__, numbers, each)) for numbers in self._moments[stage]
        )


def _moments(schedule: Schedule) -> list[list[tuple[int, ...]]]:
    """For each stage, of how many micro-batches it may hold how much at once.

    Returns:
        A number for each of Kept; those are left out at which no more is held than at
        others.
    """
    found: list[set[tuple[int, ...]]] = [set() for _ in range(schedule.num_stages)]
    homes = schedule.device_of_stage()
    for device in range(schedule.num_devices):
        stages = [stage for stage, home in homes.items() if home == device]
        for held in kept_over_time(schedule, device):
            for stage in stages:
                found[stage].add(tuple(held[stage, kept] for kept in Kept))
    return [_largest(moments) for moments in found]


def _largest(moments: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [
        a
        for a in moments
        if not any(
            a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in moments
        )
    ]


def _running_sums(values: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(values, initial=0))
