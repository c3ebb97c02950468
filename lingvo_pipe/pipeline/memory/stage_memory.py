r"""Memory of a schedule's stages, for any grouping of the layers.

    weights and gradient accumulators of a stage     during the whole training
    stash of a micro-batch                           while the schedule holds it
    workspace                                        while an operation runs

The stash of a micro-batch holds the residuals of the stage's layers. Between a forward
pass and its recomputation, it holds instead the values from which the recomputation
starts, and the residuals of the layers that are not recomputed. If several layers stash
the same value, it counts once, since they share its buffer. A value has two buffers
only if it is recomputed, and a layer that is not recomputed stashes it too; or if it is
offloaded, and a layer that is not offloaded stashes it too.

A device's loop replaces its state only after an operation. So while an operation runs,
the stash and the accumulators that it reads exist in full. In addition, the new stash
and the new accumulators exist as far as they have been made, layer by layer:

    backward    l0 l1 | l2 |           residuals and accumulators of all layers
                workspace of l1        new accumulators of l2
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.loops.dataflow import recompute_inputs_by_layer
from lingvo_pipe.pipeline.memory.call_bytes import (
    BytesByOperation,
    CallBytes,
    SharedWeight,
    StashBytes,
    operation_index,
)
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, stash_moments

KIND_INDEX = {kind: i for i, kind in enumerate(StashKind)}
_MAX_CACHED = 1 << 17
# TensorFlow's allocator splits a free chunk only if it is twice as large as requested.
# So tensors that come and go with each operation take up to twice their size. In total,
# a measurement found about a fifth more.
ALLOCATOR_LOSS = 0.2


class OperationBytes(NamedTuple):
    """Bytes of a device during an operation, and until the device's next operation."""

    during: int
    after: int


