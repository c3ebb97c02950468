"""The layout of a pipeline whose cells are in slices, by path or as few as fit."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.fewest_slices import fewest_slices
from lingvo_pipe.pipeline.pipelining_params import Layout, make_layout
from lingvo_pipe.pipeline.pipelining_rules import check_each_param
from lingvo_pipe.pipeline.slices import with_slices
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.pipeline.stage_choice.stage_boundaries import whole_memory

# For each device; with more, each slice is small, but their activations remain.
_MAX_SLICES = 16
_Sliced = tuple[InstantiableParams, Layout]


def make_sliced_layout(p: InstantiableParams, path: str) -> Layout:
    """Cuts the cells in the params of the layer at `path`, and returns the layout.

    Raises:
        ValueError: if params are invalid, or no stages fit into `memory_limit`. Then
            the error names the slices that would fit, if there are any.
    """
    check_each_param(p, path)
    if p.slices is None:
        try:
            return make_layout(p, path)
        except DoesNotFitError as error:
            if not error.has_oversized_cell:
                raise
            fit = _fewest_slices(p, path)
            if fit is None:
                raise
            hint = f"Or cut layers: it fits with slices={fit[0]}, which 'auto' finds."
            raise DoesNotFitError(str(error), path=error.path, hint=hint) from error
    sliced, layout = (_auto if is_auto(p.slices) else _sliced)(p, path)
    p.Set(cell_tpl=sliced.cell_tpl, tied=sliced.tied, slices=None)
    return layout


def _sliced(p: InstantiableParams, path: str) -> _Sliced:
    p = with_slices(p, path)
    return p, make_layout(p, path)


def _auto(p: InstantiableParams, path: str) -> _Sliced:
    if p.memory_limit is None or not is_auto(p.splits):
        raise UserValueError(
            path=f"{path}.slices",
            expected="a map of slices, or 'auto' with memory_limit and splits='auto'",
            got=Words(
                f"'auto' with memory_limit={p.memory_limit}, splits={p.splits!r}"
            ),
        )
    if (fit := _fewest_slices(p, path)) is not None:
        slices, sliced = fit
        if slices:
            text = "%s.slices: 'auto' cuts %s. To keep these slices, list them."
            tf.get_logger().warning(text, path, slices)
        return sliced
    try:
        return _sliced(p.Copy().Set(slices={}), path)
    except DoesNotFitError as error:
        raise DoesNotFitError(
            f"{path}.slices: 'auto' found no slices that fit into "
            f"memory_limit={p.memory_limit}. Without slices: {error}",
            path=f"{path}.slices",
        ) from error


def _fewest_slices(
    p: InstantiableParams, path: str
) -> tuple[dict[str, int], _Sliced] | None:
    """Returns slices that fit into the limit, or None if none are found."""
    memory, num_cells = whole_memory(p, path), len(p.cell_tpl)
    num_devices = len(p.devices) // p.num_replicas
    if memory.held(0, num_cells) > num_devices * p.memory_limit:
        return None  # However it is cut.

    def attempt(slices: dict[str, int]) -> tuple[_Sliced | None, float]:
        try:
            return _sliced(p.Copy().Set(slices=slices), path), p.memory_limit
        except DoesNotFitError as error:
            return None, error.smallest_limit
        except UserValueError:  # Fewer cells than stages, or ties across dimensions.
            return None, 0.0

    max_slices = _MAX_SLICES * num_devices
    return fewest_slices(p, memory.by_cell(), p.memory_limit, max_slices, attempt)
