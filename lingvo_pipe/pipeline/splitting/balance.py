r"""The best partition of L layers into K stages by their costs.

Among all partitions into contiguous, non-empty stages it is the one with

1. the smallest cost of the most expensive stage (minimax); among those with
2. the least traffic over the stage boundaries; among those with
3. the smallest variance of the stages' costs; among those with
4. the most layers in the first stage, then in the second, and so on.

All sums are exact, so rounding decides nothing: a number is read as the decimal that it
prints as, and three times 0.1 is 0.3.

Where stages may have any length, bisection finds the smallest possible limit of their
costs. A limit is possible if greedy stages, each of as many layers as the limit allows,
are at most K. The rest is a shortest path from the last stage to the first, where one
price per stage combines (2) and (3). For stages that start at `a <= b` and can both end
at `c <= d`,

    price(a, c) + price(b, d)  <=  price(a, d) + price(b, c)

So a later start has a later best end, and few ends need to be tried: O(K · L · log L)
in all. Where not all stages are allowed, see `allowed_stages`.
"""

import bisect
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.pipeline.splitting.allowed_stages import (
    FeasibleEnd,
    best_boundaries,
    cheapest_boundaries,
    minimax_boundaries,
)

# `(start, end) -> price` of a stage.
Price = Callable[[int, int], int]


def balanced_boundaries(
    costs: Sequence[float],
    num_stages: int,
    traffic: Sequence[float] | None = None,
    feasible_end: FeasibleEnd | None = None,
) -> list[int]:
    """Partitions layers into stages whose costs are as equal as possible.

    `traffic` is the size of each layer's outputs, for instance in bytes. If None, it
    does not count. The last layer's outputs cross no boundary. If `feasible_end` is
    None, every stage is allowed (see `allowed_stages`).

    Returns:
        The stage boundaries: the number of layers up to and including each stage.

    Raises:
        ValueError: if there are more stages than layers, or fewer than one, if a number
            is missing, infinite or negative, or if `feasible_end` allows no partition.
    """
    num_layers = len(costs)
    traffic = [0] * num_layers if traffic is None else traffic
    _check_arguments(costs, num_stages, traffic)
    sums = list(itertools.accumulate(_as_integers(costs), initial=0))
    sizes = _as_integers(traffic)
    more_than_squares = sums[-1] ** 2 + 1

    def price(start: int, end: int) -> int:
        square = (sums[end] - sums[start]) ** 2
        return sizes[end - 1] * more_than_squares + square

    if feasible_end is None:
        reach = _feasible_ends(sums, _minimax_cost(sums, num_stages))
        boundaries = best_boundaries(
            num_layers,
            num_stages,
            lambda _, later_sums: _best_ends(later_sums, reach, price),
        )
    else:
        boundaries = _allowed_boundaries(sums, feasible_end, price)
    if boundaries is None:
        raise UserValueError(
            path="splits",
            expected="a number of stages that an allowed partition has",
            got=num_stages,
        )
    return boundaries


def is_finite_number(value: Any) -> bool:
    """Returns whether a value is a finite number of at least 0."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def _as_integers(values: Sequence[float]) -> list[int]:
    """Returns integers that have the same ratios as the values."""
    exact = [Fraction(str(value)) for value in values]
    scale = math.lcm(*(value.denominator for value in exact))
    return [int(value * scale) for value in exact]


def _allowed_boundaries(
    sums: Sequence[int], feasible_end: FeasibleEnd, price: Price
) -> list[int] | None:
    """Returns the best allowed boundaries, or None if no partition is allowed.

    `sums` are the running sums of the costs.
    """
    even = minimax_boundaries(lambda _, a, b: sums[b] - sums[a], feasible_end)
    if even is None:
        return None
    limit = max(sums[b] - sums[a] for a, b in itertools.pairwise([0, *even]))
    reach = _feasible_ends(sums, limit)
    return cheapest_boundaries(
        lambda _, start, end: price(start, end),
        [list(map(min, end_by_start, reach)) for end_by_start in feasible_end],
    )


def _feasible_ends(sums: Sequence[int], limit: int) -> list[int]:
    """Returns for each start the last end of a stage whose cost is within the limit."""
    return [bisect.bisect_right(sums, start + limit) - 1 for start in sums[:-1]]


def _minimax_cost(sums: Sequence[int], num_stages: int) -> int:
    """Returns the smallest possible cost of the most expensive stage."""
    low = max(b - a for a, b in itertools.pairwise(sums))
    high = sums[-1]
    while low < high:
        middle = (low + high) // 2
        end = 0
        for _ in range(num_stages):
            end = bisect.bisect_right(sums, sums[end] + middle) - 1
        if end == len(sums) - 1:
            high = middle
        else:
            low = middle + 1
    return low


def _best_ends(
    later_sums: Mapping[int, int], feasible_end: Sequence[int], price: Price
) -> dict[int, tuple[int, int]]:
    """Returns (smallest sum of prices, last end with that sum) for each start.

    `later_sums` maps each start of the next stage to the sum of prices from there on.
    These starts are consecutive.
    """
    best: dict[int, tuple[int, int]] = {}

    def search(starts: range, low: int, high: int) -> None:
        """Sets the best ends of `starts`, which are between `low` and `high`."""
        if not starts:
            return
        half = len(starts) // 2
        start = starts[half]
        ends = range(max(low, start + 1), min(high, feasible_end[start]) + 1)
        sums = ((price(start, end) + later_sums[end], end) for end in reversed(ends))
        best[start] = min(sums, key=lambda pair: pair[0])
        search(starts[:half], low, best[start][1])
        search(starts[half + 1 :], best[start][1], high)

    low, high = min(later_sums), max(later_sums)
    search(range(bisect.bisect_left(feasible_end, low), high), low, high)
    return best


def _check_arguments(
    costs: Sequence[float], num_stages: int, traffic: Sequence[float]
) -> None:
    num_layers, problems = len(costs), []

    def add(path: str, expected: str, got: Any) -> None:
        problems.append(UserValueError(path=path, expected=expected, got=got))

    if num_stages not in range(1, num_layers + 1):
        add("splits", f"1 to {num_layers} stages (one per layer)", num_stages)
    for name, values in (("costs", costs), ("traffic", traffic)):
        if len(values) != num_layers:
            add(name, f"a number for each of {num_layers} layers", list(values))
        if wrong := {
            i: value for i, value in enumerate(values) if not is_finite_number(value)
        }:
            add(name, "finite, non-negative numbers", wrong)
    raise_problems(problems)
