"""The cells of a pipeline whose layers are in slices; see `layers.core.slicing`.

    cell_tpl  [ embedding  encoder  logits ]     slices = {'cells[2]': 3}
    becomes   [ embedding  encoder  logits>0  logits>1  logits>2 ]

`auto` cuts cells into as few slices as fit into `memory_limit`: weights are cut until
none is larger than a target, which shrinks from the limit until stages are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.slicing import num_units, slice_name, slices_of
from lingvo_pipe.layers.model_size import parameter_counts, trained_paths
from lingvo_pipe.pipeline.pipelining_params import Layout, make_layout
from lingvo_pipe.pipeline.pipelining_rules import check_each_param, count_batch_shards
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError

# The target shrinks by this factor, and is then refined so often.
_SHRINK, _REFINEMENTS = 1.25, 3
# For each device; with more, each slice is small, but their activations remain.
_MAX_SLICES = 16
_DEFAULT_BYTES = 4


def make_sliced_layout(p: InstantiableParams, path: str) -> Layout:
    """Cuts the cells of the layer at `path`, changing its params; returns the layout.

    Raises ValueError if params are invalid, or no stages fit into `memory_limit`; then
    the error names the slices that would, if there are any.
    """
    check_each_param(p, path)
    if is_auto(p.slices):
        p.slices, layout = _fewest_slices(p, path)
    if p.slices is None:
        try:
            return make_layout(p, path)
        except DoesNotFitError as error:
            if not error.has_oversized_cell:
                raise
            raise DoesNotFitError(f"{error}{_advice(p, path, error)}") from error
    sliced = with_slices(p, path)
    layout = make_layout(sliced, path)
    p.Set(cell_tpl=sliced.cell_tpl, tied=sliced.tied, slices=None)
    return layout


def with_slices(p: InstantiableParams, path: str) -> InstantiableParams:
    """Returns a copy of a pipeline's params whose cells are the slices, if any.

    Cells keep their names. Raises ValueError, naming all problems of `slices`.
    """
    p = p.Copy()
    if not isinstance(p.slices, Mapping):
        return p
    _check(p, path)
    cells, ties = [], _Ties(p.tied)
    for i, cell in enumerate(p.cell_tpl):
        cell.name = cell.name or f"cells_{i}"
        own = _tree(p.slices).get(f"cells[{i}]", 1)
        slices = slices_of(cell, own)
        if own != 1:
            for j, each in enumerate(slices):
                each.name = slice_name(cell.name, j)
            ties.add(cell.name, slices)
        cells += slices
    tied = ties.resolved(f"{path}.slices")
    return p.Set(cell_tpl=cells, tied=tied, slices=None)


def sliceable_paths(cells: Sequence[InstantiableParams]) -> dict[str, int]:
    """Returns the largest number of slices of each cell and of parts within it."""
    found: dict[str, int] = {}
    for i, cell in enumerate(cells):
        found |= {path: num_units(p) for path, p in _below(f"cells[{i}]", cell)}
    return found


def _below(
    path: str, p: InstantiableParams
) -> Iterator[tuple[str, InstantiableParams]]:
    yield path, p
    for name, part in p.cls.SliceableParts(p).items():
        yield from _below(f"{path}.{name}", part)


def _check(p: InstantiableParams, path: str) -> None:
    known, problems = sliceable_paths(p.cell_tpl), []
    for name, number in p.slices.items():
        if name not in known:
            near = did_you_mean(name, [k for k in known if known[k] > 1])
            problems.append(
                f"{name!r} is not a cell, or a part of one, that can be cut.{near}"
            )
        elif known[name] == 1 and number > 1:
            problems.append(f"{name!r} can't be cut into slices.")
        elif number > known[name]:
            problems.append(
                f"expected at most {known[name]} slices of {name!r}, one for each "
                f"head, channel or token; got {number}."
            )
        if inner := [k for k in p.slices if k.startswith(f"{name}.")]:
            problems.append(f"{name!r} contains {', '.join(inner)}: list one of them.")
    if problems:
        can = [k for k, number in known.items() if number > 1]
        shown = ", ".join(can[:8]) + (", ..." if len(can) > 8 else "")
        raise UserValueError(
            f"{path}.slices: {' '.join(problems)} These can be cut: {shown or 'none'}."
        )


def _tree(slices: Mapping[str, int]) -> dict[str, Any]:
    """Returns slices by cell, as nested maps of parts."""
    tree: dict[str, Any] = {}
    for path, number in slices.items():
        *above, last = path.split(".")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = number
    return tree


class _Ties:
    """Ties of weights, some of whose layers are in slices."""

    def __init__(self, tied: Mapping[str, str]):
        self._tied = dict(tied)
        self._slices: dict[str, list[str]] = {}

    def add(self, name: str, slices: Sequence[InstantiableParams]) -> None:
        """Notes where the weights of a cell are, if they are tied."""
        used = {*self._tied, *self._tied.values()}
        for path in used:
            cell, _, weight = path.partition("/")
            if cell == name:
                has = [s for s in slices if weight in trained_paths(s)]
                self._slices[path] = [f"{s.name}/{weight}" for s in has]

    def resolved(self, param: str) -> dict[str, str]:
        """Returns the ties slice by slice, or raises ValueError."""
        found: dict[str, str] = {}
        for tied, owner in self._tied.items():
            ends = [self._slices.get(x, [x]) for x in (tied, owner)]
            if len(ends[0]) != len(ends[1]):
                raise UserValueError(
                    f"{param}: expected the same slices of {tied} and {owner}, which "
                    f"are tied; got {len(ends[0])} and {len(ends[1])}."
                )
            found.update(zip(*ends, strict=True))
        return found


def _fewest_slices(
    p: InstantiableParams, path: str, without: ValueError | None = None
) -> tuple[dict[str, int], Layout]:
    """Returns the fewest slices that fit, and the layout, or raises ValueError.

    `without` is the error of the model without slices, if it is known.
    """
    if p.memory_limit is None:
        raise UserValueError(
            f"{path}.slices: 'auto' cuts what does not fit into memory_limit, which is "
            "None. Set memory_limit, or list the slices."
        )
    error = without
    tried: dict[str, Any] = {} if without is None else {"{}": None}

    def attempt(target: float) -> tuple[dict[str, int], Layout] | None:
        nonlocal error
        slices = _slices_of_size(p, path, target)
        if (key := repr(slices)) not in tried:
            try:
                sliced = with_slices(p.Copy().Set(slices=slices), path)
                tried[key] = slices, make_layout(sliced, path)
            except ValueError as problem:
                tried[key], error = None, error or problem
                few_cells = len(sliced.cell_tpl) < len(p.devices or ())
                if not isinstance(problem, DoesNotFitError) and not few_cells:
                    raise
        return tried[key]

    below = above = 2.0 * p.memory_limit
    max_slices = _MAX_SLICES * len(p.devices or ())
    while not (found := attempt(below)):
        if sum(_slices_of_size(p, path, below).values()) > max_slices or below < 1:
            assert error is not None
            raise error
        above, below = below, below / _SHRINK
    for _ in range(_REFINEMENTS):
        middle = (above + below) / 2
        if better := attempt(middle):
            found, below = better, middle
        else:
            above = middle
    return found


def _slices_of_size(p: InstantiableParams, path: str, target: float) -> dict[str, int]:
    """Returns slices with which no weight and its gradient exceed `target` bytes."""
    slices: dict[str, int] = {}
    factor = 1 + count_batch_shards(p, path) // p.num_replicas
    for i, cell in enumerate(p.cell_tpl):
        leaves = [
            (name, part)
            for name, part in _below(f"cells[{i}]", cell)
            if not part.cls.SliceableParts(part) and num_units(part) > 1
        ]
        counts = parameter_counts([cell, *(part for _, part in leaves)])
        sizes = [factor * _num_bytes(p, cell) * count for count in counts]
        if sizes[0] <= target:
            continue
        slices |= {
            name: min(max(int(-(-size // target)), 1), num_units(part))
            for (name, part), size in zip(leaves, sizes[1:], strict=True)
        }
    return slices


def _num_bytes(p: InstantiableParams, cell: InstantiableParams) -> int:
    dtype = cell.dtype or p.dtype
    return dtype.size if dtype is not None else _DEFAULT_BYTES


def _advice(p: InstantiableParams, path: str, error: ValueError) -> str:
    """Returns a sentence about the slices that would fit, if there are any."""
    try:
        slices, _ = _fewest_slices(p, path, error)
    except ValueError:
        return ""
    return (
        f" Or cut layers: with slices={slices} the model fits; so it does with 'auto'."
    )