class StageMemory:
    """Bytes of a model's stages. A stage has the calls from `start` to `end` - 1."""

    def __init__(
        self,
        calls: Sequence[CallBytes],
        value_bytes: Mapping[int, int],
        in_place: bool = False,
        shared_weights: Sequence[SharedWeight] = (),
        allocator_loss: float = ALLOCATOR_LOSS,
    ):
        """Initializes the memory of a model with these calls, in order.

        `value_bytes` are the bytes of each value between calls, for one micro-batch.
        The mini-batch's inputs are left out, because they are not stashed. With
        `in_place`, gradients are accumulated in place and the allocator loses nothing,
        as if XLA compiled whole steps. A call's `weights` include `shared_weights` that
        it uses. Tensors that come and go take 1 + `allocator_loss` times their size.
        """
        self._shared_weights = shared_weights
        self._loss = 0.0 if in_place else allocator_loss
        self._calls = calls
        self._value_bytes = value_bytes
        self._weights = _running_sums(call.weights for call in calls)
        self._accumulators = _running_sums(call.accumulators for call in calls)
        self._new_gradients = [0 if in_place else x for x in self._accumulators]
        self._not_recomputed = _running_sums(
            0 if call.recomputed else call.residuals for call in calls
        )
        self._residuals = _running_sums(call.residuals for call in calls)
        self._away = _running_sums(
            call.residuals if call.offloaded else 0 for call in calls
        )
        self._late = _running_sums(call.weight_residuals for call in calls)
        self._new_late = _running_sums(call.new_weight_residuals for call in calls)
        largest = functools.cache(lambda moments: tuple(map(max, moments)))
        self._work = [largest(call.workspace) for call in calls]
        self._values = functools.cache(self._values_from)
        self._workspaces = functools.cache(self._workspaces_from)
        # A planner's candidates have many stages in common.
        self.stash = functools.lru_cache(_MAX_CACHED)(self._stash)
        self.lower_bound = functools.lru_cache(_MAX_CACHED)(self._lower_bound)

    def weights(self, start: int, end: int) -> int:
        """Returns the bytes of the weights, and of copies of other devices' weights."""
        weight_bytes = self._weights[end] - self._weights[start]
        for num_bytes, calls in self._shared_weights:
            users = bisect.bisect_left(calls, end) - bisect.bisect_left(calls, start)
            weight_bytes -= num_bytes * max(users - 1, 0)
        return weight_bytes

    def accumulators(self, start: int, end: int) -> int:
        """Returns the bytes of the gradient accumulators."""
        return self._accumulators[end] - self._accumulators[start]

    def held(self, start: int, end: int) -> int:
        """Returns the bytes of the weights and of the gradient accumulators."""
        return self.weights(start, end) + self.accumulators(start, end)

    def _stash(self, start: int, end: int) -> StashBytes:
        values = self._values(start)
        return self._bytes(start, end, values.for_recompute, values.both)

    def _lower_bound(self, start: int, end: int) -> StashBytes:
        """Returns `_stash` without the values from which recomputation starts.

        So of two stages with the same start or end, the longer one needs no less.
        """
        values = self._values(start)
        return self._bytes(start, end, values.not_recomputed, values.residuals)

    def minimum(self, start: int, end: int) -> int:
        """Returns the fewest bytes with which a stage can train on one micro-batch."""
        during = self.lower_bound(start, end).during
        split_backward = max(during.input_backward, during.weight_backward)
        peak = max(during.forward, min(during.backward, split_backward))
        return self.held(start, end) + peak

    def by_cell(self) -> list[int]:
        """Returns the fewest bytes that each cell needs as a stage (see `minimum`).

        The last call must be the loss, which counts with the last cell.
        """
        last = len(self._calls) - 2
        return [self.minimum(i, i + 1 + (i == last)) for i in range(last + 1)]

    def _bytes(
        self, start: int, end: int, before_recompute: _Lazy, during_recompute: _Lazy
    ) -> StashBytes:
        """Returns the bytes that a stage needs for a micro-batch.

        `before_recompute` and `during_recompute` are the bytes of the values that are
        stashed before and during a recomputation, by the stage's number of calls.
        """
        number, values, work = end - start, self._values(start), self._workspaces(start)
        saved = self._not_recomputed[end] - self._not_recomputed[start]
        away = values.offloaded[number]
        saved += before_recompute[number] + away
        layer_residuals = self._residuals[end] - self._residuals[start]
        residuals = layer_residuals + values.residuals[number] + away
        late = self._late[end] - self._late[start] + values.weight_residuals[number]
        forward = max(work.forward[number] - self._residuals[end], 0)
        needed = BytesByOperation(
            forward_for_recompute=saved,
            forward=residuals + forward,
            recompute=layer_residuals + during_recompute[number] + away + forward,
            backward=residuals + work.backward[number] + self._new_gradients[end],
            input_backward=(
                residuals + work.input_backward[number] + self._new_late[end]
            ),
            weight_backward=(
                late + work.weight_backward[number] - self._new_gradients[start]
            ),
        )
        during = BytesByOperation._make(n + int(n * self._loss) for n in needed)
        away += self._away[end] - self._away[start]
        return StashBytes((saved, residuals, late, -away), during)

    def of_devices(self, schedule: Schedule, boundaries: Sequence[int]) -> list[int]:
        """Returns the peak bytes of each device, for a training schedule."""
        devices = self.by_operation(schedule, boundaries)
        return [max(used.during for used in operations) for operations in devices]

    def by_operation(
        self, schedule: Schedule, boundaries: Sequence[int]
    ) -> list[Iterator[OperationBytes]]:
        """Returns, lazily, each device's bytes at the start and at each operation."""
        stages = list(itertools.pairwise([0, *boundaries]))
        stashes = [self.stash(*stage) for stage in stages]
        devices = schedule.device_of_stage()
        fixed = [0] * schedule.num_devices
        for stage, device in devices.items():
            fixed[device] += self.held(*stages[stage])
        for num_bytes, calls in self._shared_weights:
            owner, *users = dict.fromkeys(
                bisect.bisect_right(boundaries, x) for x in calls
            )
            # On another device, each stage has a copy.
            copies = (devices[stage] for stage in users)
            fixed[devices[owner]] -= num_bytes * [*copies].count(devices[owner])

        def operations(device: int) -> Iterator[OperationBytes]:
            yield OperationBytes(fixed[device], fixed[device])
            for moment in stash_moments(schedule, device):
                stash, write = stashes[moment.op.stage], moment.use.write
                held = fixed[device] + sum(
                    number * stashes[stage].held[KIND_INDEX[kind]]
                    for (stage, kind), number in moment.others.items()
                )
                yield OperationBytes(
                    during=held + stash.during[operation_index(moment)],
                    after=held + (stash.held[KIND_INDEX[write]] if write else 0),
                )

        return list(map(operations, range(schedule.num_devices)))

    def _values_from(self, start: int) -> _StashedValues:
        def calls() -> Iterator[CallBytes]:
            return itertools.islice(self._calls, start, None)

        def recompute_inputs() -> Iterator[list[int]]:
            return recompute_inputs_by_layer(
                (x.used, x.made, x.recomputed) for x in calls()
            )

        def kept() -> Iterator[Sequence[int]]:
            return (
                () if x.recomputed or x.offloaded else x.residual_values
                for x in calls()
            )

        return _StashedValues(
            for_recompute=self._sums(map(itertools.chain, recompute_inputs(), kept())),
            not_recomputed=self._sums(kept()),
            residuals=self._sums(_buffers(calls())),
            weight_residuals=self._sums(x.weight_residual_values for x in calls()),
            offloaded=self._sums(
                x.residual_values if x.offloaded else () for x in calls()
            ),
            both=self._sums(
                map(itertools.chain, recompute_inputs(), kept(), _buffers(calls()))
            ),
        )

    def _sums(self, by_call: Iterable[Iterable[int]]) -> _Lazy:
        """Returns the bytes of all distinct buffers in the first 0, 1, 2, ... calls."""
        counted: set[int] = set()

        def new_bytes() -> Iterator[int]:
            for buffers in by_call:
                new = set(buffers) - counted
                counted.update(new)
                yield sum(self._value_bytes.get(max(x, ~x), 0) for x in new)

        return _Lazy(itertools.accumulate(new_bytes(), initial=0))

    def _workspaces_from(self, start: int) -> _Workspaces:
        """Returns a stage's largest workspaces, without the stashes that are read."""

        def largest(phase: int, new_bytes: Iterable[int]) -> _Lazy:
            work = (sizes[phase] for sizes in itertools.islice(self._work, start, None))
            peaks = itertools.accumulate(map(operator.add, work, new_bytes), max)
            return _Lazy(itertools.chain([0], peaks))

        def after(sums: Sequence[int]) -> Iterator[int]:
            return itertools.islice(sums, start + 1, None)

        def before(sums: Sequence[int]) -> Iterator[int]:
            return itertools.islice(sums, start, None)

        return _Workspaces(
            largest(0, after(self._residuals)),
            largest(1, map(operator.neg, after(self._new_gradients))),
            largest(2, map(operator.neg, before(self._new_late))),
            largest(3, before(self._new_gradients)),
        )


