"""A prediction, from shapes alone, of each stage's share of the work and the bubble."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from lingvo_pipe.core.nests import map_present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.micro_batches import cut_batch
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.cell_costs import BACKWARD_PER_FORWARD
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.pipeline.stage_choice.traced_cells import pipeline_sizes
from lingvo_pipe.training.task.base_task import BaseTask

# Stages are uneven if the largest one has at least this multiple of the mean flops.
# Others are proposed if their largest one has less than this fraction of its flops.
_UNEVEN, _MORE_EVEN = 1.4, 0.9


class PredictedBubble(NamedTuple):
    """The predicted flops of forward passes, without the loss, and the bubble."""

    cell_flops: list[float]  # Each cell's flops for one example.
    cell_multiply_adds: list[float]  # Each cell's multiply-adds for one example.
    shares: list[float]  # Each stage's fraction. Stage 0 includes the prologue.
    bubble_fraction: float  # Idle fraction of devices' time, if only flops take time.


def predict_bubble(task: BaseTask, batch: NestedMap) -> PredictedBubble:
    """Predicts a training step's bubble, from the batch's shapes.

    All other devices are idle while the first runs the prologue, forward and backward.

    Raises:
        ValueError: if a layer cannot be traced, or the batch cannot be cut.
    """
    pipeline = task.pipeline
    spec, p = pipeline.spec, pipeline.params
    inputs = tuple(task.PipelineInputs(batch))
    cut = cut_batch(
        inputs, p.num_micro_batches, p.micro_batch_size, p.batch_dim, pipeline.path
    )
    named = p.Copy().Set(
        before_tpl=[layer.params for layer in pipeline.before],
        cell_tpl=[cell.params for cell in pipeline.cells],
    )
    before, cells = pipeline_sizes(
        named,
        *map_present(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), cut.split(inputs)),
    )
    numbers, flops = range(pipeline.num_stages), [cell.flops for cell in cells]
    stages = [_stage_costs(pipeline, stage, flops) for stage in numbers]
    per_replica = p.num_micro_batches // len(spec.layout.replicas)
    work = [per_replica * stage.forward for stage in stages]
    prologue = p.num_micro_batches * sum(layer.flops for layer in before)
    work[0] += prologue
    step = simulate(pipeline.schedule, Costs(tuple(stages)))
    prologue *= 1 + BACKWARD_PER_FORWARD
    return PredictedBubble(
        cell_flops=[num_flops / cut.num_rows for num_flops in flops],
        cell_multiply_adds=[cell.multiply_adds / cut.num_rows for cell in cells],
        shares=[x / sum(work) if sum(work) else 0.0 for x in work],
        bubble_fraction=_bubble_fraction(step, spec, prologue),
    )


def predict_from_spec(task: BaseTask, batch_spec: NestedMap) -> PredictedBubble | None:
    """Predicts the bubble from a batch's tf.TensorSpecs, or returns None if unknown."""
    predictions: list[PredictedBubble] = []

    def predict(batch: NestedMap) -> None:
        try:
            predictions.append(predict_bubble(task, batch))
        except ValueError as error:
            logging.info("The bubble and the stages' flops are unknown. %s", error)

    # PipelineInputs may read variables, so it needs a function's graph.
    tf.function(predict, autograph=False).get_concrete_function(batch_spec)
    return predictions[0] if predictions else None


def uneven_stages(task: BaseTask, predicted: PredictedBubble) -> str:
    """Returns a line about uneven stages, with advice, or "" if stages are even enough.

    Returns "" too if the planner chooses the stages, or a memory limit is set.
    """
    p, flops = task.pipeline.params, predicted.cell_flops
    num_stages, total = task.pipeline.num_stages, sum(flops)
    if is_auto(p.splits) or p.memory_limit is not None or not total:
        return ""

    def largest(boundaries: Sequence[int]) -> tuple[float, int]:
        stages = enumerate(itertools.pairwise([0, *boundaries]))
        return max((sum(flops[a:b]) / total, -stage) for stage, (a, b) in stages)

    share, stage = largest(task.pipeline.boundaries)
    even = balanced_boundaries(flops, num_stages)
    if share * num_stages < _UNEVEN:
        return ""
    if largest(even)[0] < _MORE_EVEN * share:
        hint = (
            f"task.pipeline.splits (list) : {even} would give none more than "
            f"{largest(even)[0]:.0%}"
        )
    else:
        cell = max(range(len(flops)), key=flops.__getitem__)
        hint = (
            f"No other splits help much, since cell {cell} alone has "
            f"{flops[cell] / total:.0%}; divide it, or use fewer stages"
        )
    return (
        f"Stage {-stage} of {num_stages} has {share:.0%} of the flops, and the others "
        f"wait for it. {hint}."
    )


def _bubble_fraction(shard: Timeline, spec: PipelineSpec, prologue: float) -> float:
    """Returns the idle fraction of the devices' time in a step. Times are in flops."""
    num_columns = len(shard.columns)
    num_devices = num_columns * len(spec.layout.replicas)
    idle = spec.layout.num_batch_shards * sum(
        map(shard.idle_seconds, range(num_columns))
    )
    total = (
        spec.layout.shards_per_replica * shard.step_seconds + prologue
    ) * num_devices
    return (idle + prologue * (num_devices - 1)) / total if total else 0.0


def _stage_costs(pipeline: PipeliningLayer, stage: int, flops: list[int]) -> StageCosts:
    cells = [i for i in range(len(flops)) if pipeline.stage_of_cell(i) == stage]
    recomputed = pipeline.spec.layout.recomputed
    forward = sum(flops[i] for i in cells)
    return StageCosts(
        forward=forward,
        backward=BACKWARD_PER_FORWARD * forward,
        recompute=sum(flops[i] for i in cells if recomputed[i]),
    )
