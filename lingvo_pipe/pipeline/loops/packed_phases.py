"""A layer's phases as out-of-line functions on packs.

Layers that are alike share them, so a deep model has few; and each layer of a stage
adds one call, with a handful of arguments, for each phase. Sums and gradients are added
to their totals inside, never outside, so that the order of additions is the same for
every schedule and number of stages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.loops.packing import Packing
from lingvo_pipe.pipeline.loops.stash import PackedStash
from lingvo_pipe.pipeline.loops.totals import (
    add_to_totals,
    finish_total,
    total_specs,
    zero_totals,
)
from lingvo_pipe.pipeline.tracing.phases import Function, Phases
from lingvo_pipe.pipeline.tracing.trace import effects

Specs = Sequence[tf.TensorSpec]

_SLOT = tf.TensorSpec([], tf.int32)
_DIVISOR = tf.TensorSpec([], tf.float64)


class PackedPhases:
    """The functions of one kind of layer.

    What a phase keeps for another it puts into a slot of a packed stash that it is
    given, and returns.

    Attributes:
        phases: what the functions compute.
        totals: specs of the totals of gradients, for the weights that have any.
        weights, sums, gradients: how each is packed; `gradients` are the totals.
        residuals, weight_residuals: packed stashes.
    """

    def __init__(self, phases: Phases):
        self.phases = phases
        learned = zip(phases.weights, phases.has_gradient, strict=True)
        self._learned = [spec for spec, has in learned if has]
        self.totals = total_specs(self._learned)
        self.weights = Packing(phases.weights)
        self.sums = Packing(phases.sums)
        self.gradients = Packing(self.totals)
        self.residuals = PackedStash(phases.residuals)
        self.weight_residuals = PackedStash(phases.weight_residuals)

    @functools.cached_property
    def empty_residuals(self) -> Function:
        """`number of slots -> stash`."""
        return _out_of_line(lambda n: self.residuals.empty(n), [_SLOT])

    @functools.cached_property
    def empty_weight_residuals(self) -> Function:
        """`number of slots -> stash`."""
        return _out_of_line(lambda n: self.weight_residuals.empty(n), [_SLOT])

    @functools.cached_property
    def move(self) -> Function:
        """`(stash, slot, other stash, slot) -> both stashes` of residuals."""
        stash = self.residuals

        def move(*flat: tf.Tensor) -> list[tf.Tensor]:
            source, (read,), target, (write,) = cut_list(flat, len(stash.handles), 1, 1)
            kept, source = stash.take(source, read)
            return source + stash.put(target, write, kept)

        return _out_of_line(move, stash.handles, [_SLOT], stash.handles, [_SLOT])

    @functools.cached_property
    def pack_weights(self) -> Function:
        """`weights -> packed weights`."""
        return _out_of_line(lambda *x: self.weights.pack(x), self.phases.weights)

    @functools.cached_property
    def zero_sums(self) -> Function:
        """`() -> packed sums`."""

        def zeros() -> list[tf.Tensor]:
            return self.sums.pack(
                [tf.zeros(s.shape, s.dtype) for s in self.phases.sums]
            )

        return _out_of_line(zeros)

    @functools.cached_property
    def unpack_sums(self) -> Function:
        """`packed sums -> sums`."""
        return _out_of_line(lambda *x: self.sums.unpack(x), self.sums.handles)

    @functools.cached_property
    def zero_gradients(self) -> Function:
        """`() -> packed totals`."""
        return _out_of_line(lambda: self.gradients.pack(zero_totals(self.totals)))

    @functools.cached_property
    def pack_gradients(self) -> Function:
        """`totals -> packed totals`."""
        return _out_of_line(lambda *x: self.gradients.pack(x), self.totals)

    @functools.cached_property
    def add_gradients(self) -> Function:
        """`(packed totals, more totals) -> packed totals` of both."""

        def add(*flat: tf.Tensor) -> list[tf.Tensor]:
            packed, more = cut_list(flat, len(self.gradients.handles))
            return self._added(packed, more)

        return _out_of_line(add, self.gradients.handles, self.totals)

    @functools.cached_property
    def unpack_gradients(self) -> Function:
        """`packed totals -> totals`."""
        return _out_of_line(lambda *x: self.gradients.unpack(x), self.gradients.handles)

    @functools.cached_property
    def final_gradients(self) -> Function:
        """`(packed totals, divisor) -> gradients`, in the weights' dtypes."""

        def final(*flat: tf.Tensor) -> list[tf.Tensor]:
            *packed, divisor = flat
            return self._finished(packed, divisor)

        return _out_of_line(final, self.gradients.handles, [_DIVISOR])

    @functools.cached_property
    def undivided_gradients(self) -> Function:
        """`packed totals -> gradients`, in the weights' dtypes."""
        return _out_of_line(
            lambda *packed: self._finished(packed, None), self.gradients.handles
        )

    @functools.cached_property
    def forward(self) -> Function:
        """`(weights, surroundings, args, sums) -> made outputs, sums`."""
        return self._forward(keeps=False, adds=True)

    @functools.cached_property
    def forward_keep(self) -> Function:
        """`(weights, surroundings, args, sums, stash, slot) -> made, sums, stash`."""
        return self._forward(keeps=True, adds=True)

    @functools.cached_property
    def recompute(self) -> Function:
        """`(weights, surroundings, args, stash, slot) -> made outputs, stash`."""
        return self._forward(keeps=True, adds=False)

    @functools.cached_property
    def backward(self) -> Function:
        """`(weights, told, stash, slot, doutputs, totals) -> dinputs and those`."""
        phases, run, stash = self.phases, self.phases.backward(), self.residuals
        more = stash.handles, [_SLOT], phases.output_gradients, self.gradients.handles

        def backward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, told, handles, (slot,), seeds, totals = self._cut(flat, *more)
            kept, handles = stash.take(handles, slot)
            results = run(*self.weights.unpack(weights), *told, *kept, *seeds)
            inputs, gradients = cut_list(results, len(phases.gives))
            return inputs + handles + self._added(totals, gradients)

        return self._out_of_line(backward, *more)

    @functools.cached_property
    def input_backward(self) -> Function:
        """`(weights, told, stash, slot, doutputs, stash, slot) -> dinputs, stashes`."""
        phases, run = self.phases, self.phases.input_backward()
        stash, later = self.residuals, self.weight_residuals
        more = stash.handles, [_SLOT], phases.output_gradients, later.handles, [_SLOT]

        def input_backward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, told, handles, (read,), seeds, laters, (write,) = self._cut(
                flat, *more
            )
            kept, handles = stash.take(handles, read)
            results = run(*self.weights.unpack(weights), *told, *kept, *seeds)
            inputs, rest = cut_list(results, len(phases.gives))
            return inputs + handles + later.put(laters, write, rest)

        return self._out_of_line(input_backward, *more)

    @functools.cached_property
    def weight_backward(self) -> Function:
        """`(weights, surroundings, stash, slot, totals) -> stash, totals`."""
        run, stash = self.phases.weight_backward(), self.weight_residuals
        more = stash.handles, [_SLOT], self.gradients.handles

        def weight_backward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, told, handles, (slot,), totals = self._cut(flat, *more)
            kept, handles = stash.take(handles, slot)
            gradients = run(*self.weights.unpack(weights), *told, *kept)
            return handles + self._added(totals, gradients)

        return self._out_of_line(weight_backward, *more)

    def _forward(self, keeps: bool, adds: bool) -> Function:
        phases, run, stash = self.phases, self.phases.forward(keeps), self.residuals
        sums_in = self.sums.handles if adds else []
        kept_in = (stash.handles, [_SLOT]) if keeps else ([], [])
        more = phases.args, sums_in, *kept_in

        def forward(*flat: tf.Tensor) -> list[tf.Tensor]:
            weights, told, args, totals, handles, slot = self._cut(flat, *more)
            results = run(*self.weights.unpack(weights), *told, *args)
            made, sums, kept = cut_list(results, len(phases.made), len(phases.sums))
            if adds:
                before = self.sums.unpack(totals)
                made += self.sums.pack(list(map(tf.add, before, sums)))
            return made + stash.put(handles, slot[0], kept) if keeps else made

        return self._out_of_line(forward, *more)

    def _finished(
        self, packed: Sequence[tf.Tensor], divisor: tf.Tensor | None
    ) -> list[tf.Tensor]:
        totals = self.gradients.unpack(packed)
        return [
            finish_total(total, divisor, spec.dtype)
            for total, spec in zip(totals, self._learned, strict=True)
        ]

    def _added(
        self, totals: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        added = add_to_totals(self.gradients.unpack(totals), gradients)
        return self.gradients.pack(added)

    def _cut(self, flat: Sequence[tf.Tensor], *more: Specs) -> list[list[Any]]:
        """Weights, surroundings, then lists as long as `more`."""
        sizes = [self.weights.handles, self.phases.surroundings, *more]
        *found, _ = cut_list(flat, *map(len, sizes))
        return found

    def _out_of_line(self, function: Callable, *more: Specs) -> Function:
        return _out_of_line(
            function, self.weights.handles, self.phases.surroundings, *more
        )


def cut_list(flat: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """A list as consecutive lists of the given sizes, and the rest."""
    ends = [0, *itertools.accumulate(sizes), len(flat)]
    return [list(flat[a:b]) for a, b in itertools.pairwise(ends)]


def _out_of_line(function: Callable, *specs: Specs) -> Function:
    """A function that is one node where it is called; none if it would do nothing."""
    traced = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    concrete = traced.get_concrete_function(*itertools.chain(*specs))
    does_nothing = not concrete.outputs and not effects(concrete.graph)
    return lambda *flat: [] if does_nothing else list(concrete(*flat))
