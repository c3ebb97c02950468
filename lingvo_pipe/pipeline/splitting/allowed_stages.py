r"""The best cuts of L layers into K stages of which not all are allowed. Pure.

Where memory is limited, what a stage needs depends on more than its length. One of the
first may keep more micro-batches than one of the last; and one that starts a layer
later may need more, if what comes in there is larger. This alone is certain: of two
stages with the same number and start, the longer needs no less. So what is allowed is
said by how far each stage may reach from each start.

    stage 1   start   0  1  2  3  4
              end     2  2  5  5  5       layers 0 and 1 at most, layer 1, layers 2 to 4

Cuts are found from the last stage to the first, by looking at all ends that a stage can
have: K · L · (L + 1) / 2 at most, and far fewer where stages are short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

# For each stage, for each start, the last end that is allowed; the start if none is.
Farthest = Sequence[Sequence[int]]
# Of a stage, by its number, start and end.
Size = Callable[[int, int, int], int]


def farthest_ends(
    size: Size, limit: float, num_layers: int, alike: Sequence[Hashable]
) -> list[list[int]]:
    """How far stages reach that are no larger than the limit.

    Args:
        size: of a stage; does not fall where the end grows.
        limit: of each stage's size.
        num_layers: L.
        alike: for each stage something that is the same for those of the same size.
    """

    def fits(stage: int, start: int, end: int) -> bool:
        return size(stage, start, end) <= limit

    def reached(stage: int) -> list[int]:
        """Looks first as far as from the start before: mostly not far from the end."""
        found, end = [], 0
        for start in range(num_layers):
            end = max(start, end)
            while end > start and not fits(stage, start, end):
                end -= 1
            while end < num_layers and fits(stage, start, end + 1):
                end += 1
            found.append(end)
        return found

    known: dict[Hashable, list[int]] = {}
    for stage, key in enumerate(alike):
        if key not in known:
            known[key] = reached(stage)
    return [known[key] for key in alike]


def any_stages(num_layers: int, num_stages: int) -> Farthest:
    """What is allowed where everything is.

    Args:
        num_layers: L.
        num_stages: K.
    """
    return [[num_layers] * num_layers] * num_stages


def allows_a_cut(farthest: Farthest) -> bool:
    """Whether there is one."""
    return least_largest_ends(lambda *_: 0, farthest) is not None


def least_largest_ends(size: Size, farthest: Farthest) -> list[int] | None:
    """Ends of which the largest stage is as small as can be; None if no cut is allowed.

    Args:
        size: of a stage; does not fall where the end grows.
        farthest: what is allowed.
    """

    def best_end(
        stage: int, start: int, rest: Mapping[int, int]
    ) -> tuple[int, int] | None:
        best = None
        for end in range(start + 1, farthest[stage][start] + 1):
            own = size(stage, start, end)
            if best is not None and own >= best[0]:
                break  # Longer stages are no smaller.
            if end in rest and (best is None or max(own, rest[end]) < best[0]):
                best = max(own, rest[end]), end
        return best

    return _ends(farthest, best_end)


def cheapest_ends(price: Size, farthest: Farthest) -> list[int] | None:
    """Ends whose stages' prices have the least sum; None if no cut is allowed.

    Of equals, those with the most layers in the first stage, then in the second, and
    so on.

    Args:
        price: of a stage.
        farthest: what is allowed.
    """

    def best_end(
        stage: int, start: int, rest: Mapping[int, int]
    ) -> tuple[int, int] | None:
        ends = range(farthest[stage][start], start, -1)
        totals = [(price(stage, start, e) + rest[e], e) for e in ends if e in rest]
        return min(totals, key=lambda total: total[0], default=None)

    return _ends(farthest, best_end)


def _ends(
    farthest: Farthest,
    best_end: Callable[[int, int, Mapping[int, int]], tuple[int, int] | None],
) -> list[int] | None:
    """Puts together what is best for each stage.

    Args:
        farthest: what is allowed.
        best_end: of a stage's number and start, and of how good the stages behind are
            by each start that they can have: how good it is with the best end, and
            that end; None if it has none.
    """
    num_stages, latest = len(farthest), _latest_starts(farthest)
    rest = {len(farthest[0]): 0}
    choices: list[dict[int, int]] = []
    for stage in reversed(range(num_stages)):
        best, earliest_end = {}, min(rest, default=0)
        for start in range(stage, latest[stage] + 1):
            if farthest[stage][start] < earliest_end:
                continue  # The stages behind can't reach so far to the front.
            found = best_end(stage, start, rest)
            if found is not None:
                best[start] = found
        rest = {start: value for start, (value, _) in best.items()}
        choices.append({start: end for start, (_, end) in best.items()})
    if 0 not in rest:
        return None
    ends = [0]
    for ends_of_stage in reversed(choices):
        ends.append(ends_of_stage[ends[-1]])
    return ends[1:]


def _latest_starts(farthest: Farthest) -> list[int]:
    """For each stage the last start that stages before it can leave to it."""
    found = [0]
    for of_stage in farthest[:-1]:
        reach = max(of_stage[: found[-1] + 1])
        found.append(min(reach, len(of_stage) - 1))
    return found
