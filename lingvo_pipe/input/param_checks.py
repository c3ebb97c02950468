"""Rules for the values of params of inputs, of data sets and of transforms."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from lingvo_pipe.core.checks import is_count, is_number
from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams import InstantiableParams

Rule = tuple[Callable[[Any], bool], str]  # a predicate, and the valid values in words


def check_params(p: InstantiableParams, rules: Mapping[str, Rule]) -> None:
    """Raises a ValueError that names all params whose values break their rules."""
    path = p.cls.__name__
    raise_problems(
        [
            UserValueError(path=f"{path}.{name}", expected=expected, got=p.Get(name))
            for name, (predicate, expected) in rules.items()
            if not predicate(p.Get(name))
        ]
    )


def or_none(rule: Rule) -> Rule:
    """Returns a rule that allows None and what `rule` allows."""
    predicate, expected = rule
    return lambda x: x is None or predicate(x), f"{expected} or None"


def integer_from(minimum: int) -> Rule:
    """Returns a rule for integers of at least `minimum`."""
    return lambda x: is_count(x, minimum), f"an integer of at least {minimum}"


def number_between(minimum: float, maximum: float = math.inf) -> Rule:
    """Returns a rule for numbers from `minimum` to `maximum`, both included."""
    expected = f"a number from {minimum} to {maximum}"
    if math.isinf(maximum):
        expected = f"a number of at least {minimum}"
    return lambda x: is_number(x) and minimum <= x <= maximum, expected


COUNT: Rule = (is_count, "a positive integer")
NAME: Rule = (lambda x: isinstance(x, str) and x != "", "a name")
SEED: Rule = (
    lambda x: is_count(x, 0) and x < 2**64,
    "an integer from 0 to 2**64 - 1",
)
