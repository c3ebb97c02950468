"""Stages of a Keras model: their number, and the inputs by which they are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras.keras_cell import first_inputs
from lingvo_pipe.keras.private_names import Functional
from lingvo_pipe.keras.refusals import check_devices
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.pipeline.stage_choice.stage_boundaries import needs_inputs


def with_stages(
    params: Mapping[str, Any], devices: int | Sequence[str], num_cells: int
) -> dict[str, Any]:
    """Returns params of a pipeline with `devices`, and `splits` if it has none.

    Args:
        params: other params of the pipeline.
        devices: number or names of all devices.
        num_cells: number of the model's cells.

    Raises:
        ValueError: if there are more stages than cells, or replicas would differ.
    """
    check_devices(devices)
    p, number = dict(params), devices if isinstance(devices, int) else len(devices)
    if not isinstance(devices, int):
        p["devices"] = list(devices)
    elif is_auto(p.get("splits")):
        p["devices"] = stage_devices(None, devices)
    replicas = p.get("num_replicas", 1)
    if "splits" not in p and isinstance(replicas, int) and replicas > 0:
        if number % replicas:
            raise UserValueError(
                path="PipelinedModel(devices=...)",
                expected=f"a multiple of num_replicas, {replicas}",
                got=devices,
                hint="Each replica has as many devices.",
            )
        check_devices(number // replicas, num_cells)
        p["splits"] = number // replicas * p.get("stages_per_device", 1)
    return p


def set_inputs(
    p: InstantiableParams, graph: Functional, batch_size: int | None
) -> None:
    """Sets the shapes of a pipeline's inputs if its stages are chosen by them.

    Raises:
        ValueError: if they follow neither from the model nor from `batch_size`, B, or
            that is not needed.
    """
    if p.input_shapes is not None or not needs_inputs(p):
        if batch_size is not None:
            raise UserValueError(
                path="PipelinedModel(batch_size=...)",
                expected="None unless splits='auto' or memory_limit is set",
                got=batch_size,
                hint="Give batch_size to fit.",
            )
        return
    by_flops = p.memory_limit is None and p.cell_costs is None
    if batch_size is None and not by_flops:
        raise UserValueError(
            path="PipelinedModel(batch_size=...)",
            expected="the size of a mini-batch, since stages are chosen by measured "
            "times or within memory_limit",
            got=None,
            hint="Give it, or leave cell_costs and memory_limit out.",
        )
    # Flops of cells are in the same ratios for any number of rows.
    rows = 1 if batch_size is None else -(-batch_size // p.num_micro_batches)
    unknown = [x.name for x in graph.inputs if None in x.shape[1:]]
    if unknown:
        raise UserValueError(
            path="PipelinedModel(splits='auto')",
            expected="inputs of known sizes apart from the examples",
            got=f"inputs {unknown} of any size",
            hint="Give splits as a number or a list of boundaries.",
        )
    with tf.Graph().as_default():
        given = [
            tf.compat.v1.placeholder(x.dtype, [rows, *x.shape[1:]])
            for x in graph.inputs
        ]
        found = first_inputs(graph, tree.pack_sequence_as(graph.input, given))
    p.input_shapes = [None if x is None else tuple(x.shape) for x in found]
    p.input_dtypes = [None if x is None else x.dtype for x in found]
