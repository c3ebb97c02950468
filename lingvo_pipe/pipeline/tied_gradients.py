"""The gradient of a weight that stands in several places of a model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def sum_tied(variables: Any, gradients: Any) -> Any:
    """Gradients in which each variable has one, the sum over its places.

    Args:
        variables: a structure in which a variable may stand more than once.
        gradients: by place, in the same structure; or None.

    Returns:
        The gradients, the sum in a variable's first place and None in the others.
    """
    places: dict[Any, list[int]] = {}
    for i, variable in enumerate(tf.nest.flatten(variables)):
        places.setdefault(variable.ref(), []).append(i)
    flat = tf.nest.flatten(gradients)
    for variable, (first, *others) in places.items():
        with tf.device(variable.deref().device):
            for i in others:
                if flat[i] is not None:
                    flat[first] = (
                        flat[i] if flat[first] is None else flat[first] + flat[i]
                    )
                flat[i] = None
    return tf.nest.pack_sequence_as(variables, flat)
