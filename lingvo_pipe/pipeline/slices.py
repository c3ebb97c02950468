"""Replaces cells of a pipeline by their slices. See `layers.core.slicing`.

cell_tpl  [ embedding  encoder  logits ]     slices = {'cells[2]': 3}
becomes   [ embedding  encoder  logits>0  logits>1  logits>2 ]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError, Words, raise_problems
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import trained_paths
from lingvo_pipe.layers.core.slicing import (
    lost_text,
    num_units,
    slice_name,
    sliceable_parts,
    slices_of,
)


def with_slices(p: InstantiableParams, path: str) -> InstantiableParams:
    """Returns a copy of a pipeline's params, in which slices replace cells.

    Raises:
        ValueError: if `slices` are wrong. The error names all problems.
    """
    p = p.Copy()
    if not isinstance(p.slices, Mapping):
        return p
    _check(p, path)
    cells, ties = [], _Ties(p.tied)
    for i, cell in enumerate(p.cell_tpl):
        cell = cell.Copy().Set(name=cell.name or f"cells_{i}")  # Cells may be shared.
        cell_slices = slices_by_cell(p.slices).get(f"cells[{i}]", 1)
        slices = slices_of(cell, cell_slices)
        if cell_slices != 1:
            for j, slice_params in enumerate(slices):
                slice_params.name = slice_name(cell.name, j)
            ties.add(cell.name, slices)
        cells += slices
    tied = ties.resolved(f"{path}.slices")
    return p.Set(cell_tpl=cells, tied=tied, slices=None)


def sliceable_paths(cells: Sequence[InstantiableParams]) -> dict[str, int]:
    """Returns the largest possible number of slices, by path of a cell or part."""
    return {path: num_units(p) for path, p in _parts_by_path(cells).items()}


def _parts_by_path(
    cells: Sequence[InstantiableParams],
) -> dict[str, InstantiableParams]:
    return dict(
        pair
        for i, cell in enumerate(cells)
        for pair in parts_below(f"cells[{i}]", cell)
    )


def parts_below(
    path: str, p: InstantiableParams
) -> Iterator[tuple[str, InstantiableParams]]:
    """Yields (path, params) of the layer `p` and of all its parts that can be cut."""
    yield path, p
    for name, part in sliceable_parts(p).items():
        yield from parts_below(f"{path}.{name}", part)


def _check(p: InstantiableParams, path: str) -> None:
    parts, problems = _parts_by_path(p.cell_tpl), []
    max_slices = {name: num_units(part) for name, part in parts.items()}
    can_be_cut = [k for k, number in max_slices.items() if number > 1]

    def add(expected: str, got: Any, **hints: Any) -> None:
        problem = {"path": f"{path}.slices", "expected": expected, "got": got}
        problems.append(UserValueError(**problem, **hints))

    for name, number in p.slices.items():
        if name not in max_slices:
            cell_path = _by_cell_name(name, p.cell_tpl)
            is_known = cell_path in max_slices
            names = [] if is_known else can_be_cut
            hint = f"Did you mean {cell_path!r}?" if is_known else ""
            add(
                "a cell, or a part of one, that can be cut",
                name,
                names=names,
                hint=hint,
            )
        elif number > max_slices[name]:
            # One for each head, channel or token.
            add(f"at most {max_slices[name]} of {name!r}", number)
        if inner := [k for k in p.slices if k.startswith(f"{name}.")]:
            add(f"either {name!r} or its parts", [name, *inner])
    shown = ", ".join(can_be_cut[:8]) + (", ..." if len(can_be_cut) > 8 else "")
    lost = {
        lost_text(part): None
        for part_path, part in parts.items()
        for name in p.slices
        if f"{name}.".startswith(f"{part_path}.") or part_path.startswith(f"{name}.")
    }
    sentences = [f"These can be cut: {shown or 'none'}.", *lost]
    raise_problems(problems, " ".join(filter(None, sentences)))


def _by_cell_name(name: str, cells: Sequence[InstantiableParams]) -> str:
    """Returns "cells[2].ffn" for "x.ffn" if cell 2 has the name "x", otherwise ""."""
    first, dot, part_path = name.partition(".")
    indices = [i for i, cell in enumerate(cells) if cell.name == first]
    return f"cells[{indices[0]}]{dot}{part_path}" if indices else ""


def slices_by_cell(slices: Mapping[str, int]) -> dict[str, Any]:
    """Nests the map by path: {'cells[3].ffn': 4} -> {'cells[3]': {'ffn': 4}}."""
    tree: dict[str, Any] = {}
    for path, number in slices.items():
        *above, last = path.split(".")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = number
    return tree


class _Ties:
    """The tied weights of a pipeline, some of which are divided among slices."""

    def __init__(self, tied: Mapping[str, str]):
        self._tied = dict(tied)
        self._slices: dict[str, list[str]] = {}

    def add(self, name: str, slices: Sequence[InstantiableParams]) -> None:
        used = {*self._tied, *self._tied.values()}
        for path in used:
            cell, _, weight = path.partition("/")
            if cell == name:
                has = [s for s in slices if weight in trained_paths(s)]
                self._slices[path] = [f"{s.name}/{weight}" for s in has]

    def resolved(self, param: str) -> dict[str, str]:
        """Returns `tied` for the slices. Divided weights are tied slice by slice."""
        ties: dict[str, str] = {}
        for tied, owner in self._tied.items():
            ends = [self._slices.get(x, [x]) for x in (tied, owner)]
            if len(ends[0]) != len(ends[1]):
                raise UserValueError(
                    path=param,
                    expected=f"equal numbers of slices of the tied {tied} and {owner}",
                    got=Words(f"{len(ends[0])} and {len(ends[1])}"),
                )
            ties.update(zip(*ends, strict=True))
        return ties
