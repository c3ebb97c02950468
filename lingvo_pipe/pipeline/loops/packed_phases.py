"""A layer's phases as out-of-line functions on packs.

Identical layers share these functions, so a deep model has few; each layer of a stage
adds one call, with a few arguments, for each phase. Sums and gradients are accumulated
inside, never outside, so that the order of additions is the same for every schedule and
number of stages.
"""

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

    Each is traced at its first call. A phase passes residuals to a later one through a
    slot of a packed stash, which is an argument and a result. In the comments below
    `stash` stands for the packed stash of residuals, `late stash` for weight residuals,
    `context` for the call context; weights, sums, accumulators and stashes are packed.

    Attributes:
        phases: the phases that the functions compute.
        accumulators: specs of the accumulators, for the weights that have gradients.
        weights, sums, gradients: the packings; `gradients` packs the accumulators.
        residuals, weight_residuals: packed stashes.
    """

    def __init__(self, phases: Phases):
        self.phases = phases
        self._learned = list(itertools.compress(phases.weights, phases.has_gradient))
        self.accumulators = accumulator_specs(self._learned)
        self.weights = weights = Packing(phases.cast_weights)
        self.sums = sums = Packing(phases.sums)
        self.gradients = gradients = Packing(self.accumulators)
        on_cpu = phases.compilation.on_cpu
        self.residuals = stash = PackedStash(phases.residuals, on_cpu)
        self.weight_residuals = late = PackedStash(phases.weight_residuals, on_cpu)
        into_stash, into_late = (stash.handles, _SLOT), (late.handles, _SLOT)
        given = weights.handles, phases.call_context
        seeds = phases.output_gradients

        # number of slots -> stash
        self.empty_residuals = out_of_line(stash.empty, _SLOT)
        # number of slots -> late stash
        self.empty_weight_residuals = out_of_line(late.empty, _SLOT)
        # stash, slot, other stash, slot -> both stashes, with residuals moved
        self.move = out_of_line(self._move(), *into_stash, *into_stash)

        # flat weights -> weights, in the dtypes that the phases take
        self.pack_weights = out_of_line(self.cast_and_pack, phases.weights)
        # () -> sums
        self.zero_sums = out_of_line(lambda: sums.pack(zeros(phases.sums)))
        # sums -> flat sums
        self.unpack_sums = out_of_line(sums.unpack, sums.handles)
        # () -> accumulators
        self.zero_gradients = out_of_line(
            lambda: gradients.pack(zeros(self.accumulators))
        )
        # flat accumulators -> accumulators
        self.pack_gradients = out_of_line(gradients.pack, self.accumulators)
        # accumulators -> flat accumulators
        self.unpack_gradients = out_of_line(gradients.unpack, gradients.handles)
        # accumulators, flat accumulators -> accumulators, their sums
        self.add_gradients = out_of_line(
            self._added, gradients.handles, self.accumulators
        )
        # accumulators, divisor -> flat gradients, in the weights' dtypes
        self.final_gradients = out_of_line(self._finished, gradients.handles, _DIVISOR)
        # accumulators -> flat gradients, in the weights' dtypes
        self.undivided_gradients = out_of_line(self._finished, gradients.handles, None)

        # weights, context, args, sums -> made outputs, sums, []
        self.forward = out_of_line(
            self._forward(stashes=False, adds=True),
            *(*given, phases.args, sums.handles, [], None),
        )
        # weights, context, args, sums, stash, slot -> made outputs, sums, stash
        self.forward_stash = out_of_line(
            self._forward(stashes=True, adds=True),
            *(*given, phases.args, sums.handles, *into_stash),
        )
        # weights, context, args, stash, slot -> made outputs, [], stash
        self.recompute = out_of_line(
            self._forward(stashes=True, adds=False),
            *(*given, phases.args, [], *into_stash),
        )
        # weights, context, args, stash, slot -> [], [], stash
        self.recompute_residuals = out_of_line(
            self._forward(stashes=True, adds=False, makes=False),
            *(*given, phases.args, [], *into_stash),
        )
        # weights, context, stash, slot, doutputs, accumulators
        # -> dinputs, stash, accumulators
        self.backward = out_of_line(
            self._backward(phases.backward, self._added),
            *(*given, *into_stash, seeds, gradients.handles),
        )
        # weights, context, stash, slot, doutputs, late stash, slot
        # -> dinputs, stash, late stash
        self.input_backward = out_of_line(
            self._backward(phases.input_backward, late.put),
            *(*given, *into_stash, seeds, *into_late),
        )
        # weights, context, late stash, slot, accumulators -> late stash, accumulators
        self.weight_backward = out_of_line(
            self._weight_backward(), *given, *into_late, gradients.handles
        )

    def cast_and_pack(self, weights: Flat) -> Flat:
        """Packs the weights, in the dtypes that the phases take."""
        pairs = zip(weights, self.phases.cast_weights, strict=True)
        return self.weights.pack([tf.cast(x, spec.dtype) for x, spec in pairs])

    def _move(self) -> Callable:
        stash = self.residuals

        def move(source: Flat, read: Any, target: Flat, write: Any) -> Any:
            residuals, source = stash.take(source, read)
            return source, stash.put(target, write, residuals)

        return move

    def _forward(self, stashes: bool, adds: bool, makes: bool = True) -> Callable:
        phases = self.phases

        def forward(
            weights: Flat, context: Flat, args: Flat, before: Flat, *slot: Any
        ) -> Any:
            run = phases.forward(stashes)
            results = run(*self.weights.unpack(weights), *context, *args)
            sizes = len(phases.made), len(phases.sums)
            made, sums, residuals = cut_list(results, *sizes)
            if adds:
                added = map(tf.add, self.sums.unpack(before), sums)
                sums = self.sums.pack(list(added))
            stashed = self.residuals.put(slot[0], slot[1], residuals) if stashes else []
            return made if makes else [], sums if adds else [], stashed

        return forward

    def _backward(self, phase: Callable, store: Callable) -> Callable:
        """Returns a backward pass; it stores gradients or residuals by `store`."""

        def backward(weights: Flat, context: Flat, *more: Any) -> Any:
            stash, slot, seeds, *into = more
            residuals, stash = self.residuals.take(stash, slot)
            run = phase()
            results = run(*self.weights.unpack(weights), *context, *residuals, *seeds)
            inputs, rest = cut_list(results, len(self.phases.gives))
            return inputs, stash, store(*into, rest)

        return backward

    def _weight_backward(self) -> Callable:
        def weight_backward(weights: Flat, context: Flat, *more: Any) -> Any:
            stash, slot, accumulators = more
            residuals, stash = self.weight_residuals.take(stash, slot)
            run = self.phases.weight_backward()
            gradients = run(*self.weights.unpack(weights), *context, *residuals)
            return stash, self._added(accumulators, gradients)

        return weight_backward

    def _finished(self, packed: Flat, divisor: tf.Tensor | None) -> Flat:
        accumulators = self.gradients.unpack(packed)
        return [
            finish_accumulation(total, divisor, spec.dtype)
            for total, spec in zip(accumulators, self._learned, strict=True)
        ]

    def _added(self, packed: Flat, gradients: Flat) -> Flat:
        added = accumulate_gradients(self.gradients.unpack(packed), gradients)
        return self.gradients.pack(added)


def cut_list(flat: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Cuts a list into consecutive lists of the given sizes, and the rest."""
    ends = [0, *itertools.accumulate(sizes), len(flat)]
    return [list(flat[a:b]) for a, b in itertools.pairwise(ends)]


def out_of_line(function: Callable, *specs: Any) -> Callable:
    """Returns the function as one node where it is called, none if it is empty.

    It takes tensors in the structure of `specs`, or flat.
    """

    def flat_function(*flat: tf.Tensor) -> Any:
        return function(*pack_present(specs, flat))

    flat_function.__name__ = function.__name__
    traced = tf.function(
        flat_function, autograph=False, experimental_attributes={"_noinline": True}
    )

    @functools.cache
    def trace() -> Callable:
        concrete = traced.get_concrete_function(*present(specs))
        if concrete.outputs or effects(concrete.graph):
            return lambda *given: concrete(*present(given))
        return lambda *given: pack_present(concrete.structured_outputs, [])

    return lambda *given: trace()(*given)
