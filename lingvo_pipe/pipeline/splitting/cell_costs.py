"""Costs of cells: seconds, and bytes that cross the boundaries between cells."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

# A backward pass has two matrix products for each one of its forward pass.
BACKWARD_PER_FORWARD = 2


class CellSeconds(NamedTuple):
    """Seconds that one cell takes for one micro-batch. `forward` includes stashing."""

    forward: float
    backward: float


def boundary_bytes(
    cells: Iterable[tuple[Iterable[int], Iterable[int]]],
    outputs: Iterable[int],
    value_bytes: Mapping[int, int],
) -> list[int]:
    """Returns the bytes that would cross a boundary after each cell.

    Values are identified by integers. A cell is (the values that it takes, the values
    that it returns). Values without bytes, such as the mini-batch's inputs, do not
    cross.
    """
    byte_counts, crossing = [], set(outputs)
    for taken, returned in reversed([*cells]):
        byte_counts.append(sum(value_bytes.get(value, 0) for value in crossing))
        crossing.difference_update(returned)
        crossing.update(taken)
    return byte_counts[::-1]
