"""What a model is made of: layers, shapes, parameters and stages, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.predicted_bubble import PredictedBubble, predict_bubble

_HEADER = ("stage", "layer", "class", "shape", "MACs", "parameters")
_BEFORE = "before"  # In place of a stage.
_FIRST_NUMBER = _HEADER.index("MACs")


def describe(task_params: InstantiableParams, input_generator: Any) -> str:
    """Describes a task's pipeline; builds it in a scratch graph, allocating nothing.

    Args:
        task_params: params of a BaseTask.
        input_generator: has an `element_spec`.

    Returns:
        A table: for each layer its stage, class, output shapes, multiply-adds (but
        for layers before the stages) and number of parameters, and below it its
        variables; then the stages' totals, how even they are, and the bubble that is
        to be expected.
    """
    with tf.Graph().as_default():
        task = task_params.Instantiate()
        batch = _placeholders(input_generator)
        shapes = _output_shapes(task, batch)
        work, bubble = _predicted(task, batch)
        rows: list[tuple[str, ...]] = [_HEADER]
        before, cells = task.pipeline.before, task.pipeline.cells
        for layer, shape in zip(before, shapes, strict=False):
            rows += _layer_rows(_BEFORE, layer, shape, "")
        for i, (cell, shape) in enumerate(
            zip(cells, shapes[len(before) :], strict=True)
        ):
            stage = str(task.pipeline.stage_of_cell(i))
            macs = f"{work.cell_flops[i] / 2:,.0f}" if work else "unknown"
            rows += _layer_rows(stage, cell, shape, macs)
        lines = [*_columns(rows), "", *_totals(task, work), bubble]
        return "\n".join(lines)


def _placeholders(input_generator: Any) -> Any:
    return tf.nest.map_structure(
        lambda s: tf.compat.v1.placeholder(s.dtype, s.shape),
        input_generator.element_spec,
    )


def _output_shapes(task: BaseTask, batch: Any) -> list[str]:
    """Of each layer, those before the stages included."""
    outputs: Any = tuple(task.PipelineInputs(batch))
    shapes = []
    with ForwardContext(do_eval=True):
        for layer in [*task.pipeline.before, *task.pipeline.cells]:
            outputs = layer.FProp(layer.theta, *as_args(outputs))
            present = [x for x in tf.nest.flatten(outputs) if x is not None]
            shapes.append(" ".join(_shape_text(x.shape) for x in present))
    return shapes


def _layer_rows(
    stage: str, layer: BaseLayer, shape: str, macs: str
) -> list[tuple[str, ...]]:
    count = f"{_num_parameters(layer):,}"
    row = stage, layer.params.name, type(layer).__name__, shape, macs, count
    return [row, *_variable_rows(layer)]


def _variable_rows(cell: BaseLayer) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for path, variable in cell.VariablePaths().items():
        name = "  " + path[len(cell.path) + 1 :]
        kind = "trained" if variable.trainable else "state"
        count = f"{math.prod(variable.shape):,}"
        rows.append(("", name, kind, _shape_text(variable.shape), "", count))
    return rows


def _num_parameters(layer: BaseLayer) -> int:
    """Number of trained parameters."""
    variables = layer.VariablePaths().values()
    return sum(math.prod(v.shape) for v in variables if v.trainable)


def _totals(task: BaseTask, work: PredictedBubble | None) -> list[str]:
    """A line for each stage, how even they are, and the sums."""
    pipeline = task.pipeline
    lines, counts = [], []
    if pipeline.before:
        count = sum(map(_num_parameters, pipeline.before))
        lines.append(f"{_BEFORE}: {len(pipeline.before)} layers, {count:,} parameters")
    for stage, of_replicas in enumerate(zip(*pipeline.replicas, strict=True)):
        cells = [
            cell
            for i, cell in enumerate(pipeline.cells)
            if pipeline.stage_of_cell(i) == stage
        ]
        counts.append(sum(map(_num_parameters, cells)))
        share = f"{work.shares[stage]:.1%} of the flops, " if work else ""
        lines.append(
            f"stage {stage} on {', '.join(map(short_name, of_replicas))}: "
            f"{len(cells)} layers, "
            f"{share}{counts[-1]:,} parameters"
        )
    if len(counts) > 1:
        flops = f"{_unevenness(work.shares):.2f} in flops, " if work else ""
        lines.append(
            f"balance: largest stage over mean stage: {flops}"
            f"{_unevenness(counts):.2f} in parameters"
        )
    lines.append(f"total: {_num_parameters(task):,} parameters")
    if work:
        lines.append(
            f"MACs: {sum(work.cell_flops) / 2:,.0f} in an example's forward pass, half "
            "of the flops by FPropMeta, which counts more than multiply-adds"
        )
    return lines


def _unevenness(parts: Sequence[float]) -> float:
    """The largest part over the mean."""
    return max(parts) * len(parts) / sum(parts) if sum(parts) else 1.0


def _predicted(task: BaseTask, batch: Any) -> tuple[PredictedBubble | None, str]:
    """The layers' work, if it is known, and what is known of the bubble."""
    p = task.pipeline.params
    try:
        predicted = predict_bubble(task, batch)
    except ValueError as error:
        return None, f"bubble: not predicted. {error}"
    num_parts = task.pipeline.plan.num_parts
    parts = f" in {num_parts} parts" if num_parts > 1 else ""
    return predicted, (
        f"bubble: {predicted.bubble_fraction:.1%} with schedule {p.schedule} and "
        f"{p.num_micro_batches} micro-batches{parts}, if only flops take time, and "
        "backward passes twice as many as forward passes"
    )


def _shape_text(shape: Any) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            text.rjust(width) if i >= _FIRST_NUMBER else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
