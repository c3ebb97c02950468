"""tf.custom_gradient for graphs that end with the last reference to them.

tf.custom_gradient registers the gradient of each call in a graph for as long as the
process lives, and with it the graph. Here one gradient is registered. It finds the
call's own in a collection of the graph:

    results, args --IdentityN--> results
                       |
            collection of the graph: (IdentityN, gradient)
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

_NAME = "LingvoPipeGraphGradient"

Gradient = Callable[..., Sequence[Any]]
Function = Callable[..., tuple[Sequence[tf.Tensor], Gradient]]


def custom_gradient(function: Function) -> Callable[..., list[tf.Tensor]]:
    """Returns the function of tensors, with the gradient that it returns.

    The function reads no variables. It returns a list of tensors, and a function that
    maps their gradients to gradients of the arguments, None for no gradient.
    """

    @functools.wraps(function)
    def call(*args: tf.Tensor) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            return list(tf.custom_gradient(function)(*args))
        results, gradient = function(*args)
        tensors = [*results, *map(tf.convert_to_tensor, args)]

        def padded_gradient(*gradients: tf.Tensor) -> list[Any]:
            own = gradients[: len(results)]
            return [*[None] * len(results), *gradient(*own)]

        graph = tf.compat.v1.get_default_graph()
        with (
            graph.gradient_override_map({"IdentityN": _NAME}),
            record.stop_recording(),
        ):
            outputs = tf.identity_n(tensors)
        graph.add_to_collection(_NAME, (outputs[0].op, padded_gradient))
        # For tapes, which ignore the map.
        record.record_operation(function.__name__, outputs, tensors, padded_gradient)
        return outputs[: len(results)]

    return call


@tf.RegisterGradient(_NAME)
def _gradient_of_call(op: tf.Operation, *gradients: tf.Tensor) -> Sequence[Any]:
    for called, gradient in op.graph.get_collection(_NAME):
        # Graphs inherit collections, and with them the operations of outer graphs.
        if called.graph is op.graph and called.name == op.name:
            return gradient(*gradients)
    raise LookupError(f"{op.name} has no gradient in its graph.")
