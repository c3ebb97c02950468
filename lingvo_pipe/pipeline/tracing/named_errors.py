"""Says in an error in which function of a pipeline it came up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe import tree
from lingvo_pipe.pipeline.tracing.remedies import taught


@contextlib.contextmanager
def named_errors(where: str, given: Any, hint: str = "") -> Iterator[None]:
    """Adds to an error where it came up and what came in, unless it says where.

    And what to do about it, if it comes of tracing. It stays an error of its kind, and
    its traceback ends where it was raised.

    Args:
        where: what runs, as in "FProp of the FCLayer at model/dense (stage 0)".
        given: specs of what it is given.
        hint: a sentence that may help, or nothing.
    """
    try:
        yield
    except Exception as error:
        text = taught(error)
        if where not in text:
            given_text = specs_text(given) or "nothing"
            end = f"{'' if text.endswith(('.', '?')) else '.'} {hint}" if hint else ""
            text = f"{where}, given {given_text}: {text}{end}"
        elif text == str(error):
            raise
        named = _alike(error, text).with_traceback(error.__traceback__)
        raise named from error.__cause__


def specs_text(tensors: Any) -> str:
    """The dtypes and shapes of a structure's tensors, and their places in it."""
    is_row = isinstance(tensors, (list, tuple)) and not hasattr(tensors, "_fields")
    parts = tensors if is_row else [tensors]
    return ", ".join(
        f"{path} {x.dtype.name} {x.shape}".strip()
        for part in parts
        for path, x in tree.leaves(part)
        if x is not None
    )


def _alike(error: Exception, message: str) -> Exception:
    """An error of the same kind, or of the next that is made of a message alone."""
    if isinstance(error, ValueError):
        return ValueError(message)
    # Some take more, such as ExceptionGroup.
    with contextlib.suppress(TypeError):
        if isinstance(error, tf.errors.OpError):
            return type(error)(error.node_def, error.op, message)
        kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return next(kinds)(message)
    return RuntimeError(message)
