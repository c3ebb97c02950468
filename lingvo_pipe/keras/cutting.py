"""Cells of a graph of calls: where it may be cut, whatever the number of stages.

    calls        a   b   c   d   e          a call with a kernel starts a cell;
    kernels      *   .   *   .   .          the others join the cell before them
                '--.--' '----.----'
    cells          0         1
    passed on     b,a        e              what later cells, or the model, still need

Pure algorithm: a call is what it takes and makes, by numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One call, as far as cutting depends on it.

    Attributes:
        takes: numbers of the values that it takes.
        makes: numbers of the values that it makes.
        starts_cell: True if it is costly enough to start a cell.
    """

    takes: Sequence[int]
    makes: Sequence[int]
    starts_cell: bool


@dataclass(frozen=True)
class Cell:
    """Consecutive calls, with the values that enter and leave by position.

    Attributes:
        start, stop: the calls, as a range of indices.
        given: numbers of the values that the cell is given.
        kept: numbers of the values that it passes on.
    """

    start: int
    stop: int
    given: tuple[int, ...]
    kept: tuple[int, ...]


def cut(
    inputs: Sequence[int], steps: Sequence[Step], outputs: Sequence[int]
) -> list[Cell]:
    """Returns the cells of a graph.

    A value is passed on as long as a later cell takes it. The last cell returns the
    outputs, in their order.
    """
    starts = [i for i, step in enumerate(steps) if step.starts_cell or i == 0]
    # Cheap calls before the first kernel belong to its cell.
    if len(starts) > 1 and not steps[0].starts_cell:
        del starts[1]
    stops = [*starts[1:], len(steps)]
    last_use = {number: i for i, step in enumerate(steps) for number in step.takes}
    last_use.update(dict.fromkeys(outputs, len(steps)))
    cells, live = [], tuple(inputs)
    for start, stop in zip(starts, stops, strict=True):
        made = [number for step in steps[start:stop] for number in step.makes]
        kept = tuple(x for x in (*live, *made) if last_use.get(x, -1) >= stop)
        if stop == len(steps):
            kept = tuple(outputs)
        cells.append(Cell(start, stop, live, kept))
        live = kept
    return cells
