"""A call of a layer or another operation, run on values or traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras import private_names
from lingvo_pipe.keras.calls import GraphTensor, KerasCall
from lingvo_pipe.keras.row_flow import Flow, flows
from lingvo_pipe.keras.row_seed import UNKNOWN, known_draws
from lingvo_pipe.keras.state import CellScope, RandomDraws, is_seed, kinds_of

FEW = 3  # Sizes of other dimensions that are None.


def run_call(
    call: KerasCall,
    draws: RandomDraws,
    training: bool,
    scope: CellScope,
    value_of: Callable[[GraphTensor], tf.Tensor],
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Runs a call. Returns its outputs, and the states and losses that it makes."""
    args, kwargs = call.arguments(value_of)
    with scope, known_draws(draws.belong):
        outputs = tree.flatten(
            private_names.run_operation(call.operation, training, args, kwargs)
        )
    if isinstance(call.operation, keras.Layer):
        private_names.forget_losses(call.operation)
    kinds = kinds_of(call.variables, [call.operation])
    state = [v for v, kind in zip(call.variables, kinds, strict=True) if kind.is_summed]
    return outputs, [*map(scope.get_current_value, state), *scope.losses]


@contextlib.contextmanager
def _functions_inlined() -> Iterator[None]:
    """Lets the operations of a tf.function be operations of the graph."""
    was_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(was_eager)


class TracedCall:
    """A call's graph for an unknown number of examples.

    Attributes:
        graph: the graph.
        mixes: whether an output is made of more than one example, or a state or a loss
            is no linear function of sums over examples.
        writes: whether the call assigns a variable that is no random seed.
    """

    def __init__(self, call: KerasCall, draws: RandomDraws, training: bool):
        taken, self.writes = call.taken, False
        specs = [tf.TensorSpec(_shape(x), x.spec.dtype) for x in taken]
        results: list[list[tf.Tensor]] = []

        def trace(*values: tf.Tensor) -> None:
            by_number = {x.number: v for x, v in zip(taken, values, strict=True)}
            scope = CellScope.of_call(call, tf.constant(0, tf.int64), UNKNOWN)
            results[:] = run_call(
                call, draws, training, scope, lambda x: by_number[x.number]
            )
            self.writes = any(
                scope.writes[id(v)] and not is_seed(v) for v in call.variables
            )
            inputs[:] = [
                v for x, v in zip(taken, values, strict=True) if x.row_axis is not None
            ]

        inputs: list[tf.Tensor] = []
        with _functions_inlined():
            self.graph = tf.compat.v1.wrap_function(trace, specs).graph
        outputs, sums = results
        by_tensor = flows(self.graph, inputs)

        def flow(x: tf.Tensor) -> Flow:
            return by_tensor.get(tf.convert_to_tensor(x).ref(), Flow.FREE)

        with_rows = [
            x for x, made in zip(outputs, call.made, strict=True) if made.row_axis == 0
        ]
        self.mixes = any(flow(x) == Flow.MIXED for x in (*with_rows, *sums))


def _shape(x: GraphTensor) -> list[int | None]:
    axis = x.row_axis
    return [
        None if i == axis else FEW if size is None else size
        for i, size in enumerate(x.spec.shape)
    ]
