r"""Which layers make up which stage. Pure.

    layers   0  1  2 | 3  4 | 5  6        ends = [3, 5, 7]
             stage 0   st. 1  stage 2

A split is written as the ends of its stages: the number of layers up to and including
each. Stages are contiguous and never empty, and every layer belongs to one.
"""

from __future__ import annotations

from collections.abc import Sequence


def balanced_ends(costs: Sequence[float], num_stages: int) -> list[int]:
    """Splits layers so that the most expensive stage is as cheap as possible.

    Exact, by dynamic programming over (stages, layers): O(num_stages · layers²). Among
    equal optima the earlier stages are the larger ones.

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
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    # worst[n]: the smallest largest cost of layers n.. in the stages that remain.
    worst = [total[-1] - total[start] for start in range(num_layers)]
    choices: list[list[int]] = []
    for remaining in range(2, num_stages + 1):
        best, choice = [], []
        for start in range(num_layers - remaining + 1):
            ends = range(num_layers - remaining + 1, start, -1)
            costs_by_end = [max(total[e] - total[start], worst[e]) for e in ends]
            best.append(min(costs_by_end))
            choice.append(ends[costs_by_end.index(best[-1])])
        worst = best
        choices.append(choice)
    ends_found = [0]
    for choice in reversed(choices):
        ends_found.append(choice[ends_found[-1]])
    return [*ends_found[1:], num_layers]


def check_ends(ends: Sequence[int], num_layers: int) -> None:
    """Raises ValueError unless `ends` ascends strictly from 1 or more to `num_layers`."""
    ascending = all(a < b for a, b in zip([0, *ends], ends))
    if not ends or not ascending or ends[-1] != num_layers:
        raise ValueError(
            "splits must list the ends of the stages, ascending, none empty, the last "
            f"equal to the number of layers, {num_layers}; got {list(ends)}."
        )


def resolve_ends(splits: int | Sequence[int], num_layers: int) -> list[int]:
    """The ends meant by `splits`: a number of even stages, or the ends themselves."""
    if isinstance(splits, int):
        return balanced_ends([1.0] * num_layers, splits)
    check_ends(splits, num_layers)
    return list(splits)
