r"""Which layers make up which stage. Pure.

    layers   0  1  2 | 3  4 | 5  6        ends = [3, 5, 7]
             stage 0   st. 1  stage 2

A split is written as the ends of its stages: the number of layers up to and including
each. Stages are contiguous and never empty, and every layer belongs to one.
"""

from __future__ import annotations

import itertools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard


def balanced_ends(costs: Sequence[float], num_stages: int) -> list[int]:
    """Splits layers so that the most expensive stage is as cheap as possible.

    Among the splits with that largest cost it takes one of least variance. Exact, by
    dynamic programming: O(num_stages · layers²).

    Args:
        costs: of each layer, not negative.
        num_stages: at least 1, at most the number of layers.

    Returns:
        The ends of the stages.

    Raises:
        ValueError: if there are more stages than layers, or fewer than one.
    """
    num_layers = len(costs)
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"The number of stages must lie between 1 and the number of layers, "
            f"{num_layers}; got {num_stages}. A stage can't be empty: use fewer stages "
            "or devices."
        )
    total = list(itertools.accumulate(costs, initial=0.0))

    def cost(start: int, end: int) -> float:
        return total[end] - total[start]

    ends = _optimal_ends(num_layers, num_stages, cost, max)
    limit = max(cost(a, b) for a, b in itertools.pairwise([0, *ends]))

    def square(start: int, end: int) -> float:
        return cost(start, end) ** 2 if cost(start, end) <= limit else math.inf

    return _optimal_ends(num_layers, num_stages, square, operator.add)


def _optimal_ends(
    num_layers: int,
    num_stages: int,
    cost: Callable[[int, int], float],
    combine: Callable[[float, float], float],
) -> list[int]:
    """The split whose stages' costs, combined, are least; earlier stages larger."""
    best = [cost(start, num_layers) for start in range(num_layers)]
    choices: list[list[int]] = []
    for remaining in range(2, num_stages + 1):
        last_start = num_layers - remaining
        choice, value = [], []
        for start in range(last_start + 1):
            by_end = {
                end: combine(cost(start, end), best[end])
                for end in range(last_start + 1, start, -1)
            }
            choice.append(min(by_end, key=lambda end: by_end[end]))
            value.append(by_end[choice[-1]])
        choices.append(choice)
        best = value
    ends = [0]
    for choice in reversed(choices):
        ends.append(choice[ends[-1]])
    return [*ends[1:], num_layers]


def check_ends(ends: Sequence[int], num_layers: int) -> None:
    """Raises ValueError unless `ends` ascends strictly from 1 up to `num_layers`."""
    ascending = all(a < b for a, b in itertools.pairwise([0, *ends]))
    if not ends or not ascending or ends[-1] != num_layers:
        raise ValueError(
            "splits must list the ends of the stages, ascending, none empty, the last "
            f"equal to the number of layers, {num_layers}; got {list(ends)}."
        )


def resolve_ends(splits: int | Sequence[int], num_layers: int) -> list[int]:
    """The ends meant by `splits`: a number of even stages, or the ends themselves.

    Raises:
        ValueError: if it is neither, or impossible.
    """
    if _is_integer(splits):
        return balanced_ends([1.0] * num_layers, splits)
    if not isinstance(splits, (list, tuple)) or not all(map(_is_integer, splits)):
        raise ValueError(
            "splits must be a number of stages, or a list of the ends of the stages; "
            f"got {splits!r}."
        )
    check_ends(splits, num_layers)
    return list(splits)


def is_count(value: Any) -> bool:
    """Whether a value is an integer of at least 1."""
    return _is_integer(value) and value >= 1


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
