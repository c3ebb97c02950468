"""A search for the fewest slices of layers with which a model fits into memory.

Cells are cut until no slice needs more than a target number of bytes. The target starts
at the bytes of a device, and shrinks until the model fits:

    needs      4 | 25         | 12       on devices of 10
    target 10  4 | 9 9 9      | 6 6      does not fit
    target 8   4 | 7 7 7 7    | 6 6      fits

Parts whose weights are tied are cut into the same number of slices.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import parameter_counts, trained_paths
from lingvo_pipe.layers.core.slicing import num_units, sliceable_parts, slices_of
from lingvo_pipe.pipeline.slices import parts_below, slices_by_cell

# The target shrinks by this factor; then it is refined this many times.
_SHRINK, _REFINEMENTS = 1.25, 3
Result = TypeVar("Result")


def fewest_slices(
    p: InstantiableParams,
    cell_bytes: Sequence[int],
    limit: float,
    max_slices: int,
    attempt: Callable[[dict[str, int]], tuple[Result | None, float]],
) -> tuple[dict[str, int], Result] | None:
    """Returns (number of slices by path, result of `attempt`), or None if none fit.

    A device needs `cell_bytes` for each cell by itself, and has `limit` bytes. All
    layers together have at most `max_slices` slices. `attempt` maps the numbers of
    slices to (result, bytes). If the model does not fit, the result is None, and the
    bytes are what a device needs, or 0 if that is unknown. `p.slices` is ignored.
    """
    parts = list(_find_parts(p, cell_bytes))
    can_be_cut = {part.cell for part in parts}
    if any(n > limit and i not in can_be_cut for i, n in enumerate(cell_bytes)):
        return None
    search = _Search(_tied_groups(p, parts), cell_bytes, limit, attempt)
    above = below = limit
    while search.num_slices(below) <= max_slices:
        if (best := search.find(below)) is not None:
            break
        if search.is_hopeless(below):
            return None
        above, below = below, below / _SHRINK
    else:
        return None
    for _ in range(_REFINEMENTS):
        middle = (above + below) / 2
        if better := search.find(middle):
            best, below = better, middle
        else:
            above = middle
    return best


class _Search(Generic[Result]):
    """A search that keeps its attempts. See `fewest_slices` for the arguments."""

    def __init__(
        self,
        groups: Sequence[Sequence[_Part]],
        cell_bytes: Sequence[int],
        limit: float,
        attempt: Callable[[dict[str, int]], tuple[Result | None, float]],
    ):
        self._groups, self._cell_bytes = groups, cell_bytes
        self._limit, self._attempt = limit, attempt
        self._known: dict[str, tuple[Result | None, float]] = {}

    def find(self, target: float) -> tuple[dict[str, int], Result] | None:
        slices = _slices_below(self._groups, target)
        if (key := repr(slices)) not in self._known:
            self._known[key] = self._attempt(slices)
        result, _ = self._known[key]
        return None if result is None else (slices, result)

    def num_slices(self, target: float) -> int:
        return sum(_slices_below(self._groups, target).values())

    def is_hopeless(self, target: float) -> bool:
        """Returns whether no slices below `target` bytes can fit.

        An attempt with `target` has failed, with the best boundaries between its
        slices. Smaller slices only add boundaries within these slices. That saves a
        device at most one slice and some workspace, estimated here as two slices.
        """
        slices = _slices_below(self._groups, target)
        if slices == _slices_below(self._groups, 1.0):
            return True  # Each unit is a slice.
        _, needed = self._known[repr(slices)]
        return needed - 2 * self._largest(slices) > self._limit

    def _largest(self, slices: Mapping[str, int]) -> float:
        parts = list(itertools.chain(*self._groups))
        cut = {part.cell for part in parts if part.name in slices}
        uncut_cells = (n for i, n in enumerate(self._cell_bytes) if i not in cut)
        pieces = (x.num_bytes / slices.get(x.name, 1) for x in parts if x.cell in cut)
        return max(itertools.chain(uncut_cells, pieces))


@dataclasses.dataclass
class _Part:
    """A cell, or a part of a cell, that can be cut between its units, such as heads.

    `num_bytes` counts the part. `cell_bytes` counts the whole cell of the part.
    """

    name: str
    cell: int
    num_units: int
    num_bytes: float
    cell_bytes: int

    def num_slices(self, target: float) -> int:
        if self.cell_bytes <= target:
            return 1
        return max(int(-(-self.num_bytes // target)), 1)


def _find_parts(p: InstantiableParams, cell_bytes: Sequence[int]) -> Iterator[_Part]:
    """Yields the parts that can be cut, and estimates the bytes of each.

    A part has the share of its cell's bytes that it has of the cell's parameters.
    """
    sliceable = [
        (i, name, part)
        for i, cell in enumerate(p.cell_tpl)
        for name, part in parts_below(f"cells[{i}]", cell)
        if not sliceable_parts(part) and num_units(part) > 1
    ]
    counts = parameter_counts([*p.cell_tpl, *(part for _, _, part in sliceable)])
    own_counts = counts[len(p.cell_tpl) :]
    for (i, name, part), count in zip(sliceable, own_counts, strict=True):
        num_bytes = cell_bytes[i] * count / max(counts[i], 1)
        yield _Part(name, i, num_units(part), num_bytes, cell_bytes[i])


def _slices_below(groups: Sequence[Sequence[_Part]], target: float) -> dict[str, int]:
    slices: dict[str, int] = {}
    for group in groups:
        number = max(part.num_slices(target) for part in group)
        number = min(number, *(part.num_units for part in group))
        slices |= {part.name: number for part in group if number > 1}
    return slices


def _tied_groups(p: InstantiableParams, parts: Sequence[_Part]) -> list[list[_Part]]:
    """Groups the parts that tied weights force into equal numbers of slices.

    A part stays whole if one of its weights is tied to a weight that cannot be cut.
    """
    owners = dict(_cut_weights(p, parts))
    groups = {part.name: [part] for part in parts}
    for tied in p.tied.items():
        cut = [owners[path] for path in tied if path in owners]
        if len(cut) == 1:
            cut[0].num_units = 1
        joined = {id(groups[part.name]): groups[part.name] for part in cut}.values()
        group = list(itertools.chain(*joined))
        groups |= {part.name: group for part in group}
    return list({id(group): group for group in groups.values()}.values())


def _cut_weights(
    p: InstantiableParams, parts: Sequence[_Part]
) -> Iterator[tuple[str, _Part]]:
    """Yields (path of a weight, part) for each weight that cutting the part divides."""
    tied = {*p.tied, *p.tied.values()}
    for part in parts:
        name = p.cell_tpl[part.cell].name or f"cells_{part.cell}"
        if any(path.startswith(f"{name}/") for path in tied):
            (cell_slices,) = slices_by_cell({part.name: 2}).values()
            slices = slices_of(p.cell_tpl[part.cell], cell_slices)
            counts = Counter(
                path for slice_params in slices for path in trained_paths(slice_params)
            )
            yield from ((f"{name}/{x}", part) for x, n in counts.items() if n > 1)
