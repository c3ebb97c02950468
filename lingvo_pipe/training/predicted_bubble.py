"""How evenly stages share the work, and what the schedule makes of it, from shapes."""

from __future__ import annotations

from typing import NamedTuple

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.micro_batches import MicroBatches, cut_batch
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.training.base_task import BaseTask

# A backward pass has two products of matrices for each that its forward pass has.
_BACKWARD_PER_FORWARD = 2


class PredictedBubble(NamedTuple):
    """Work counted in flops, that of the loss left out.

    Attributes:
        cell_flops: for each cell, of a forward pass in training, for one example.
        shares: for each stage, its part of the work; the layers before are stage 0's.
        bubble_fraction: the part of the devices' time in which they would idle if all
            that took time were flops.
    """

    cell_flops: list[float]
    shares: list[float]
    bubble_fraction: float


def predict_bubble(task: BaseTask, batch: NestedMap) -> PredictedBubble:
    """Predicts a training step's bubble.

    The layers before the cells keep the first device busy while all others wait: for
    their outputs, and in the end for their gradients.

    Args:
        task: the task.
        batch: a batch of its input, of which only the shapes count.

    Raises:
        ValueError: if a layer has no FPropMeta, or the batch can't be cut into
            micro-batches.
    """
    pipeline = task.pipeline
    plan, p = pipeline.plan, pipeline.params
    inputs = tuple(task.PipelineInputs(batch))
    cut = _cut(pipeline, inputs)
    costs = pipeline_costs(
        [layer.params for layer in pipeline.before],
        [cell.params for cell in pipeline.cells],
        *map_present(lambda x: tuple(x.shape[1:]), cut.split(inputs)),
    )
    stages = [
        _stage_costs(pipeline, stage, costs.cells.flops)
        for stage in range(pipeline.num_stages)
    ]
    of_each = p.num_micro_batches // len(plan.replicas)
    work = [of_each * stage.forward for stage in stages]
    before = p.num_micro_batches * costs.before
    work[0] += before
    step = simulate(pipeline.schedule, Costs(tuple(stages)))
    return PredictedBubble(
        cell_flops=[flops / cut.num_rows for flops in costs.cells.flops],
        shares=[part / sum(work) if sum(work) else 0.0 for part in work],
        bubble_fraction=_bubble_fraction(
            step, plan, before * (1 + _BACKWARD_PER_FORWARD)
        ),
    )


def _bubble_fraction(part: Timeline, plan: Plan, alone: float) -> float:
    """That of a step of several parts, to which one device adds a time of its own."""
    num_devices = len(part.columns) * len(plan.replicas)
    idle = plan.num_parts * sum(map(part.idle_seconds, range(len(part.columns))))
    total = (plan.parts_per_replica * part.step_seconds + alone) * num_devices
    return (idle + alone * (num_devices - 1)) / total if total else 0.0


def _cut(pipeline: PipeliningLayer, inputs: tuple) -> MicroBatches:
    p = pipeline.params
    return cut_batch(
        inputs, p.num_micro_batches, p.micro_batch_size, p.batch_dim, pipeline.path
    )


def _stage_costs(pipeline: PipeliningLayer, stage: int, flops: list[int]) -> StageCosts:
    cells = [i for i in range(len(flops)) if pipeline.stage_of_cell(i) == stage]
    policy = pipeline.params.recompute
    recomputed = policy if isinstance(policy, (list, tuple)) else cells
    forward = sum(flops[i] for i in cells)
    return StageCosts(
        forward=forward,
        backward=_BACKWARD_PER_FORWARD * forward,
        recompute=sum(flops[i] for i in cells if i in recomputed),
    )
