"""A model traced for a micro-batch, with no weight allocated: what the planner counts.

Layers that are alike are made and traced once, so a thousand of them take no longer
than a handful. Tensors are those of the traced graph: what a backward pass needs is
what it reads.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present, spec_of
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.peak_memory import call_bytes, value_bytes
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import Surroundings
from lingvo_pipe.planner.model_costs import ModelCosts

_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model's costs, and what can be timed.

    Attributes:
        costs: what is counted.
        stage_calls: of the cells, and of the loss.
        specs: of the values between them.
    """

    costs: ModelCosts
    stage_calls: Sequence[StageCall]
    specs: dict[int, tf.TensorSpec]


class ModelTracer:
    """Traces the cells and the loss of a task, for micro-batches of any size."""

    def __init__(self, task_params: InstantiableParams, batch_spec: NestedMap):
        """Initialises the tracer.

        Args:
            task_params: of a BaseTask whose pipeline has nothing before its cells.
            batch_spec: of a batch of its input, `[B, ...]`.
        """
        self._params, self._batch_spec = task_params, batch_spec
        self._kinds, self._order = _distinct(task_params.pipeline.cell_tpl)

    def trace(self, num_rows: int) -> TracedModel:
        """The model for micro-batches of b rows."""
        p = self._params.pipeline
        with tf.Graph().as_default():
            task = _task_of(self._params, self._kinds)
            inputs, targets = _fed(task, self._batch_spec, num_rows)
        theta = [
            tf.nest.map_structure(spec_of, cell.vars) for cell in task.pipeline.cells
        ]
        layers = [task.pipeline.cells[kind] for kind in self._order]
        assembly = Assembly(
            layers,
            [theta[kind] for kind in self._order],
            Surroundings(
                path_hash=tf.TensorSpec([], tf.uint64),
                step=tf.TensorSpec([], tf.int64),
                first_example=tf.TensorSpec([], tf.int64),
                loss_scale=tf.TensorSpec([], tf.float64),
            ),
            inputs,
            targets,
            task.ComputeLoss,
            LayerFunctions(
                do_eval=False,
                trains=True,
                batch_dim=p.batch_dim,
                state_dtype=p.state_dtype,
                num_rows=num_rows,
                loss_fn=task.ComputeLoss,
            ),
            input_gradients=False,
        )
        how = compilation(p.jit_compile, _DEVICE)
        stage_calls = assembly.stage_calls([how] * len(assembly.calls))
        shapes = map_present(lambda x: tuple(x.shape), inputs)
        kinds = [self._kinds[kind] for kind in self._order]
        numbers = [_num_trained(cell) for cell in task.pipeline.cells]
        counted = ModelCosts(
            num_rows,
            pipeline_costs([], kinds, *shapes).cells.flops,
            [numbers[kind] for kind in self._order],
            [call_bytes(call, recomputed=True, num_totals=1) for call in stage_calls],
            value_bytes(assembly.specs, assembly.inputs),
        )
        return TracedModel(counted, stage_calls, assembly.specs)


def _distinct(
    cells: Sequence[InstantiableParams],
) -> tuple[list[InstantiableParams], list[int]]:
    """Cells that differ in more than their names; for each cell which of them it is.

    The last stands for itself alone: behind it there is no other.
    """
    kinds: dict[Any, int] = {}
    distinct: list[InstantiableParams] = []
    order = []
    for i, cell in enumerate(cells):
        key = cell.Copy().Set(name="").ToText(), i == len(cells) - 1
        if key not in kinds:
            kinds[key] = len(distinct)
            distinct.append(cell)
        order.append(kinds[key])
    return distinct, order


def _task_of(task_params: InstantiableParams, cells: Sequence[Any]) -> Any:
    p = task_params.Copy().Set(name="planned")
    p.pipeline.Set(
        cell_tpl=list(cells),
        splits=1,
        stages_per_device=1,
        num_replicas=1,
        num_parts=None,
        schedule="gpipe",
        recompute=None,
        devices=None,
        cell_costs=None,
        memory_limit=None,
        input_shapes=None,
        input_dtypes=None,
        tied={},
    )
    return p.Instantiate()


def _fed(task: Any, batch_spec: NestedMap, num_rows: int) -> tuple[Any, Any]:
    """Specs of the first cell's inputs, and of the loss's targets."""
    batch = tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, [num_rows, *spec.shape[1:]]),
        batch_spec,
    )
    inputs = tuple(task.PipelineInputs(batch))
    return map_present(spec_of, inputs), map_present(spec_of, task.LossTargets(batch))


def _num_trained(layer: Any) -> int:
    return sum(v.shape.num_elements() for v in present(layer.vars) if v.trainable)
