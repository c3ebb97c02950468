"""A model's layers, shapes, parameters and stages as text."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.activity import activity, set_detail
from lingvo_pipe.core.nests import present
from lingvo_pipe.core.tables import text_table
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.model_size import num_parameters
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.training.profiling.predicted_bubble import (
    PredictedBubble,
    predict_bubble,
)
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.pipeline_inputs import batch_placeholders

_HEADER = ("stage", "layer", "class", "shape", "MACs", "parameters")
_BEFORE = "before"  # In the column of stages.
_NUMBER_COLUMNS = range(_HEADER.index("MACs"), len(_HEADER))


def describe(task_params: InstantiableParams, input_generator: Any) -> str:
    """Returns a text about a task's pipeline, without allocating its variables.

    The text has a table of the layers, totals of each stage, the balance of the stages,
    and the predicted bubble.
    """
    with tf.Graph().as_default():
        with activity("building the model"):
            task = task_params.Instantiate()
        batch = batch_placeholders(input_generator.element_spec)
        shapes = _output_shapes(task, batch)
        with activity("predicting the bubble"):
            work, bubble = _predicted(task, batch)
        rows: list[tuple[str, ...]] = [_HEADER]
        before, cells = task.pipeline.before, task.pipeline.cells
        for layer, shape in zip(before, shapes, strict=False):
            rows += _layer_rows(_BEFORE, layer, shape, "")
        cell_shapes = shapes[len(before) :]
        for i, (cell, shape) in enumerate(zip(cells, cell_shapes, strict=True)):
            stage = str(task.pipeline.stage_of_cell(i))
            macs = f"{work.cell_multiply_adds[i]:,.0f}" if work else "unknown"
            rows += _layer_rows(stage, cell, shape, macs)
        lines = [*text_table(rows, _NUMBER_COLUMNS), "", *_totals(task, work), bubble]
        return "\n".join(lines)


def _output_shapes(task: BaseTask, batch: Any) -> list[str]:
    layers = [*task.pipeline.before, *task.pipeline.cells]
    thetas = [layer.theta for layer in layers]
    shapes = []
    with ForwardContext(do_eval=True), activity("computing shapes"):
        outputs = outputs_in_sequence(layers, thetas, task.PipelineInputs(batch))
        for i, y in enumerate(itertools.islice(outputs, 1, None), start=1):
            set_detail(f"layer {i:,} of {len(layers):,}")
            shapes.append(" ".join(str([*x.shape]) for x in present(y)))
    return shapes


def _layer_rows(
    stage: str, layer: BaseLayer, shape: str, macs: str
) -> Iterator[tuple[str, ...]]:
    count = f"{num_parameters(layer):,}"
    yield stage, layer.params.name, type(layer).__name__, shape, macs, count
    for path, variable in layer.VariablePaths().items():
        name = "  " + path[len(layer.path) + 1 :]
        kind = "trained" if variable.trainable else "state"
        count = f"{math.prod(variable.shape):,}"
        yield "", name, kind, str([*variable.shape]), "", count


def _totals(task: BaseTask, work: PredictedBubble | None) -> list[str]:
    pipeline = task.pipeline
    lines, counts = [], []
    if pipeline.before:
        count = sum(map(num_parameters, pipeline.before))
        lines.append(f"{_BEFORE}: {len(pipeline.before)} layers, {count:,} parameters")
    stages = list(map(pipeline.stage_of_cell, range(len(pipeline.cells))))
    for stage, devices in enumerate(zip(*pipeline.replicas, strict=True)):
        cells = [c for c, k in zip(pipeline.cells, stages, strict=True) if k == stage]
        counts.append(sum(map(num_parameters, cells)))
        share = f"{work.shares[stage]:.1%} of the flops, " if work else ""
        lines.append(
            f"stage {stage} on {', '.join(map(short_name, devices))}: "
            f"{len(cells)} layers, {share}{counts[-1]:,} parameters"
        )
    if len(counts) > 1:
        flops = f"{_balance(work.shares):.2f} in flops, " if work else ""
        lines.append(
            f"balance: largest stage over mean stage: {flops}"
            f"{_balance(counts):.2f} in parameters"
        )
    lines.append(f"total: {num_parameters(task):,} parameters")
    if work:
        lines.append(
            f"MACs: {sum(work.cell_multiply_adds):,.0f} in an example's forward pass, "
            f"{sum(work.cell_flops):,.0f} flops"
        )
    return lines


def _balance(stages: Sequence[float]) -> float:
    return max(stages) * len(stages) / sum(stages) if sum(stages) else 1.0


def _predicted(task: BaseTask, batch: Any) -> tuple[PredictedBubble | None, str]:
    p = task.pipeline.params
    try:
        predicted = predict_bubble(task, batch)
    except ValueError as error:
        return None, f"bubble: not predicted. {error}"
    num_batch_shards = task.pipeline.spec.layout.num_batch_shards
    shards = f" in {num_batch_shards} batch shards" if num_batch_shards > 1 else ""
    return predicted, (
        f"bubble: {predicted.bubble_fraction:.1%} with schedule {p.schedule} and "
        f"{p.num_micro_batches} micro-batches{shards}, if only flops take time, and "
        "backward passes twice as many as forward passes"
    )
