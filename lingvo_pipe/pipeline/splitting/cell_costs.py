"""What cells cost and hand on, from shapes alone: nothing is built or run."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.forward_cost import num_elements
from lingvo_pipe.nested_map import NestedMap

# What an FPropMeta raises that was given what it can't take.
_FAULTS = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class CellCosts(NamedTuple):
    """For each cell, in order.

    Attributes:
        flops: of a forward pass.
        handed_on: the number of elements of all its outputs.
    """

    flops: list[int]
    handed_on: list[int]


class PipelineCosts(NamedTuple):
    """Of a pipeline.

    Attributes:
        before: flops of a forward pass of all layers before the cells.
        cells: of the cells.
    """

    before: int
    cells: CellCosts


def cell_costs(cell_tpl: Sequence[InstantiableParams], *shapes: Any) -> CellCosts:
    """What cells that each take what the one before hands on cost.

    Args:
        cell_tpl: params of the cells.
        *shapes: of the first cell's inputs: tuples of integers, None for an input that
            is None, NestedMaps of shapes for NestedMaps.

    Raises:
        ValueError: if a cell has no FPropMeta, or can't take what it is given; or a
            shape is none.
    """
    return pipeline_costs([], cell_tpl, *shapes).cells


def pipeline_costs(
    before_tpl: Sequence[InstantiableParams],
    cell_tpl: Sequence[InstantiableParams],
    *shapes: Any,
) -> PipelineCosts:
    """As `cell_costs`, of cells with layers before them.

    Args:
        before_tpl: params of the layers before.
        cell_tpl: params of the cells.
        *shapes: of the first layer's inputs; see `cell_costs`.

    Raises:
        ValueError: as `cell_costs`.
    """
    shapes = tuple(map(as_shape, shapes))
    before, shapes = _costs_in_turn(before_tpl, "before_tpl's layer", shapes)
    cells, _ = _costs_in_turn(cell_tpl, "cell", shapes)
    return PipelineCosts(sum(before.flops), cells)


def _costs_in_turn(
    layers: Sequence[InstantiableParams], what: str, shapes: tuple
) -> tuple[CellCosts, tuple]:
    """The costs of layers, and the shapes that the last hands on."""
    costs = CellCosts([], [])
    known: dict[tuple[int, str], NestedMap] = {}  # Params that stand there twice.
    for i, p in enumerate(layers):
        key = id(p), repr(shapes)
        if key not in known:
            where = f"{what} {i}, {p.cls.__name__} {p.name!r}"
            known[key] = _forward_meta(p, shapes, where)
        meta = known[key]
        shapes = tuple(meta.out_shapes)
        costs.flops.append(meta.flops)
        costs.handed_on.append(num_elements(shapes))
    return costs, shapes


def _forward_meta(p: InstantiableParams, shapes: tuple, where: str) -> NestedMap:
    try:
        meta = p.cls.FPropMeta(p, *shapes)
    except NotImplementedError as error:
        raise ValueError(
            f"The costs of cells come from their layers' FPropMeta; in {where} there "
            f"is no {error}. Write it: a classmethod (cls, p, *shapes) that returns "
            "NestedMap(flops=..., out_shapes=(...)), multiply-adds counted as two, and "
            "a shape for each output. For splits='auto', cell_costs may be numbers "
            "instead."
        ) from error
    except _FAULTS as error:
        raise ValueError(
            f"FPropMeta of {where}, given {', '.join(map(str, shapes)) or 'nothing'}: "
            f"{error}. Change the shapes, or the layer."
        ) from error
    if not _is_meta(meta):
        raise ValueError(
            "FPropMeta must return NestedMap(flops=..., out_shapes=(...)), a number "
            "and a tuple with the shape of each output; that of "
            f"{where} returned {meta!r}."
        )
    return meta


def _is_meta(meta: Any) -> bool:
    if not isinstance(meta, NestedMap) or not {"flops", "out_shapes"} <= set(meta):
        return False
    shapes = meta.out_shapes
    is_one_shape = bool(shapes) and all(isinstance(dim, int) for dim in shapes)
    return isinstance(meta.flops, numbers.Real) and not is_one_shape


def as_shape(shape: Any) -> Any:
    """A shape, a NestedMap of shapes or None, dimensions being Python's integers."""
    if shape is None:
        return None
    if isinstance(shape, Mapping):
        return NestedMap({key: as_shape(value) for key, value in shape.items()})
    try:
        sizes = list(shape)
    except (TypeError, ValueError):
        sizes = [None]
    if not all(isinstance(size, numbers.Integral) and int(size) > 0 for size in sizes):
        raise ValueError(
            "A shape must be a tuple of positive integers, of micro-batches as they "
            f"come into the first layer; got {shape!r}. Write (8, 32), for instance."
        )
    return tuple(map(int, sizes))
