"""The stages' shares of the work and the resulting bubble, computed from shapes."""

from __future__ import annotations

from typing import NamedTuple

from lingvo_pipe.core.nests import map_present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.micro_batches import cut_batch
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.cell_costs import (
    BACKWARD_PER_FORWARD,
    pipeline_costs,
)
from lingvo_pipe.training.task.base_task import BaseTask


class PredictedBubble(NamedTuple):
    """Work in flops, without the loss.

    Attributes:
        cell_flops: flops of each cell's forward pass in training, for one example.
        shares: each stage's fraction of the work; the prologue's is in stage 0's.
        bubble_fraction: idle fraction of the devices' time, if only flops take time.
    """

    cell_flops: list[float]
    shares: list[float]
    bubble_fraction: float


def predict_bubble(task: BaseTask, batch: NestedMap) -> PredictedBubble:
    """Predicts a training step's bubble.

    All other devices wait while the first runs the prologue, the layers before the
    cells, forward and, at the end, backward. Only the batch's shapes matter. Raises
    ValueError if a layer has no FPropMeta, or the batch cannot be cut into
    micro-batches.
    """
    pipeline = task.pipeline
    spec, p = pipeline.spec, pipeline.params
    inputs = tuple(task.PipelineInputs(batch))
    cut = cut_batch(
        inputs, p.num_micro_batches, p.micro_batch_size, p.batch_dim, pipeline.path
    )
    costs = pipeline_costs(
        [layer.params for layer in pipeline.before],
        [cell.params for cell in pipeline.cells],
        *map_present(lambda x: tuple(x.shape[1:]), cut.split(inputs)),
    )
    numbers, flops = range(pipeline.num_stages), costs.cells.flops
    stages = [_stage_costs(pipeline, stage, flops) for stage in numbers]
    per_replica = p.num_micro_batches // len(spec.replicas)
    work = [per_replica * stage.forward for stage in stages]
    prologue = p.num_micro_batches * costs.prologue
    work[0] += prologue
    step = simulate(pipeline.schedule, Costs(tuple(stages)))
    return PredictedBubble(
        cell_flops=[each / cut.num_rows for each in flops],
        shares=[x / sum(work) if sum(work) else 0.0 for x in work],
        bubble_fraction=_bubble_fraction(
            step, spec, prologue * (1 + BACKWARD_PER_FORWARD)
        ),
    )


def _bubble_fraction(shard: Timeline, spec: PipelineSpec, prologue: float) -> float:
    """Returns a step's bubble from one batch shard's, with the prologue added."""
    num_columns = len(shard.columns)
    num_devices = num_columns * len(spec.replicas)
    idle = spec.num_batch_shards * sum(map(shard.idle_seconds, range(num_columns)))
    total = (spec.shards_per_replica * shard.step_seconds + prologue) * num_devices
    return (idle + prologue * (num_devices - 1)) / total if total else 0.0


def _stage_costs(pipeline: PipeliningLayer, stage: int, flops: list[int]) -> StageCosts:
    cells = [i for i in range(len(flops)) if pipeline.stage_of_cell(i) == stage]
    policy = pipeline.params.recompute
    recomputed = policy if isinstance(policy, (list, tuple)) else cells
    forward = sum(flops[i] for i in cells)
    return StageCosts(
        forward=forward,
        backward=BACKWARD_PER_FORWARD * forward,
        recompute=sum(flops[i] for i in cells if i in recomputed),
    )
