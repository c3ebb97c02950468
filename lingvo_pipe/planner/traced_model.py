"""A model traced for a micro-batch, with no weight allocated: what the planner counts.

Layers that are alike are made and traced once, so a thousand of them take no longer
than a handful. Tensors are those of the traced graph: what a backward pass needs is
what it reads.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, spec_of
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.peak_memory import call_bytes, num_bytes, value_bytes
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import Surroundings
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.working_bytes import working_bytes
from lingvo_pipe.training.exponential_moving_average import make_averages
from lingvo_pipe.training.learner import Learner
from lingvo_pipe.training.local_params import BACKPROPAGATION

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


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

    def __init__(
        self,
        task_params: InstantiableParams,
        batch_spec: NestedMap,
        device: str = _CPU,
    ):
        """Initialises the tracer.

        Args:
            task_params: of a BaseTask.
            batch_spec: of a batch of its input, `[B, ...]`.
            device: full name of where the model is to run: whether it needs XLA, the
                cells are compiled.

        Raises:
            ValueError: if its pipeline has layers before its cells, or its blocks have
                losses of their own.
        """
        _check_can_be_planned(task_params)
        self._pipeline, self._batch_spec = task_params.pipeline, batch_spec
        self._device = device
        self._kinds, self._order = _distinct(task_params.pipeline)
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._task = _task_of(task_params, self._kinds)
            self._kept = _kept_of(self._task)
        cells = self._task.pipeline.cells
        self._theta = [tf.nest.map_structure(spec_of, cell.vars) for cell in cells]

    @property
    def num_cells(self) -> int:
        """L."""
        return len(self._order)

    @property
    def num_parameters(self) -> int:
        """Those that are trained."""
        return sum(self._kept[kind].num_parameters for kind in self._order)

    @property
    def num_variables(self) -> int:
        """Those that are trained."""
        return sum(self._kept[kind].num_variables for kind in self._order)

    @property
    def trained_paths(self) -> list[str]:
        """The paths of those that are trained, of cells that are alike those of one."""
        return list(self._task.TrainedVariables())

    @property
    def train_params(self) -> Params:
        """The task's, of how it is trained."""
        train: Params = self._task.params.train
        return train

    @property
    def fprop_dtype(self) -> str:
        """The name of the dtype that cells compute in."""
        return str(self._task.fprop_dtype.name)

    def trace(self, num_rows: int, counts_flops: bool = True) -> TracedModel:
        """The model for micro-batches of b rows.

        Args:
            num_rows: b.
            counts_flops: whether these are counted, by the cells' FPropMeta; else they
                are 0.

        Raises:
            ValueError: if a cell can't be traced, or has no FPropMeta.
        """
        p, task = self._pipeline, self._task
        with self._graph.as_default():
            inputs, targets = _fed(task, self._batch_spec, num_rows)
        assembly = Assembly(
            [task.pipeline.cells[kind] for kind in self._order],
            [self._theta[kind] for kind in self._order],
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
        by_xla = p.jit_compile or must_compile(self._device)
        how = compilation(by_xla, self._device)
        stage_calls = assembly.stage_calls([how] * len(assembly.calls))
        counted = ModelCosts(
            num_rows,
            self._flops(inputs) if counts_flops else [0] * self.num_cells,
            [self._kept[kind].num_parameters for kind in self._order],
            [self._kept[kind].slot_bytes for kind in self._order],
            [call_bytes(call, recomputed=True, num_totals=1) for call in stage_calls],
            _at_work(stage_calls),
            value_bytes(assembly.specs, assembly.inputs),
        )
        return TracedModel(counted, stage_calls, assembly.specs)

    def _flops(self, inputs: Any) -> list[int]:
        """Of each cell's forward pass."""
        shapes = map_present(lambda x: tuple(x.shape), inputs)
        kinds = [self._kinds[kind] for kind in self._order]
        return pipeline_costs([], kinds, *shapes).cells.flops


def _check_can_be_planned(task_params: InstantiableParams) -> None:
    if task_params.pipeline.before_tpl:
        raise ValueError(
            "What is planned are the stages, and with before_tpl a part of the "
            "work is done before them; task.pipeline.before_tpl has "
            f"{len(task_params.pipeline.before_tpl)} layers. Put them into "
            "cell_tpl, or choose how to run the model by yourself."
        )
    if task_params.local.scheme != BACKPROPAGATION:
        raise ValueError(
            "What is planned is one model with one loss: blocks with losses of their "
            f"own are not planned; task.local.scheme is {task_params.local.scheme!r}. "
            f"Set it to {BACKPROPAGATION!r}, or choose how to run the model by "
            "yourself, with numbers and names in task.pipeline."
        )


def _distinct(
    pipeline: InstantiableParams,
) -> tuple[list[InstantiableParams], list[int]]:
    """Cells that differ in more than their names; for each cell which of them it is.

    The last stands for itself alone, for behind it there is no other; so do those with
    weights that are another's. Each has the name that it has in the whole pipeline, by
    which weights are tied.
    """
    cells = pipeline.cell_tpl
    tied = {path.split("/")[0] for path in (*pipeline.tied, *pipeline.tied.values())}
    kinds: dict[Any, int] = {}
    distinct: list[InstantiableParams] = []
    order = []
    for i, cell in enumerate(cells):
        name = cell.name or f"cells_{i}"
        is_alone = i == len(cells) - 1 or name in tied
        key = cell.Copy().Set(name="").ToText(), i if is_alone else None
        if key not in kinds:
            kinds[key] = len(distinct)
            distinct.append(cell.Copy().Set(name=name))
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


def _at_work(calls: Sequence[StageCall]) -> list[tuple[int, ...]]:
    known: dict[PackedPhases, tuple[int, ...]] = {}
    for call in calls:
        if call.functions not in known:
            known[call.functions] = working_bytes(call.functions.phases)
    return [known[call.functions] for call in calls]


class _Kept(NamedTuple):
    """Of a cell's own weights, those of another cell's left out."""

    num_parameters: int
    num_variables: int
    slot_bytes: int


def _kept_of(task: Any) -> list[_Kept]:
    """For each cell the parameters that are trained, and what is kept for them."""
    p, trained, found = task.params.train, task.TrainedVariables(), []
    left = dict(trained)
    for cell in task.pipeline.cells:
        every = cell.VariablePaths()
        own = {path: left.pop(path) for path in every if path in left}
        slots: list[tf.Variable] = []
        if own:
            learner = Learner(p, own, list(trained))
            slots += [v for _, v in learner.OwnVariables() if v.shape.rank]
        averages = make_averages(p, own, {**every, **own})
        if averages is not None:
            slots += averages.State().values()
        numbers = [v.shape.num_elements() for v in own.values()]
        found.append(_Kept(sum(numbers), len(numbers), num_bytes(slots)))
    return found
