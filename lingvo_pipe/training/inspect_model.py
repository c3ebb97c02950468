"""What a model is made of: layers, shapes, parameters and stages, as text."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.predicted_bubble import predict_bubble


def describe(task_params: InstantiableParams, input_generator: Any) -> str:
    """Describes a task's pipeline; builds it in a scratch graph, allocating nothing.

    Args:
        task_params: params of a BaseTask.
        input_generator: has an `element_spec`.

    Returns:
        A table: for each layer its stage, class, output shapes and number of
        parameters, and below it its variables; then the stages' totals, and the bubble
        that is to be expected.
    """
    with tf.Graph().as_default():
        task = task_params.Instantiate()
        batch = _placeholders(input_generator)
        shapes = _output_shapes(task, batch)
        rows: list[tuple[str, ...]] = [
            ("stage", "layer", "class", "shape", "parameters")
        ]
        for i, (cell, shape) in enumerate(
            zip(task.pipeline.cells, shapes, strict=True)
        ):
            stage = str(task.pipeline.stage_of_cell(i))
            count = f"{_num_parameters(cell):,}"
            rows.append((stage, cell.params.name, type(cell).__name__, shape, count))
            rows += _variable_rows(cell)
        return "\n".join([*_columns(rows), "", *_totals(task, batch)])


def pipeline_input_shapes(
    task_params: InstantiableParams, input_generator: Any
) -> list[Any]:
    """The shapes of what goes into a task's pipeline, for splits='auto'."""
    params = task_params.Copy()
    params.pipeline.Set(splits=1, stages_per_device=1, schedule="gpipe", devices=None)
    with tf.Graph().as_default():
        inputs = params.Instantiate().PipelineInputs(_placeholders(input_generator))
        return tf.nest.map_structure(
            lambda x: None if x is None else tuple(x.shape), list(inputs)
        )


def _placeholders(input_generator: Any) -> Any:
    return tf.nest.map_structure(
        lambda s: tf.compat.v1.placeholder(s.dtype, s.shape),
        input_generator.element_spec,
    )


def _output_shapes(task: BaseTask, batch: Any) -> list[str]:
    outputs: Any = tuple(task.PipelineInputs(batch))
    shapes = []
    with ForwardContext(do_eval=True):
        for cell in task.pipeline.before:
            outputs = cell.FProp(cell.theta, *as_args(outputs))
        for cell in task.pipeline.cells:
            outputs = cell.FProp(cell.theta, *as_args(outputs))
            present = [x for x in tf.nest.flatten(outputs) if x is not None]
            shapes.append(" ".join(_shape_text(x.shape) for x in present))
    return shapes


def _variable_rows(cell: BaseLayer) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for path, variable in cell.VariablePaths().items():
        name = "  " + path[len(cell.path) + 1 :]
        kind = "trained" if variable.trainable else "state"
        count = f"{math.prod(variable.shape):,}"
        rows.append(("", name, kind, _shape_text(variable.shape), count))
    return rows


def _num_parameters(layer: BaseLayer) -> int:
    """Number of trained parameters."""
    variables = layer.VariablePaths().values()
    return sum(math.prod(v.shape) for v in variables if v.trainable)


def _totals(task: BaseTask, batch: Any) -> list[str]:
    pipeline = task.pipeline
    shares, bubble = _shares_and_bubble(task, batch)
    lines = []
    for stage, device in enumerate(pipeline.devices):
        cells = [
            cell
            for i, cell in enumerate(pipeline.cells)
            if pipeline.stage_of_cell(i) == stage
        ]
        count = sum(map(_num_parameters, cells))
        lines.append(
            f"stage {stage} on {device.rpartition('device:')[2]}: {len(cells)} layers, "
            f"{shares[stage]}{count:,} parameters"
        )
    return [*lines, f"total: {_num_parameters(task):,} parameters", bubble]


def _shares_and_bubble(task: BaseTask, batch: Any) -> tuple[list[str], str]:
    """For each stage its share of the work, if known; what is known of the bubble."""
    p = task.pipeline.params
    try:
        predicted = predict_bubble(task, batch)
    except ValueError as error:
        return [""] * task.pipeline.num_stages, f"bubble: not predicted. {error}"
    return [f"{share:.1%} of the flops, " for share in predicted.shares], (
        f"bubble: {predicted.bubble_fraction:.1%} with schedule {p.schedule} and "
        f"{p.num_micro_batches} micro-batches, if only flops take time, and backward "
        "passes twice as many as forward passes"
    )


def _shape_text(shape: Any) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
            + [row[-1].rjust(widths[-1])]
        )
        for row in rows
    ]
