"""Checks of the params of inputs, of their data sets and of their transforms. Pure."""

from typing import Any

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams import InstantiableParams


def check_params(p: InstantiableParams, checks: dict[str, tuple[bool, str]]) -> None:
    """Raises a ValueError that names all params that fail (is valid, expected)."""
    path = p.cls.__name__
    raise_problems(
        [
            UserValueError(path=f"{path}.{name}", expected=expected, got=p.Get(name))
            for name, (is_valid, expected) in checks.items()
            if not is_valid
        ]
    )


def is_name(value: Any) -> bool:
    """Returns whether a value is a string that is not empty."""
    return isinstance(value, str) and value != ""


def seed_check(value: Any) -> tuple[bool, str]:
    """Returns a check of a seed, for `check_params`."""
    return is_count(value, 0) and value < 2**64, "an integer from 0 to 2**64 - 1"
