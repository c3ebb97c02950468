"""What to do about errors of TensorFlow's that tracing brings about.

Their own texts are about functions and AutoGraph, of which users of layers know
nothing.
"""

from __future__ import annotations

import tensorflow as tf

_NO_VALUES = (
    "While it is traced a tensor has a shape and a dtype, but no value. Use tf.cond or "
    "tf.where in place of `if`, tf.map_fn or tf.while_loop in place of a loop over a "
    "tensor, and functions of TensorFlow in place of NumPy's."
)
_VARIABLES = (
    "A variable must be made in __init__, by CreateVariable, and comes to FProp as "
    "theta.<its name>; so no layer of Keras that has weights can be used."
)
# Parts of errors.
_OF_VALUES = ("symbolic tf.Tensor", "SymbolicTensor")
_OF_VARIABLES = ("that are none of the model's", "a variable or table", "tf.Variable")


def taught(error: Exception) -> str:
    """An error's text, with what to do where it comes of tracing."""
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
        return f"{text.partition('. ')[0]}. {_NO_VALUES}"
    is_of_values = isinstance(error, (AttributeError, NotImplementedError, TypeError))
    if is_of_values and any(part in text for part in _OF_VALUES):
        return f"{text} {_NO_VALUES}"
    if isinstance(error, ValueError) and any(part in text for part in _OF_VARIABLES):
        return f"{text} {_VARIABLES}"
    return text
