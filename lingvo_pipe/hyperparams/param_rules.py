"""Rules that say which values params may have."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lingvo_pipe.core.checks import MAX_COUNT, is_count, is_number
from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams.params import Params


class Rule(NamedTuple):
    """The allowed values of a param, as a predicate and in words."""

    predicate: Callable[[Any], bool]
    expected: str
    hint: str = ""


SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")
NAME = Rule(lambda value: isinstance(value, str) and value != "", "a name")
SEED = Rule(lambda n: is_count(n, 0) and n < 2**64, "an integer from 0 to 2**64 - 1")


def count(minimum: int = 1, hint: str = "") -> Rule:
    """Returns a rule for integers from `minimum` to the largest int32."""
    expected = f"an integer from {minimum} to {MAX_COUNT}"
    return Rule(lambda n: is_count(n, minimum) and n <= MAX_COUNT, expected, hint)


def number_between(minimum: float, maximum: float = math.inf) -> Rule:
    """Returns a rule for numbers from `minimum` to `maximum`, both included."""
    expected = f"a number from {minimum} to {maximum}"
    if math.isinf(maximum):
        expected = f"a number of at least {minimum}"
    return Rule(lambda x: is_number(x) and minimum <= x <= maximum, expected)


def optional(rule: Rule) -> Rule:
    """Returns a rule that also allows None."""
    return Rule(
        lambda value: value is None or rule.predicate(value),
        f"None, or {rule.expected}",
        rule.hint,
    )


def check_params(p: Params, rules: Mapping[str, Rule], path: str = "") -> None:
    """Checks the params that `rules` names.

    `path` is the path of `p` in errors, by default the class that `p` configures.

    Raises:
        ValueError: if any value is wrong. The error names all wrong values.
    """
    path = path or p.cls.__name__
    values = {name: p.Get(name) for name in rules}
    raise_problems(
        [
            UserValueError(
                path=f"{path}.{name}",
                expected=rules[name].expected,
                got=value,
                hint=rules[name].hint,
            )
            for name, value in values.items()
            if not rules[name].predicate(value)
        ]
    )
