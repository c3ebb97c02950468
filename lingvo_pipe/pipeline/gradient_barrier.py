"""Refuses gradients through a function that has none, without moving its tensors.

tf.custom_gradient around the whole function would bring all arguments and results to
one device. Here each argument leaves an empty slice of itself, and each result is tied
to those: a tape sees the connection, and no device sees another's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def call_without_gradient(
    function: Callable[..., Sequence[tf.Tensor]],
    arguments: Sequence[tf.Tensor],
    argument_devices: Sequence[str],
    result_devices: Sequence[str],
    refuse: Callable[..., None],
) -> list[tf.Tensor]:
    """Calls `function(*arguments)`.

    Args:
        function: what is called; it sees arguments that no tape watches.
        arguments: tensors, or numpy arrays.
        argument_devices: where each argument is used.
        result_devices: where each result is.
        refuse: called when a gradient is asked for; raises.

    Returns:
        The results.
    """
    ties, stopped = [], list(arguments)
    for i, (x, device) in enumerate(zip(arguments, argument_devices, strict=True)):
        if _has_gradient(x):
            with tf.device(device):
                nothing = tf.math.real(tf.reshape(x, [-1])[:0])
                ties.append(tf.cast(nothing, tf.float32))
                stopped[i] = tf.stop_gradient(x)
    results = function(*stopped)
    if not ties:
        return list(results)

    @tf.custom_gradient
    def tied(result: tf.Tensor, tie: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return tf.identity(result), refuse

    tie = tf.concat(ties, 0)
    barred = []
    for result, device in zip(results, result_devices, strict=True):
        with tf.device(device):
            barred.append(tied(result, tie) if _has_gradient(result) else result)
    return barred


def _has_gradient(x: Any) -> bool:
    dtype = tf.as_dtype(x.dtype)
    return dtype.is_floating or dtype.is_complex
