"""Regular expressions that choose variables by their paths.

Every expression must choose something: one that is found nowhere is a misspelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lingvo_pipe.hyperparams.suggest import did_you_mean

_NUM_SHOWN = 3


def paths_with(pattern: Any, paths: Sequence[str], param: str) -> list[str]:
    """The paths in which a regular expression is found, anywhere.

    Args:
        pattern: the expression.
        paths: of the variables that there are.
        param: where the expression stands, for the errors.

    Raises:
        ValueError: if it is no regular expression, or found in none of the paths.
    """
    return _chosen(compile_pattern(pattern, param).search, pattern, paths, param)


def paths_beginning_with(pattern: Any, paths: Sequence[str], param: str) -> list[str]:
    """As `paths_with`, for an expression that must match from the path's beginning."""
    return _chosen(compile_pattern(pattern, param).match, pattern, paths, param)


def compile_pattern(pattern: Any, param: str) -> re.Pattern[str]:
    """Compiles a regular expression.

    Raises:
        ValueError: if it is none.
    """
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"{param} must be a regular expression; got {pattern!r} ({error})."
        ) from error


def _chosen(
    matches: Callable[[str], Any], pattern: str, paths: Sequence[str], param: str
) -> list[str]:
    chosen = [path for path in paths if matches(path)]
    if not chosen:
        raise ValueError(
            f"{param} must choose at least 1 variable; {pattern!r} chooses none of "
            f"{len(paths)}, such as {list(paths[:_NUM_SHOWN])}."
            f"{_near_parts(pattern, paths)} Correct the expression or leave it out."
        )
    return chosen


def _near_parts(pattern: str, paths: Iterable[str]) -> str:
    """What words of a pattern may have been meant to be."""
    parts = {part for path in paths for part in path.split("/")}
    words = [word for word in re.findall(r"\w{2,}", pattern) if word not in parts]
    return "".join(did_you_mean(word, parts) for word in words)
