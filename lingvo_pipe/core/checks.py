"""Checks of numbers, for the params of several packages. Needs no TensorFlow."""

import numbers
from typing import Any, TypeGuard

from lingvo_pipe.core.errors import UserValueError, raise_problems

# TensorFlow and the progress bar count in 32 bits.
MAX_COUNT = 2**31 - 1


def is_integer(value: Any) -> TypeGuard[int]:
    """Returns whether a value is an integer, of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_count(value: Any, minimum: int = 1) -> TypeGuard[int]:
    """Returns whether a value is an integer of at least `minimum`."""
    return is_integer(value) and value >= minimum


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value is a real number, of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_sequence(value: Any, length: int | None = None) -> bool:
    """Returns whether a value is a list or tuple, of this length if it is given."""
    return isinstance(value, (list, tuple)) and length in (None, len(value))


def check_counts(
    counts: dict[str, Any] | None = None,
    *,
    minimum: int = 1,
    hint: str = "",
    **more: Any,
) -> None:
    """Raises a UserValueError that names each value not from `minimum` to MAX_COUNT.

    `counts` has values by path, such as {"task.train.max_steps": 100}.
    """
    problems = []
    for path, value in {**(counts or {}), **more}.items():
        is_large = is_count(value, minimum)
        if not is_large or value > MAX_COUNT:
            bounds = f"{minimum} and at most {MAX_COUNT}" if is_large else f"{minimum}"
            expected = f"an integer of at least {bounds}"
            problems.append(UserValueError(path=path, expected=expected, got=value))
    raise_problems(problems, hint)