class _StashedValues(NamedTuple):
    """Bytes of the values that a stage stashes, by the stage's number of calls.

    `not_recomputed` are the values stashed by calls that are not recomputed. These
    values also belong to `for_recompute`. `both` are the distinct values of
    `for_recompute` and `residuals`. All but `offloaded` and `weight_residuals` leave
    out the calls that are offloaded.
    """

    for_recompute: _Lazy
    not_recomputed: _Lazy
    residuals: _Lazy
    weight_residuals: _Lazy
    offloaded: _Lazy
    both: _Lazy


class _Workspaces(NamedTuple):
    """Largest workspaces of a stage, by the stage's number of calls.

    Each layer's workspace is added to what the layers that ran before it have made.
    Forward, layers make residuals, from the first layer on. Backward, layers make
    gradients, from the last layer back.
    """

    forward: _Lazy
    backward: _Lazy
    input_backward: _Lazy
    weight_backward: _Lazy


def _buffers(calls: Iterable[CallBytes]) -> Iterator[list[int]]:
    """Yields, for each call of a stage, the values that are the call's residuals.

    A value that the stage recomputes has two buffers, one from each pass. The second
    buffer is given as ~value. Calls that are offloaded are left out.
    """
    again: set[int] = set()
    for call in calls:
        if call.recomputed:
            again.update(call.made)
        yield [
            ~value if call.recomputed and value in again else value
            for value in call.residual_values
            if not call.offloaded
        ]


class _Lazy:
    """A sequence with a number for 0, 1, 2, ... calls, each computed on demand."""

    def __init__(self, values: Iterator[int]):
        self._more = values
        self._found: list[int] = []

    def __getitem__(self, number: int) -> int:
        missing = number + 1 - len(self._found)
        if missing > 0:
            self._found += itertools.islice(self._more, missing)
        return self._found[number]


def _running_sums(values: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(values, initial=0))
