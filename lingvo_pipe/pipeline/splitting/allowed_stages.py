r"""The best partition of L layers into K stages where not all stages are allowed.

Where memory is limited, the bytes of a stage depend on more than its length. An early
stage may stash more micro-batches than a late one. A stage that starts one layer later
may need more, if its input is larger. But for the same stage and start, a longer
stage never needs less. So the feasible ends, the last allowed end of each stage for
each start, describe all allowed stages.

    stage 1   start   0  1  2  3  4
              end     2  2  5  5  5       from layer 2 on, at most layers 2 to 4

Partitions are found from the last stage to the first by trying all ends of each stage.
There are at most K · L · (L + 1) / 2 ends, and far fewer where stages are short.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

# The last allowed end by stage and start, or the start itself if no end is allowed.
FeasibleEnd = Sequence[Sequence[int]]
# `(stage, start, end) -> size` of a stage.
Size = Callable[[int, int, int], int]
_BestEnd = tuple[int, int] | None  # (value of this and later stages, this stage's end).


def feasible_ends(
    size: Size, limit: float, num_layers: int, stage_keys: Sequence[Hashable]
) -> list[list[int]]:
    """Returns, for each stage and start, the last end with a size of at most `limit`.

    The size must not decrease as the end grows. Stages with equal keys have equal
    sizes.
    """

    def reached(stage: int) -> list[int]:
        """Returns a stage's last end for each start. Searches from the previous end."""
        ends, end = [], 0
        for start in range(num_layers):
            end = max(start, end)
            while end > start and size(stage, start, end) > limit:
                end -= 1
            while end < num_layers and size(stage, start, end + 1) <= limit:
                end += 1
            ends.append(end)
        return ends

    stage_of_key = {key: stage for stage, key in enumerate(stage_keys)}
    ends_of_key = {key: reached(stage) for key, stage in stage_of_key.items()}
    return [ends_of_key[key] for key in stage_keys]


def smallest_stages(size: Size, num_layers: int, num_stages: int) -> list[int]:
    """Returns the boundaries that minimize the largest size. All stages are allowed."""
    boundaries = minimax_boundaries(size, [[num_layers] * num_layers] * num_stages)
    assert boundaries is not None  # There is a layer for each stage.
    return boundaries


def is_feasible(feasible_end: FeasibleEnd) -> bool:
    """Returns whether any partition is allowed."""
    return minimax_boundaries(lambda *_: 0, feasible_end) is not None


def minimax_boundaries(size: Size, feasible_end: FeasibleEnd) -> list[int] | None:
    """Returns the allowed boundaries that minimize the largest size of a stage.

    Returns None if no partition is allowed. The size must not decrease as the end
    grows.
    """

    def best_end(stage: int, start: int, later_sizes: Mapping[int, int]) -> _BestEnd:
        best = None
        for end in range(start + 1, feasible_end[stage][start] + 1):
            stage_size = size(stage, start, end)
            if best is not None and stage_size >= best[0]:
                break  # Longer stages are no smaller.
            if end in later_sizes:
                largest = max(stage_size, later_sizes[end])
                if best is None or largest < best[0]:
                    best = largest, end
        return best

    return _boundaries(feasible_end, best_end)


def cheapest_boundaries(price: Size, feasible_end: FeasibleEnd) -> list[int] | None:
    """Returns the allowed boundaries with the smallest sum of prices.

    Returns None if no partition is allowed. Among equal sums, prefers more layers in
    the first stage, then in the second, and so on.
    """

    def best_end(stage: int, start: int, later_sums: Mapping[int, int]) -> _BestEnd:
        ends = range(feasible_end[stage][start], start, -1)
        sums = [
            (price(stage, start, end) + later_sums[end], end)
            for end in ends
            if end in later_sums
        ]
        return min(sums, key=lambda pair: pair[0], default=None)

    return _boundaries(feasible_end, best_end)


def best_boundaries(
    num_layers: int,
    num_stages: int,
    best_ends: Callable[[int, Mapping[int, int]], Mapping[int, tuple[int, int]]],
) -> list[int] | None:
    """Returns the best boundaries. Chooses ends from the last stage to the first.

    `best_ends(stage, later_values)` returns {start: (value of this stage and all later
    stages, end of this stage)}. `later_values` is {start of the next stage: value of
    that stage and all later stages}. Returns None if the stages cannot start at 0.
    """
    later_values: Mapping[int, int] = {num_layers: 0}
    choices: list[dict[int, int]] = []
    for stage in reversed(range(num_stages)):
        best = best_ends(stage, later_values)
        later_values = {start: value for start, (value, _) in best.items()}
        choices.append({start: end for start, (_, end) in best.items()})
    if 0 not in later_values:
        return None
    boundaries = [0]
    for end_by_start in reversed(choices):
        boundaries.append(end_by_start[boundaries[-1]])
    return boundaries[1:]


def _boundaries(
    feasible_end: FeasibleEnd,
    best_end: Callable[[int, int, Mapping[int, int]], _BestEnd],
) -> list[int] | None:
    """Returns the boundaries that `best_end(stage, start, later_values)` chooses."""
    latest = [0]  # For each stage the last start that the earlier stages can reach.
    for end_by_start in feasible_end[:-1]:
        reach = max(end_by_start[: latest[-1] + 1])
        latest.append(min(reach, len(end_by_start) - 1))

    def best_ends(
        stage: int, later_values: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        best, earliest_end = {}, min(later_values, default=0)
        for start in range(stage, latest[stage] + 1):
            if feasible_end[stage][start] < earliest_end:
                continue  # No later stage can start so early.
            value_and_end = best_end(stage, start, later_values)
            if value_and_end is not None:
                best[start] = value_and_end
        return best

    return best_boundaries(len(feasible_end[0]), len(feasible_end), best_ends)
