r"""The best cut of L layers into K stages. Pure.

Of all cuts into contiguous stages, none empty, it is the one with

1. the least cost of the most expensive stage; among those with
2. the least traffic over the boundaries; among those with
3. the least variance of the stages' costs; among those with
4. the most layers in the first stage, then in the second, and so on.

All sums are exact, so no rounding decides.

Where every stage may be of any length, the largest cost is found by bisection: with a
limit on a stage's cost given, stages that each take what they can are fewest. What is
left to choose is a shortest path, stage by stage from the last. (2) and (3) make one
price of a stage, such that of two stages that start at `a <= b` and can both end at
`c <= d`

    price(a, c) + price(b, d)  <=  price(a, d) + price(b, c)

So the later a stage starts the later it best ends, and few ends need be tried: in all
O(K · L · log L). Where not all stages are allowed, see `allowed_stages`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence

from lingvo_pipe.pipeline.splitting.allowed_stages import (
    Farthest,
    cheapest_ends,
    least_largest_ends,
)
from lingvo_pipe.pipeline.splitting.exact_amounts import (
    amount_faults,
    as_integers,
)

# Of the stage from a start to an end.
Price = Callable[[int, int], int]


def balanced_ends(
    costs: Sequence[float],
    num_stages: int,
    traffic: Sequence[float] | None = None,
    farthest: Farthest | None = None,
) -> list[int]:
    """Cuts layers into stages that are as even as can be.

    Args:
        costs: of each layer.
        num_stages: at least 1, at most the number of layers.
        traffic: what each layer hands on, such as bytes; None: counts for nothing. The
            last layer's crosses no boundary.
        farthest: for each stage, for each start, the last end that it may have, and the
            start itself if it may have none; None: each may have any.

    Returns:
        The ends of the stages: the number of layers up to and including each.

    Raises:
        ValueError: if there are more stages than layers, or fewer than one; if a number
            is missing, infinite or negative; if `farthest` allows no cut.
    """
    _check_arguments(costs, num_stages, traffic)
    num_layers = len(costs)
    sums = _running_sums(as_integers(costs)[0])
    handed_on = [0] * num_layers if traffic is None else as_integers(traffic)[0]
    more_than_squares = sums[-1] ** 2 + 1

    def price(start: int, end: int) -> int:
        square = (sums[end] - sums[start]) ** 2
        return handed_on[end - 1] * more_than_squares + square

    if farthest is None:
        reach = _farthest_ends(sums, _least_limit(sums, num_stages))
        return _cheapest_ends(num_stages, reach, price)
    ends = _allowed_ends(sums, farthest, price)
    if ends is None:
        raise ValueError(f"No cut into {num_stages} stages is allowed.")
    return ends


def _allowed_ends(
    sums: Sequence[int], farthest: Farthest, price: Price
) -> list[int] | None:
    """The best ends of those that are allowed, if any; `sums` are those of costs."""
    even = least_largest_ends(lambda _, start, end: sums[end] - sums[start], farthest)
    if even is None:
        return None
    limit = max(sums[b] - sums[a] for a, b in itertools.pairwise([0, *even]))
    reach = _farthest_ends(sums, limit)
    return cheapest_ends(
        lambda _, start, end: price(start, end),
        [list(map(min, of_stage, reach)) for of_stage in farthest],
    )


def _running_sums(values: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(values, initial=0))


def _farthest_ends(sums: Sequence[int], limit: int) -> list[int]:
    """For each start the last end of a stage whose sum is within the limit."""
    return [bisect.bisect_right(sums, start + limit) - 1 for start in sums[:-1]]


def _least_limit(sums: Sequence[int], num_stages: int) -> int:
    """The least limit that the sums of the stages can all keep within."""
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


def _cheapest_ends(num_stages: int, farthest: Sequence[int], price: Price) -> list[int]:
    """The ends whose stages' prices have the least sum, the earlier stages larger.

    Args:
        num_stages: K.
        farthest: for each start the last end that is allowed.
        price: see the top of the file.
    """
    rest = {len(farthest): 0}
    choices = []
    for _ in range(num_stages):
        best = _best_ends(rest, farthest, price)
        rest = {start: price(start, end) + rest[end] for start, end in best.items()}
        choices.append(best)
    ends = [0]
    for best in reversed(choices):
        ends.append(best[ends[-1]])
    return ends[1:]


def _best_ends(
    rest: Mapping[int, int], farthest: Sequence[int], price: Price
) -> dict[int, int]:
    """For each start of a stage the best end; of equals the last.

    Args:
        rest: what the stages behind cost together, by each start they can have; these
            are consecutive.
        farthest: for each start the last end that is allowed.
        price: see the top of the file.
    """
    best: dict[int, int] = {}

    def settle(starts: range, low: int, high: int) -> None:
        """Finds best ends between `low` and `high`."""
        if not starts:
            return
        half = len(starts) // 2
        start = starts[half]
        ends = range(max(low, start + 1), min(high, farthest[start]) + 1)
        best[start] = min(reversed(ends), key=lambda end: price(start, end) + rest[end])
        settle(starts[:half], low, best[start])
        settle(starts[half + 1 :], best[start], high)

    low, high = min(rest), max(rest)
    settle(range(bisect.bisect_left(farthest, low), high), low, high)
    return best


def _check_arguments(
    costs: Sequence[float], num_stages: int, traffic: Sequence[float] | None
) -> None:
    """Raises ValueError as `balanced_ends`, but for what is not allowed."""
    num_layers = len(costs)
    faults = []
    if num_stages not in range(1, num_layers + 1):
        faults.append(
            "The number of stages must lie between 1 and the number of layers, "
            f"{num_layers}; got {num_stages!r}. A stage can't be empty: use fewer "
            "stages or devices."
        )
    for name, values in (("costs", costs), ("traffic", traffic)):
        if values is not None:
            faults += amount_faults(name, values, num_layers)
    if faults:
        raise ValueError(" ".join(faults))
