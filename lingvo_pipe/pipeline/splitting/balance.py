r"""The best partition of L layers into K stages by their costs.

Devices may differ in speed: a stage costs the sum of its layers' costs, multiplied by
the slowness of the stage. Partitions into contiguous, non-empty stages are compared by
these criteria, in order:

1. the smallest cost of the most expensive stage (minimax);
2. the least traffic over the stage boundaries;
3. the smallest variance of the stages' costs;
4. the most layers in the first stage, then in the second, and so on.

All sums are exact, so rounding decides nothing: a number is read as the decimal that it
prints as, and three times 0.1 is 0.3.

Where stages may have any length, bisection finds the smallest possible limit of their
costs. A limit is possible if greedy stages, each of as many layers as the limit allows,
hold all layers. The rest is a shortest path from the last stage to the first, where one
price per stage combines (2) and (3). For stages that start at `a <= b` and can both end
at `c <= d`,

    price(a, c) + price(b, d)  <=  price(a, d) + price(b, c)

So a later start has a later best end, and few ends need to be tried: O(K · L · log L)
in all. Where not all stages are allowed, or stages differ in slowness, so that greedy
stages may be empty, see `allowed_stages`.
"""

import bisect
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.splitting.allowed_stages import (
    FeasibleEnd,
    Size,
    best_boundaries,
    cheapest_boundaries,
    is_feasible,
    minimax_boundaries,
)

# `(start, end) -> price` of a stage.
Price = Callable[[int, int], int]


def balanced_boundaries(
    costs: Sequence[float],
    num_stages: int,
    traffic: Sequence[float] | None = None,
    feasible_end: FeasibleEnd | None = None,
    slowness: Sequence[float] | None = None,
) -> list[int]:
    """Partitions layers into stages whose costs are as equal as possible.

    Args:
        costs: costs of the layers, for instance in seconds; finite and not negative.
        num_stages: K.
        traffic: size of each layer's outputs, for instance in bytes; like `costs`. If
            None, it does not count. The last layer's outputs cross no boundary.
        feasible_end: allowed stages (see `allowed_stages`). If None, every stage.
        slowness: positive factors of the costs in each stage. If None, 1.

    Returns:
        The stage boundaries: the number of layers up to and including each stage.

    Raises:
        ValueError: if `num_stages` is not from 1 to L, or no partition is allowed.
    """
    num_layers = len(costs)
    traffic = [0] * num_layers if traffic is None else traffic
    if num_stages not in range(1, num_layers + 1):
        raise UserValueError(
            path="splits",
            expected=f"1 to {num_layers} stages (one per layer)",
            got=num_stages,
        )
    sums = list(itertools.accumulate(_as_integers(costs), initial=0))
    sizes, factors = _as_integers(traffic), _as_integers(slowness or [1] * num_stages)
    more_than_squares = (sums[-1] * max(factors)) ** 2 + 1

    def cost(stage: int, start: int, end: int) -> int:
        return (sums[end] - sums[start]) * factors[stage]

    def price(stage: int, start: int, end: int) -> int:
        return sizes[end - 1] * more_than_squares + cost(stage, start, end) ** 2

    allowed = feasible_end or [[num_layers] * num_layers] * num_stages
    limit = _lowest_limit(sums, factors)
    within = _ends_within(limit, sums, factors, allowed)
    if feasible_end is None and _allows_each_layer(within):
        boundaries = best_boundaries(
            num_layers,
            num_stages,
            lambda k, later: _best_ends(later, within[k], functools.partial(price, k)),
        )
    else:
        if not is_feasible(within):
            limit = _allowed_limit(cost, allowed)
            within = _ends_within(limit, sums, factors, allowed)
        boundaries = cheapest_boundaries(price, within)
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


def _allows_each_layer(feasible_end: FeasibleEnd) -> bool:
    """Returns whether each layer alone is an allowed stage, wherever it is."""
    slowest = min(feasible_end, key=sum)
    return all(start < end for start, end in enumerate(slowest))


def _allowed_limit(cost: Size, allowed: FeasibleEnd) -> int:
    """Returns the minimax cost of allowed stages, or 0 if no partition is allowed."""
    even = minimax_boundaries(cost, allowed) or []
    pairs = enumerate(itertools.pairwise([0, *even]))
    return max((cost(stage, *pair) for stage, pair in pairs), default=0)


def _ends_within(
    limit: int, sums: Sequence[int], factors: Sequence[int], allowed: FeasibleEnd
) -> FeasibleEnd:
    reach = {x: _feasible_ends(sums, limit // x) for x in set(factors)}
    pairs = zip(factors, allowed, strict=True)
    return [list(map(min, reach[factor], ends)) for factor, ends in pairs]


def _feasible_ends(sums: Sequence[int], limit: int) -> list[int]:
    """Returns for each start the last end within the limit, from running sums."""
    return [bisect.bisect_right(sums, start + limit) - 1 for start in sums[:-1]]


def _lowest_limit(sums: Sequence[int], factors: Sequence[int]) -> int:
    """Returns the smallest possible cost of the most expensive stage.

    All stages are allowed, even empty ones. If all factors are equal, the limit allows
    a partition without empty stages, too.
    """
    low = max(b - a for a, b in itertools.pairwise(sums)) * min(factors)
    high = sums[-1] * min(factors)
    while low < high:
        middle = (low + high) // 2
        end = 0
        for factor in factors:
            end = bisect.bisect_right(sums, sums[end] + middle // factor) - 1
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
