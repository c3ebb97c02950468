"""A call of a layer or another operation, run on values or traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.nests import present
from lingvo_pipe.keras.cells import private_names
from lingvo_pipe.keras.cells.calls import GraphTensor, KerasCall
from lingvo_pipe.keras.cells.row_seed import known_draws
from lingvo_pipe.keras.cells.state import CellScope, RandomDraws, is_seed, kinds_of
from lingvo_pipe.keras.mixing.random_rows import ROWS, Rows, random_values
from lingvo_pipe.keras.mixing.row_flow import Flow, flows, has_custom_gradient, sizes_in

_Results = tuple[list[tf.Tensor], list[tf.Tensor]]


class CallGraph(NamedTuple):
    """Properties of a call, as read from its graph for an unknown number of examples.

    Attributes:
        mixes: whether an output is made of more than one example, or a state or a loss
            is no linear function of sums over examples.
        writes: whether the call assigns a variable that is no random seed.
        has_custom_gradient: whether the graph has a function of `tf.custom_gradient`.
    """

    mixes: bool
    writes: bool
    has_custom_gradient: bool


def run_call(
    call: KerasCall,
    draws: RandomDraws,
    training: bool,
    scope: CellScope,
    value_of: Callable[[GraphTensor], tf.Tensor],
) -> _Results:
    """Runs a call. Returns its outputs, and the states and losses that it makes."""
    args, kwargs = call.arguments(value_of)
    with scope, known_draws(draws.belong):
        outputs = tree.flatten(
            private_names.run_operation(
                call.operation, training, args, kwargs, call.models
            )
        )
    if isinstance(call.operation, keras.Layer):
        private_names.forget_losses(call.operation)
    # The masks may reach other layers and the loss.
    outputs += present([private_names.get_mask(x) for x in outputs])
    kinds = kinds_of(call.variables, [call.operation], scope.writes)
    state = [v for v, kind in zip(call.variables, kinds, strict=True) if kind.is_summed]
    return outputs, [*map(scope.get_current_value, state), *scope.losses]


def graph_of_call(
    call: KerasCall, draws: RandomDraws, training: bool
) -> CallGraph | None:
    """Returns what a call's graph shows, or None if the call cannot be traced."""
    for rows in ROWS:
        with contextlib.suppress(Exception):  # Whatever a user's layer raises.
            return _graph(call, draws, training, rows)
    return None


def values_of(call: KerasCall, rows: Rows) -> dict[int, np.ndarray]:
    """Returns random values for the inputs of a call, by their numbers."""
    random = np.random.default_rng(0)
    return {
        x.number: random_values(_shape(x, rows.number, rows.size), x.spec.dtype, random)
        for x in call.taken
    }


def rows_in(value: Any, x: GraphTensor, part: slice) -> Any:
    """Returns some rows of a value of `x`, or all of it if it has no rows."""
    if x.row_axis is None:
        return value
    return value[(*(slice(None),) * x.row_axis, part)]


def _graph(
    call: KerasCall, draws: RandomDraws, training: bool, rows: Rows
) -> CallGraph:
    values = {id(v): v.value for v in call.variables}
    scope = CellScope(values, call.variables, tf.constant(0, tf.int64))
    inputs: dict[int, tf.Tensor] = {}
    results: list[list[tf.Tensor]] = []

    def trace(*tensors: tf.Tensor) -> None:
        inputs.update(zip((x.number for x in call.taken), tensors, strict=True))
        results[:] = run_call(call, draws, training, scope, lambda x: inputs[x.number])

    specs = [
        tf.TensorSpec(_shape(x, None, rows.size), x.spec.dtype) for x in call.taken
    ]
    function = tf.compat.v1.wrap_function(trace, specs)
    constant = _constant_sizes(call, rows, function, inputs)
    of_examples = {
        inputs[x.number].ref(): Flow.ROWS for x in call.taken if x.row_axis is not None
    }
    by_tensor = flows(function.graph, of_examples, constant)
    outputs, sums = (
        [by_tensor.get(tf.convert_to_tensor(x).ref(), Flow.FREE) for x in tensors]
        for tensors in results
    )
    return CallGraph(
        any(x >= Flow.JOINT for x in outputs) or Flow.MIXED in sums,
        any(scope.writes[id(v)] and not is_seed(v) for v in call.variables),
        has_custom_gradient(function.graph),
    )


def _constant_sizes(
    call: KerasCall, rows: Rows, function: Any, inputs: Mapping[int, tf.Tensor]
) -> set[Any]:
    """Returns references of `sizes_in` that are the same for any number of examples."""
    sizes, values = sizes_in(function.graph), values_of(call, rows)
    measure = function.prune([inputs[x.number] for x in call.taken], sizes)
    first, second = (
        measure(*(tf.constant(rows_in(values[x.number], x, part)) for x in call.taken))
        for part in rows.parts
    )
    measured = zip(sizes, first, second, strict=True)
    return {x.ref() for x, a, b in measured if np.array_equal(a, b)}


def _shape(x: GraphTensor, num_rows: int | None, size: int) -> Sequence[Any]:
    return [
        num_rows if axis == x.row_axis else size if n is None else n
        for axis, n in enumerate(x.spec.shape)
    ]
