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

from lingvo_pipe.core.nests import pack_present, present
from lingvo_pipe.pipeline.loops.gradient_accumulators import (
    accumulate_gradients,
    accumulator_specs,
    finish_accumulation,
    zeros,
)
from lingvo_pipe.pipeline.loops.stash import PackedStash, Packing
from lingvo_pipe.pipeline.tracing.phases import Phases
from lingvo_pipe.pipeline.tracing.trace import effects

Flat = list[tf.Tensor]

_SLOT = tf.TensorSpec([], tf.int32)
_DIVISOR = tf.TensorSpec([], tf.float64)


class PackedPhases:
    """The functions of one kind of layer; their arguments may be nested or flat.

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
    def empty_residuals(self) -> Callable:
        """`number of slots -> stash`."""
        return _out_of_line(self.residuals.empty, _SLOT)

    @functools.cached_property
    def empty_weight_residuals(self) -> Callable:
        """`number of slots -> late stash`."""
        return _out_of_line(self.weight_residuals.empty, _SLOT)

    @functools.cached_property
    def move(self) -> Callable:
        """`(stash, slot, other stash, slot) -> both stashes`, with residuals moved."""
        stash = self.residuals

        def move(source: Flat, read: Any, target: Flat, write: Any) -> Any:
            residuals, source = stash.take(source, read)
            return source, stash.put(target, write, residuals)

        return _out_of_line(move, stash.handles, _SLOT, stash.handles, _SLOT)

    # Weights, sums and gradient accumulators.

    @functools.cached_property
    def pack_weights(self) -> Callable:
        """`flat weights -> weights`."""
        return _out_of_line(self.weights.pack, self.phases.weights)

    @functools.cached_property
    def zero_sums(self) -> Callable:
        """`() -> sums`."""
        return _out_of_line(lambda: self.sums.pack(zeros(self.phases.sums)))

    @functools.cached_property
    def unpack_sums(self) -> Callable:
        """`sums -> flat sums`."""
        return _out_of_line(self.sums.unpack, self.sums.handles)

    @functools.cached_property
    def zero_gradients(self) -> Callable:
        """`() -> accumulators`."""
        return _out_of_line(lambda: self.gradients.pack(zeros(self.accumulators)))

    @functools.cached_property
    def pack_gradients(self) -> Callable:
        """`flat accumulators -> accumulators`."""
        return _out_of_line(self.gradients.pack, self.accumulators)

    @functools.cached_property
    def unpack_gradients(self) -> Callable:
        """`accumulators -> flat accumulators`."""
        return _out_of_line(self.gradients.unpack, self.gradients.handles)

    @functools.cached_property
    def add_gradients(self) -> Callable:
        """`(accumulators, flat accumulators) -> accumulators`, their sums."""
        return _out_of_line(self._added, self.gradients.handles, self.accumulators)

    @functools.cached_property
    def final_gradients(self) -> Callable:
        """`(accumulators, divisor) -> flat gradients`, in the weights' dtypes."""
        return _out_of_line(self._finished, self.gradients.handles, _DIVISOR)

    @functools.cached_property
    def undivided_gradients(self) -> Callable:
        """`accumulators -> flat gradients`, in the weights' dtypes."""
        return _out_of_line(self._finished, self.gradients.handles, None)

    # Phases.

    @functools.cached_property
    def forward(self) -> Callable:
        """`(weights, context, args, sums) -> made outputs, sums, []`."""
        return self._forward(stashes=False, adds=True)

    @functools.cached_property
    def forward_stash(self) -> Callable:
        """`(weights, context, args, sums, stash, slot) -> made, sums, stash`."""
        return self._forward(stashes=True, adds=True)

    @functools.cached_property
    def recompute(self) -> Callable:
        """`(weights, context, args, stash, slot) -> made outputs, [], stash`."""
        return self._forward(stashes=True, adds=False)

    @functools.cached_property
    def backward(self) -> Callable:
        """Runs a backward pass.

        `(weights, context, stash, slot, doutputs, accumulators)
        -> dinputs, stash, accumulators`.
        """
        run = self.phases.backward()
        return self._backward(run, self._added, self.gradients.handles)

    @functools.cached_property
    def input_backward(self) -> Callable:
        """Runs a backward pass that delays the weight gradients.

        `(weights, context, stash, slot, doutputs, late stash, slot)
        -> dinputs, stash, late stash`.
        """
        run, late = self.phases.input_backward(), self.weight_residuals
        return self._backward(run, late.put, late.handles, _SLOT)

    @functools.cached_property
    def weight_backward(self) -> Callable:
        """`(weights, context, late stash, slot, accumulators)` -> the last two."""
        run, late = self.phases.weight_backward(), self.weight_residuals

        def weight_backward(
            weights: Flat, context: Flat, stash: Flat, slot: Any, accumulators: Flat
        ) -> Any:
            residuals, stash = late.take(stash, slot)
            gradients = run(*self.weights.unpack(weights), *context, *residuals)
            return stash, self._added(accumulators, gradients)

        return self._phase(weight_backward, late.handles, _SLOT, self.gradients.handles)

    def _forward(self, stashes: bool, adds: bool) -> Callable:
        phases, run, stash = self.phases, self.phases.forward(stashes), self.residuals

        def forward(weights: Flat, context: Flat, args: Flat, *more: Any) -> Any:
            sums_before, handles, slot = more
            results = run(*self.weights.unpack(weights), *context, *args)
            sizes = len(phases.made), len(phases.sums)
            made, sums, residuals = cut_list(results, *sizes)
            if adds:
                before = self.sums.unpack(sums_before)
                sums = self.sums.pack(list(map(tf.add, before, sums)))
            stashed = stash.put(handles, slot, residuals) if stashes else []
            return made, sums if adds else [], stashed

        sums_in = self.sums.handles if adds else []
        stash_in = (stash.handles, _SLOT) if stashes else ([], None)
        return self._phase(forward, phases.args, sums_in, *stash_in)

    def _backward(self, run: Callable, store: Callable, *into: Any) -> Callable:
        """Returns a backward pass; `store(*into, gradients or residuals)` is last."""
        phases, stash = self.phases, self.residuals

        def backward(weights: Flat, context: Flat, *more: Any) -> Any:
            handles, slot, seeds, *target = more
            residuals, handles = stash.take(handles, slot)
            results = run(*self.weights.unpack(weights), *context, *residuals, *seeds)
            inputs, rest = cut_list(results, len(phases.gives))
            return inputs, handles, store(*target, rest)

        seeds = phases.output_gradients
        return self._phase(backward, stash.handles, _SLOT, seeds, *into)

    def _finished(self, packed: Flat, divisor: tf.Tensor | None) -> Flat:
        accumulators = self.gradients.unpack(packed)
        return [
            finish_accumulation(total, divisor, spec.dtype)
            for total, spec in zip(accumulators, self._learned, strict=True)
        ]

    def _added(self, packed: Flat, gradients: Flat) -> Flat:
        added = accumulate_gradients(self.gradients.unpack(packed), gradients)
        return self.gradients.pack(added)

    def _phase(self, function: Callable, *specs: Any) -> Callable:
        shared = self.weights.handles, self.phases.call_context
        return _out_of_line(function, *shared, *specs)


def cut_list(flat: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Cuts a list into consecutive lists of the given sizes, and the rest."""
    ends = [0, *itertools.accumulate(sizes), len(flat)]
    return [list(flat[a:b]) for a, b in itertools.pairwise(ends)]


def _out_of_line(function: Callable, *specs: Any) -> Callable:
    """Returns the function as one node where it is called, or none if it is empty.

    It takes tensors in the structure of `specs`, or flat.
    """

    def flat_function(*flat: tf.Tensor) -> Any:
        return function(*pack_present(specs, flat))

    flat_function.__name__ = function.__name__
    traced = tf.function(
        flat_function, autograph=False, experimental_attributes={"_noinline": True}
    )
    concrete = traced.get_concrete_function(*present(specs))
    if concrete.outputs or effects(concrete.graph):
        return lambda *given: concrete(*present(given))
    return lambda *given: pack_present(concrete.structured_outputs, [])
