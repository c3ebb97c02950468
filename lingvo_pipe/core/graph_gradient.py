"""A tf.custom_gradient that lets graphs be freed before the process ends.

tf.custom_gradient registers a gradient for each call in a graph. The process keeps all
of these, and with them their graphs. Here a single gradient is registered. It finds the
gradient of a call in an attribute of the call's graph:

    results, args --IdentityN--> results
                       |
            graph.<attribute>[name of the IdentityN] = gradient
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from lingvo_pipe.core.errors import UserValueError

_NAME = "LingvoPipeGraphGradient"

Gradient = Callable[..., Sequence[Any]]
Function = Callable[..., tuple[Sequence[tf.Tensor], Gradient]]


def custom_gradient(function: Function) -> Callable[..., list[tf.Tensor]]:
    """Returns a function of tensors whose gradient `function` defines.

    `function` reads no variables. It returns (a list of tensors, a gradient function).
    The gradient function maps the gradients of these tensors to the gradients of the
    arguments, or to None for an argument without a gradient.
    """

    @functools.wraps(function)
    def call(*args: tf.Tensor) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            return list(tf.custom_gradient(function)(*args))
        results, gradient = function(*args)
        tensors = [*results, *map(tf.convert_to_tensor, args)]

        def padded_gradient(*gradients: tf.Tensor) -> list[Any]:
            return [None] * len(results) + [*gradient(*gradients[: len(results)])]

        graph = tf.compat.v1.get_default_graph()
        with (
            graph.gradient_override_map({"IdentityN": _NAME}),
            record.stop_recording(),
        ):
            outputs = tf.identity_n(tensors)
        # Not in a collection: inner graphs inherit those, and would keep this graph.
        if not hasattr(graph, _NAME):
            setattr(graph, _NAME, {})
        getattr(graph, _NAME)[outputs[0].op.name] = padded_gradient
        # Tapes ignore the map and need this record.
        record.record_operation(function.__name__, outputs, tensors, padded_gradient)
        return outputs[: len(results)]

    return call


@tf.RegisterGradient(_NAME)
def _gradient_of_call(op: tf.Operation | None, *gradients: tf.Tensor) -> Sequence[Any]:
    if op is None:  # TensorFlow asks so for gradients to save.
        raise UserValueError(
            "A SavedModel cannot hold the gradients of a pipeline's graph.",
            hint="Save with tf.saved_model.SaveOptions(experimental_custom_gradients="
            "False), or save a function of an evaluation.",
        )
    return getattr(op.graph, _NAME)[op.name](*gradients)
