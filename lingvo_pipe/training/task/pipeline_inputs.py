"""Shapes and dtypes of a pipeline's inputs, written to its params."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import map_present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.execution.micro_batches import cut_batch
from lingvo_pipe.pipeline.stage_choice.stage_boundaries import needs_inputs
from lingvo_pipe.pipeline.stage_choice.traced_cells import SINGLE_STAGE
from lingvo_pipe.training.task.task_params import plain_task


def configure_inputs(task_params: InstantiableParams, input_generator: Any) -> None:
    """Sets the pipeline's `input_shapes` and `input_dtypes`, if unset and needed.

    Both describe a micro-batch. NestedMaps become dicts, which can be written as text.

    Raises:
        ValueError: if batches cannot be cut into micro-batches.
    """
    p = task_params.pipeline
    if p.input_shapes is not None or not needs_inputs(p):
        return
    with tf.Graph().as_default():
        task, inputs = task_and_inputs(task_params, input_generator)
        cut = cut_batch(
            inputs,
            p.num_micro_batches,
            p.micro_batch_size,
            p.batch_dim,
            task.pipeline.path,
        )
        stacked = list(cut.split(inputs))
    shapes = map_present(lambda x: tuple(x.shape[1:]), stacked)
    dtypes = map_present(lambda x: x.dtype, stacked)
    p.input_shapes = [_plain(shape) for shape in shapes]
    p.input_dtypes = [_plain(dtype) for dtype in dtypes]


def task_and_inputs(
    task_params: InstantiableParams, input_generator: Any
) -> tuple[Any, tuple]:
    """Creates a task with one stage in the current graph, and placeholder inputs."""
    task = single_stage(task_params).Instantiate()
    inputs = task.PipelineInputs(batch_placeholders(input_generator.element_spec))
    return task, tuple(inputs)


def single_stage(task_params: InstantiableParams) -> InstantiableParams:
    """Returns a copy of a task's params for the plain model on one device."""
    p = plain_task(task_params)
    p.pipeline.Set(**SINGLE_STAGE, num_micro_batches=1, micro_batch_size=None)
    return p


def batch_placeholders(element_spec: Any) -> Any:
    """Creates placeholders for a batch in the current graph."""
    return tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), element_spec
    )


def _plain(structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {key: _plain(value) for key, value in structure.items()}
    return structure
