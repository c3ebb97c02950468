"""A cache of a function's results, for arguments that cannot be hashed."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def cached_by_equality(
    function: Callable[Arguments, Result],
) -> Callable[Arguments, Result]:
    """Returns a version of `function` that runs only once for equal arguments.

    The arguments must not change later. Each call compares its arguments with the
    arguments of all earlier runs, so there should be few different ones.
    """
    results: list[tuple[Any, Result]] = []

    @functools.wraps(function)
    def cached(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        arguments = args, named
        for earlier_arguments, result in results:
            if earlier_arguments == arguments:
                return result
        result = function(*args, **named)
        results.append((arguments, result))
        return result

    return cached
