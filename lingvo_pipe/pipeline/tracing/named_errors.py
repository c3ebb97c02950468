"""Adds the name of the function that raised an error, and a hint, to the error.

TensorFlow's own errors about tracing mention tf.function and AutoGraph, which users of
layers do not need to know.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.core.errors import UserError
from lingvo_pipe.pipeline.tracing.purity import CAPTURED_VARIABLE, OUTSIDE_MODEL

_NO_VALUES = (
    "While it is traced a tensor has a shape and a dtype, but no value. Use tf.cond or "
    "tf.where in place of `if`, tf.map_fn or tf.while_loop in place of a loop over a "
    "tensor, and functions of TensorFlow in place of NumPy's."
)
_VARIABLES = (
    "Create variables in __init__, by CreateVariable; FProp gets them as "
    "theta.<name>. Keras layers with weights cannot be used."
)
# Parts of errors that need these hints.
_ABOUT_VALUES = ("symbolic tf.Tensor", "SymbolicTensor")
_OF_VALUES = ("numpy", "item", "tolist")  # Attributes.
_ABOUT_VARIABLES = (OUTSIDE_MODEL, CAPTURED_VARIABLE, "tf.Variable")


@contextlib.contextmanager
def named_errors(location: str, given: Any, hint: str = "") -> Iterator[None]:
    """Adds location, inputs and hints to an error that lacks the location.

    The new error has the same class where possible, and its traceback ends where the
    error was raised. `given` are specs of the inputs. `hint` is a sentence that may
    help, or "".
    """
    try:
        yield
    except Exception as error:
        text = _with_tracing_hint(error)
        if location not in text:
            given_text = specs_text(given) or "nothing"
            end = f"{'' if text.endswith(('.', '?')) else '.'} {hint}" if hint else ""
            text = f"{location}, given {given_text}: {text}{end}"
        elif text == str(error):
            raise
        named = _with_message(error, text, location)
        raise named.with_traceback(error.__traceback__) from error.__cause__


def specs_text(tensors: Any) -> str:
    """Returns the paths, dtypes and shapes of a structure's tensors."""
    is_row = isinstance(tensors, (list, tuple)) and not hasattr(tensors, "_fields")
    return ", ".join(
        f"{path} {x.dtype.name} {x.shape}".strip()
        for item in (tensors if is_row else [tensors])
        for path, x in trees.leaves(item)
        if x is not None
    )


def _with_tracing_hint(error: Exception) -> str:
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
        return f"{text.partition('. ')[0]}. {_NO_VALUES}"
    is_about_values = isinstance(error, (NotImplementedError, TypeError)) or (
        isinstance(error, AttributeError) and error.name in _OF_VALUES
    )
    if is_about_values and any(part in text for part in _ABOUT_VALUES):
        return f"{text} {_NO_VALUES}"
    if isinstance(error, ValueError) and any(part in text for part in _ABOUT_VARIABLES):
        return f"{text} {_VARIABLES}"
    return text


def _with_message(error: Exception, message: str, location: str) -> Exception:
    if isinstance(error, UserError):
        copy = type(error)(message)
        vars(copy).update(vars(error), path=error.path or location)
        return copy
    if isinstance(error, ValueError):
        return ValueError(message)
    # Some need other arguments, such as ExceptionGroup.
    with contextlib.suppress(TypeError):
        if isinstance(error, tf.errors.OpError):
            return type(error)(error.node_def, error.op, message)
        kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return next(kinds)(message)
    return RuntimeError(message)
