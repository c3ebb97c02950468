"""A layer's phases as out-of-line functions on packs.

Identical layers share these functions, so a deep model has few; each layer of a stage
adds one call, with a few arguments, for each phase. Sums and gradients are accumulated
inside, never outside, so that the order of additions is the same for every schedule and
number of stages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.loops.gradient_accumulators import (
    accumulate_gradients,
    accumulator_specs,
    finish_accumulation,
    zero_accumulators,
)
from lingvo_pipe.pipeline.loops.stash import PackedStash, Packing
from lingvo_pipe.pipeline.tracing.phases import Function, Phases
from lingvo_pipe.pipeline.tracing.trace import effects

Specs = Sequence[tf.TensorSpec]

_SLOT = tf.TensorSpec([], tf.int32)
_DIVISOR = tf.TensorSpec([], tf.float64)


class PackedPhases:
    """The functions of one kind of layer.

    A phase passes residuals to a later one through a slot of a packed stash, which is
    an argument and a result. In the docstrings of the functions `stash` stands for the
    packed stash of residuals, `late stash` for weight residuals, `context` for
    the call context; weights, sums, accumulators and stashes are packed.

    Attributes:
        phases: the phases that the functions compute.
        accumulators: specs of the accumulators, for the weights that have gradients.
        weights, sums, gradients: the packings; `gradients` packs the accumulators.
        residuals, weight_residuals: packed stashes.
    """

    def __init__(self, phases: Phases):
        self.phases = phases
        learned = zip(phases.weights, phases.has_gradient, strict=True)
        self._learned = [spec for spec, has in learned if has]
        self.accumulators = accumulator_specs(self._learned)
        self.weights = Packing(phases.weights)
        self.sums = Packing(phases.sums)
        self.gradients = Packing(self.accumulators)
        self.residuals = PackedStash(phases.residuals)
        self.weight_residuals = PackedStash(phases.weight_residuals)

    # Stashes.

    @functools.cached_property
    def empty_residuals(self) -> Function:
        """`number of slots -> stash`."""
        return _out_of_line(lambda n: self.residuals.empty(n), [_SLOT])

    @functools.cached_property
    def empty_weight_residuals(self) -> Function:
        """`number of slots -> late stash`."""
        return _out_of_line(lambda n: self.weight_residuals.empty(n), [_SLOT])

    @functools.cached_property
    def move(self) -> Function:
        """`(stash, slot, other stash, slot) -> both stashes`, with residuals moved."""
        stash = self.residuals

        def move(*flat: tf.Tensor) -> list[tf.Tensor]:
            source, (read,), target, (write,) = cut_list(flat, len(stash.handles), 1, 1)
            residuals, source = stash.take(source, read)
            return source + stash.put(target, write, residuals)

        return _out_of_line(move, stash.handles, [_SLOT], stash.handles, [_SLOT])

    # Weights, sums and gradient accumulators.

    @functools.cached_property
    def pack_weights(self) -> Function:
        """`flat weights -> weights`."""
        return _out_of_line(lambda *x: self.weights.pack(x), self.phases.weights)

    @functools.cached_property
    def zero_sums(self) -> Function:
        """`() -> sums`."""

        def zeros() -> list[tf.Tensor]:
            specs = self.phases.sums
            return self.sums.pack([tf.zeros(s.shape, s.dtype) for s in specs])

        return _out_of_line(zeros)

    @functools.cached_property
    def unpack_sums(self) -> Function:
        """`sums -> flat sums`."""
        return _out_of_line(lambda *x: self.sums.unpack(x), self.sums.handles)

    @functools.cached_property
    def zero_gradients(self) -> Function:
        """`() -> accumulators`."""
        return _out_of_line(
            lambda: self.gradients.pack(zero_accumulators(self.accumulators))
        )

    @functools.cached_property
    def pack_gradients(self) -> Function:
        """`flat accumulators -> accumulators`."""
        return _out_of_line(lambda *x: self.gradients.pack(x), self.accumulators)

    @functools.cached_property
    def unpack_gradients(self) -> Function:
        """`accumulators -> flat accumulators`."""
        return _out_of_line(lambda *x: self.gradients.unpack(x), self.gradients.handles)

    @functools.cached_property
    def add_gradients(self) -> Function:
        """`(accumulators, flat accumulators) -> accumulators`, their sums."""

        def add(*flat: tf.Tensor) -> list[tf.Tensor]:
            packed, more = cut_list(flat, len(self.gradients.handles))
            return self._added(packed, more)

        return _out_of_line(add, self.gradients.handles, self.accumulators)

    @functools.cached_property
    def final_gradients(self) -> Function:
        """`(accumulators, divisor) -> flat gradients`, in the weights' dtypes."""

        def final(*flat: tf.Tensor) -> list[tf.Tensor]:
            *packed, divisor = flat
            return self._finished(packed, divisor)

        return _out_of_line(final, self.gradients.handles, [_DIVISOR])

    @functools.cached_property
    def undivided_gradients(self) -> Function:
        """`accumulators -> flat gradients`, in the weights' dtypes."""
        return _out_of_line(
            lambda *packed: self._finished(packed, None), self.gradients.handles
        )

    # Phases.

    @functools.cached_property
    def forward(self) -> Function:
        """`(weights, context, args, sums) -> made outputs, sums`."""
        return self._forward(stashes=False, adds=True)

    @functools.cached_property
    def forward_stash(self) -> Function:
        """`(weights, context, args, sums, stash, slot) -> made, sums, stash`."""
        return self._forward(stashes=True, adds=True)

    @functools.cached_property
    def recompute(self) -> Function:
        """`(weights, context, args, stash, slot) -> made outputs, stash`."""
        return self._forward(stashes=True, adds=False)

    @functools.cached_property
    def backward(self) -> Function:
        """Runs a backward pass.

        `(weights, context, stash, slot, doutputs, accumulators)
        -> dinputs, stash, accumulators`.
        """
        phases, run, stash = self.phases, self.phases.backward(), self.residuals
        more = stash.handles, [_SLOT], phases.output_gradients, self.gradients.handles

        def backward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, context, handles, (slot,), seeds, packed = self._cut(flat, *more)
            residuals, handles = stash.take(handles, slot)
            results = run(*self.weights.unpack(weights), *context, *residuals, *seeds)
            inputs, gradients = cut_list(results, len(phases.gives))
            return inputs + handles + self._added(packed, gradients)

        return self._out_of_line(backward, *more)

    @functools.cached_property
    def input_backward(self) -> Function:
        """Runs a backward pass that delays the weight gradients.

        `(weights, context, stash, slot, doutputs, late stash, slot)
        -> dinputs, stash, late stash`.
        """
        phases, run = self.phases, self.phases.input_backward()
        stash, late = self.residuals, self.weight_residuals
        more = stash.handles, [_SLOT], phases.output_gradients, late.handles, [_SLOT]

        def input_backward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, context, handles, (read,), seeds, late_handles, (write,) = (
                self._cut(flat, *more)
            )
            residuals, handles = stash.take(handles, read)
            results = run(*self.weights.unpack(weights), *context, *residuals, *seeds)
            inputs, rest = cut_list(results, len(phases.gives))
            return inputs + handles + late.put(late_handles, write, rest)

        return self._out_of_line(input_backward, *more)

    @functools.cached_property
    def weight_backward(self) -> Function:
        """`(weights, context, late stash, slot, accumulators)` -> the last two."""
        run, stash = self.phases.weight_backward(), self.weight_residuals
        more = stash.handles, [_SLOT], self.gradients.handles

        def weight_backward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, context, handles, (slot,), packed = self._cut(flat, *more)
            residuals, handles = stash.take(handles, slot)
            gradients = run(*self.weights.unpack(weights), *context, *residuals)
            return handles + self._added(packed, gradients)

        return self._out_of_line(weight_backward, *more)

    def _forward(self, stashes: bool, adds: bool) -> Function:
        phases, run, stash = self.phases, self.phases.forward(stashes), self.residuals
        sums_in = self.sums.handles if adds else []
        stash_in = (stash.handles, [_SLOT]) if stashes else ([], [])
        more = phases.args, sums_in, *stash_in

        def forward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, context, args, sums_before, handles, slot = self._cut(flat, *more)
            results = run(*self.weights.unpack(weights), *context, *args)
            sizes = len(phases.made), len(phases.sums)
            made, sums, residuals = cut_list(results, *sizes)
            if adds:
                before = self.sums.unpack(sums_before)
                made += self.sums.pack(list(map(tf.add, before, sums)))
            return made + stash.put(handles, slot[0], residuals) if stashes else made

        return self._out_of_line(forward, *more)

    def _finished(
        self, packed: Sequence[tf.Tensor], divisor: tf.Tensor | None
    ) -> list[tf.Tensor]:
        accumulators = self.gradients.unpack(packed)
        return [
            finish_accumulation(total, divisor, spec.dtype)
            for total, spec in zip(accumulators, self._learned, strict=True)
        ]

    def _added(
        self, packed: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        added = accumulate_gradients(self.gradients.unpack(packed), gradients)
        return self.gradients.pack(added)

    def _cut(self, flat: Sequence[tf.Tensor], *more: Specs) -> list[list[Any]]:
        """Cuts arguments into weights, context, then lists as long as `more`."""
        sizes = [self.weights.handles, self.phases.call_context, *more]
        *found, _ = cut_list(flat, *map(len, sizes))
        return found

    def _out_of_line(self, function: Callable, *more: Specs) -> Function:
        return _out_of_line(
            function, self.weights.handles, self.phases.call_context, *more
        )


def cut_list(flat: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Cuts a list into consecutive lists of the given sizes, and the rest."""
    ends = [0, *itertools.accumulate(sizes), len(flat)]
    return [list(flat[a:b]) for a, b in itertools.pairwise(ends)]


def _out_of_line(function: Callable, *specs: Specs) -> Function:
    """Returns a function that is one node where it is called, or none if empty."""
    traced = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    concrete = traced.get_concrete_function(*itertools.chain(*specs))
    does_nothing = not concrete.outputs and not effects(concrete.graph)
    return lambda *flat: [] if does_nothing else list(concrete(*flat))
