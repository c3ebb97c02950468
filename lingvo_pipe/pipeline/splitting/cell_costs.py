"""Costs of cells from only their shapes: flops, and sizes of outputs. Pure.

Nothing is built or run: `FPropMeta` of each layer returns its flops and output shapes.
"""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_cost import num_elements
from lingvo_pipe.nested_map import NestedMap

# A backward pass has two products of matrices for each product of its forward pass.
BACKWARD_PER_FORWARD = 2

# Errors of an FPropMeta whose layer does not take these shapes.
_SHAPE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class CellSeconds(NamedTuple):
    """Seconds of one cell for one micro-batch.

    Its forward pass stashes residuals.
    """

    forward: float
    backward: float


class CellCosts(NamedTuple):
    """Flops of each cell's forward pass, and number of elements of its outputs."""

    flops: list[int]
    passed_on: list[int]


class PipelineCosts(NamedTuple):
    """Costs of a pipeline: flops of a prologue's forward pass, and costs of cells."""

    prologue: int
    cells: CellCosts


def cell_costs(cell_tpl: Sequence[InstantiableParams], *shapes: Any) -> CellCosts:
    """Returns the costs of cells, each of which takes the outputs of the previous one.

    The first cell's inputs have these shapes: tuples of integers, None for an input
    that is None, NestedMaps of shapes for NestedMaps.

    Raises:
        ValueError: if a cell has no FPropMeta or does not take its inputs, or if a
            shape is invalid.
    """
    return pipeline_costs([], cell_tpl, *shapes).cells


def pipeline_costs(
    before_tpl: Sequence[InstantiableParams],
    cell_tpl: Sequence[InstantiableParams],
    *shapes: Any,
) -> PipelineCosts:
    """Returns the costs of a prologue and of the cells after it (see `cell_costs`)."""
    shapes = tuple(map(as_shape, shapes))
    prologue, shapes = _sequence_costs(before_tpl, "before_tpl", shapes)
    cells, _ = _sequence_costs(cell_tpl, "cell_tpl", shapes)
    return PipelineCosts(sum(prologue.flops), cells)


def boundary_bytes(
    cells: Iterable[tuple[Iterable[int], Iterable[int]]],
    outputs: Iterable[int],
    value_bytes: Mapping[int, int],
) -> list[int]:
    """Returns the bytes that would cross a boundary after each cell.

    A cell is given by the numbers of the values that it takes and returns. Values
    without bytes, such as inputs of the mini-batch, do not cross.
    """
    byte_counts, crossing = [], set(outputs)
    for taken, returned in reversed([*cells]):
        byte_counts.append(sum(value_bytes.get(value, 0) for value in crossing))
        crossing.difference_update(returned)
        crossing.update(taken)
    return byte_counts[::-1]


def as_shape(shape: Any) -> Any:
    """Returns a shape, a NestedMap of shapes or None, with Python's integers."""
    if shape is None:
        return None
    if isinstance(shape, Mapping):
        return NestedMap({key: as_shape(value) for key, value in shape.items()})
    try:
        sizes = list(shape)
    except (TypeError, ValueError):
        sizes = [None]
    if not all(isinstance(size, numbers.Integral) and int(size) > 0 for size in sizes):
        raise UserValueError(
            f"A shape must be a tuple of positive integers; got {shape!r}. Write the "
            "shape of a micro-batch as the first layer takes it, such as (8, 32)."
        )
    return tuple(map(int, sizes))


def _sequence_costs(
    layers: Sequence[InstantiableParams], name: str, shapes: tuple
) -> tuple[CellCosts, tuple]:
    """Returns the costs of consecutive layers, and the last one's output shapes."""
    costs = CellCosts([], [])
    metas: dict[tuple[int, str], NestedMap] = {}  # Params may be listed twice.
    for i, p in enumerate(layers):
        key = id(p), repr(shapes)
        if key not in metas:
            path = f"{name}[{i}], {p.cls.__name__} {p.name!r}"
            metas[key] = _forward_meta(p, shapes, path)
        meta = metas[key]
        shapes = tuple(meta.out_shapes)
        costs.flops.append(meta.flops)
        costs.passed_on.append(num_elements(shapes))
    return costs, shapes


def _forward_meta(p: InstantiableParams, shapes: tuple, path: str) -> NestedMap:
    try:
        meta = p.cls.FPropMeta(p, *shapes)
    except NotImplementedError as error:
        raise UserValueError(
            f"{path}: the costs of cells need FPropMeta, missing: {error}. Write a "
            "classmethod (cls, p, *shapes) that returns NestedMap(flops=..., "
            "out_shapes=(...)): multiply-adds counted as two, and a shape for each "
            "output. For splits='auto', cell_costs may be numbers instead."
        ) from error
    except _SHAPE_ERRORS as error:
        raise UserValueError(
            f"{path}: FPropMeta failed for {', '.join(map(str, shapes)) or 'no shape'}:"
            f" {error}. Change the shapes, or the layer."
        ) from error
    if not _is_meta(meta):
        raise UserValueError(
            f"{path}: expected FPropMeta to return NestedMap(flops=..., "
            "out_shapes=(...)), a number and a tuple with the shape of each output; "
            f"got {meta!r}."
        )
    return meta


def _is_meta(meta: Any) -> bool:
    if not isinstance(meta, NestedMap) or not {"flops", "out_shapes"} <= set(meta):
        return False
    shapes = meta.out_shapes
    is_one_shape = bool(shapes) and all(isinstance(dim, int) for dim in shapes)
    return isinstance(meta.flops, numbers.Real) and not is_one_shape
