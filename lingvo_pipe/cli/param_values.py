"""Detection of values of params with which no model can be built."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_integer, is_number
from lingvo_pipe.core.error_text import error_text, user_message
from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.frozen_values import as_plain, same_value
from lingvo_pipe.hyperparams.traversal import children

_MAX_INTEGER = 2**64 - 1  # Seeds have up to 64 bits.
_MAX_FLOAT = float(tf.float32.max)
_MAY_BE_INFINITE = ("input.temperature",)
# Errors of Python about values; user errors are among them.
_VALUE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def check_values(model: Any) -> None:
    """Raises a ValueError that names all params with impossible values, if any."""
    hint = "Correct --model_params_override, or the model."
    raise_problems(list(_problems("", model, None)), hint)


@contextlib.contextmanager
def naming_override(override: str) -> Iterator[None]:
    """Turns errors that name no param into errors about --model_params_override."""
    try:
        yield
    except _VALUE_ERRORS as error:
        if not override or user_message(error):
            raise
        raise UserValueError(
            path="--model_params_override",
            expected="values that a model can be built with",
            got=override,
            hint=f"--traceback shows where this failed: {error_text(error)}",
        ) from error


def _problems(path: str, value: Any, default: Any) -> Iterator[UserValueError]:
    if isinstance(value, Fields):
        for name, field in value._fields.items():
            inner = f"{path}.{name}".removeprefix(".")
            yield from _problems(inner, field.value, field.default)
        return
    if isinstance(default, Fields):
        yield UserValueError(path=path, expected="a group of params", got=value)
    for step, child in children(value) or ():
        yield from _problems(path + step, child, None)
    number = as_plain(value)
    if not is_number(number) or same_value(value, default):
        return
    if number == math.inf and path in _MAY_BE_INFINITE:
        return
    maximum = _MAX_INTEGER if is_integer(number) else _MAX_FLOAT
    if not abs(number) <= maximum:
        expected = f"a finite number of at most {maximum:.3g}"
        yield UserValueError(path=path, expected=expected, got=value)
