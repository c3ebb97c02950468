"""A model traced for a micro-batch, without allocating any weight.

Equal layers are created and traced once, so a thousand of them take no longer than a
few. The residuals of a backward pass are the tensors that it reads in the traced graph.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import forward_flops
from lingvo_pipe.layers.core.own_flops import OwnFlops
from lingvo_pipe.layers.slice_layers import as_equal_slices
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer
from lingvo_pipe.pipeline.memory.peak_memory import (
    bytes_of_calls,
    shared_weights,
    value_bytes,
)
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.pipeline.slices import with_slices
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.stage_choice.traced_cells import (
    CONTEXT_SPECS,
    SINGLE_STAGE,
)
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.costs.model_costs import ModelCosts, Models, at_rows
from lingvo_pipe.planner.resources.device_model import MEASURED, DeviceModel
from lingvo_pipe.training.optim.exponential_moving_average import (
    average_spec,
    averaged_variables,
)
from lingvo_pipe.training.optim.learner import Learner
from lingvo_pipe.training.task.task_params import BACKPROPAGATION

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
# The numbers of rows to trace. With one row, other dimensions of 1 would look like it.
_TRACED_ROWS = (2, 3)
# Params that choose variables by expressions for their paths.
_BY_PATH = (
    *("bprop_variable_filter", "bprop_variable_exclusion"),
    "l2_regularizer_scales",
)


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model's costs, its traced cells and loss, and the specs of values by number."""

    costs: ModelCosts
    layers: Sequence[PlacedLayer]
    specs: dict[int, tf.TensorSpec]


class ModelTracer:
    """A tracer of a task's cells and loss, for micro-batches of any size.

    `batch_spec` has the specs of the task's batch, `[B, ...]`. Cells are compiled if
    the `device` requires XLA. `path` names the pipeline in errors.

    Attributes:
        host_slot_bytes: bytes of each cell's slots on the host; [] without
            `offload_slots`.

    Raises:
        UserValueError: if the pipeline has a prologue or blocks with local losses.
    """

    def __init__(
        self,
        task_params: InstantiableParams,
        batch_spec: NestedMap,
        device: str = _CPU,
        path: str = "task.pipeline",
    ):
        _check_can_be_planned(task_params, path)
        self.task_params, self.batch_spec = task_params.Copy(), batch_spec
        task_params = task_params.Copy()
        pipeline = with_slices(task_params.pipeline, path)
        pipeline.cell_tpl = list(map(as_equal_slices, pipeline.cell_tpl))
        task_params.pipeline = pipeline
        self._pipeline, self._device = task_params.pipeline, device
        self._distinct, self._order = _distinct_cells(task_params)
        self._graph = tf.Graph()
        p = task_params.Copy().Set(name="task")  # As in expressions for paths.
        p.pipeline.Set(cell_tpl=list(self._distinct), **SINGLE_STAGE)
        with self._graph.as_default(), tf.variable_creator_scope(_undrawn):
            self._task: Any = p.Instantiate()
            self._trained = _trained_by_cell(self._task)
        cells = self._task.pipeline.cells
        self._theta = [tf.nest.map_structure(spec_of, cell.vars) for cell in cells]

        trained = [self._trained[i] for i in self._order]
        self.num_cells = len(self._order)
        self.num_parameters = sum(weights.num_parameters for weights in trained)
        self.host_slot_bytes: list[int] = []
        if self._task.params.train.offload_slots:
            self.host_slot_bytes = [weights.host_slot_bytes for weights in trained]
        self.fprop_dtype = str(self._task.fprop_dtype.name)

    def trace(self, num_rows: int, counts_flops: bool = True) -> TracedModel:
        """Traces the model for micro-batches of `num_rows` rows.

        Flops are 0 in the costs unless `counts_flops`.

        Raises:
            UserValueError: if a cell cannot be traced.
        """
        task = self._task
        with self._graph.as_default():
            inputs, targets = _micro_batch_specs(task, self.batch_spec, num_rows)
        spec = dataclasses.replace(
            task.pipeline.spec,
            layers=[task.pipeline.cells[i] for i in self._order],
            trains=True,
            loss_fn=task.ComputeLoss,
        )
        thetas = [self._theta[i] for i in self._order]
        own_flops = self._own_flops if counts_flops else None
        traced = spec.trace_layers(thetas, CONTEXT_SPECS, inputs, targets)
        by_xla = self._pipeline.jit_compile or must_compile(self._device)
        compiled = compilation(by_xla, self._device)
        layers = traced.placed_layers([compiled] * len(traced.values))
        flops = [0] * self.num_cells
        if own_flops is not None:
            flops = [
                forward_flops(type(cell), trace.forward, own_flops)
                for cell, trace in zip(spec.layers, traced.traces, strict=False)
            ]
        phases = [layer.functions.phases for layer in layers[:-1]]
        costs = ModelCosts(
            num_rows,
            flops,
            [self._trained[i].num_parameters for i in self._order],
            [self._trained[i].slot_bytes for i in self._order],
            bytes_of_calls(layers, [True] * len(layers), num_accumulators=1),
            value_bytes(traced.specs, traced.inputs),
            shared_weights=shared_weights(spec.layers),
            weight_shares=[x.weight_share for x in phases],
            # The loss always needs the last cell's outputs.
            output_shares=[*(x.output_share for x in phases[:-1]), 0.0],
            host_slot_bytes=self.host_slot_bytes,
        )
        return TracedModel(costs, layers, traced.specs)

    @functools.cached_property
    def _own_flops(self) -> OwnFlops:
        return OwnFlops(self._task.pipeline, with_root=False)


def costs_by_rows(tracer: ModelTracer) -> Callable[[int], ModelCosts]:
    """Returns a function from a micro-batch's rows to the costs of a model."""
    a, b = (tracer.trace(num_rows).costs for num_rows in _TRACED_ROWS)
    return functools.partial(at_rows, a, b)


def flops_models(tracer: ModelTracer, devices: Sequence[DeviceModel]) -> Models:
    """Returns a function from a micro-batch's rows to costs and to cells' seconds.

    The seconds are estimated from flops, for the first of the `devices`.

    Raises:
        UserValueError: if the task has slots on the host, and a link is not known.
    """
    for kind in devices:
        is_known = kind.host_bandwidth is not None or kind.name == MEASURED
        if tracer.host_slot_bytes and not is_known:
            raise UserValueError(
                path="task.train.offload_slots",
                expected=f"False with {kind.name}, whose link to the host is not known",
                got=True,
            )
    device = devices[0]
    costs_of = costs_by_rows(tracer)
    # The pipeline checks a memory_limit as if nothing was done in place.
    in_place = device.in_place and tracer.task_params.pipeline.memory_limit is None

    @functools.cache
    def models(num_rows: int) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        costs = dataclasses.replace(costs_of(num_rows), in_place=in_place)
        costs = costs.without_host if device.shares_memory else costs
        return costs, flops_time(costs, device, tracer.fprop_dtype)

    return models


def _check_can_be_planned(task_params: InstantiableParams, path: str) -> None:
    hint = f"Set numbers and names in {path} yourself."
    if task_params.pipeline.before_tpl:
        raise UserValueError(
            path=f"{path}.before_tpl",
            expected="no layers, because the planner only plans cells",
            got=Words(f"{len(task_params.pipeline.before_tpl)} layers"),
            hint=f"Put the layers into cell_tpl. Or: {hint}",
        )
    if task_params.local.scheme != BACKPROPAGATION:
        raise UserValueError(
            path="task.local.scheme",
            expected=f"{BACKPROPAGATION!r}, because the planner does not plan blocks "
            "with local losses",
            got=task_params.local.scheme,
            hint=hint,
        )


def _distinct_cells(
    task_params: InstantiableParams,
) -> tuple[list[InstantiableParams], list[int]]:
    """Returns the distinct cells, and for each cell the index of its distinct cell.

    Cells whose params differ only in the name count as one, which has the name of the
    first. The last cell, and each cell with tied weights, is always distinct. Names are
    the same as in the whole pipeline, because weights are tied by names. If weights are
    chosen by their paths, all cells are distinct.
    """
    pipeline, train = task_params.pipeline, task_params.train
    cells = pipeline.cell_tpl
    by_path = any(train.Get(name) for name in _BY_PATH)
    tied = {path.split("/")[0] for path in (*pipeline.tied, *pipeline.tied.values())}
    distinct: list[InstantiableParams] = []
    indices: dict[Any, int] = {}
    order = []
    for i, cell in enumerate(cells):
        name = cell.name or f"cells_{i}"
        is_unique = by_path or i == len(cells) - 1 or name in tied
        lines = cell.ToText().splitlines()  # A copy without a name would take longer.
        text = "\n".join(x for x in lines if not x.startswith("name : "))
        key = text, i if is_unique else None
        if key not in indices:
            indices[key] = len(distinct)
            distinct.append(cell.Copy().Set(name=name))
        order.append(indices[key])
    return distinct, order


def _micro_batch_specs(
    task: Any, batch_spec: NestedMap, num_rows: int
) -> tuple[Any, Any]:
    batch = tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, [num_rows, *spec.shape[1:]]),
        batch_spec,
    )
    inputs = tuple(task.PipelineInputs(batch))
    return map_present(spec_of, inputs), map_present(spec_of, task.LossTargets(batch))


class _TrainedWeights(NamedTuple):
    num_parameters: int
    slot_bytes: int  # On the device, with averages.
    host_slot_bytes: int


def _trained_by_cell(task: Any) -> list[_TrainedWeights]:
    """Returns each cell's trained weights. Tied weights count in the first cell."""
    p, trained, weights = task.params.train, task.TrainedVariables(), []
    left = dict(trained)
    bytes_of_slots: dict[tuple[tf.TensorShape, tf.DType], int] = {}
    for cell in task.pipeline.cells:
        variables = cell.VariablePaths()
        owned = {path: left.pop(path) for path in variables if path in left}
        averaged = averaged_variables(p, owned, {**variables, **owned})
        average_bytes = num_bytes(map(average_spec, averaged.values()))
        slot_bytes = 0
        for path, v in owned.items():
            kind = v.shape, v.dtype
            if kind not in bytes_of_slots:
                learner = Learner(p, {path: v}, list(trained))
                slots = [slot for _, slot in learner.OwnVariables()]
                bytes_of_slots[kind] = num_bytes(x for x in slots if x.shape.rank)
            slot_bytes += bytes_of_slots[kind]
        on_host = slot_bytes if p.offload_slots else 0
        on_device = average_bytes + slot_bytes - on_host
        number = sum(v.shape.num_elements() for v in owned.values())
        weights.append(_TrainedWeights(number, on_device, on_host))
    return weights


def _undrawn(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Creates a variable in a graph that never runs, without drawing its values."""
    shape, dtype = options.get("shape"), options.get("dtype")
    if shape is not None and dtype is not None:
        options["initial_value"] = lambda: tf.compat.v1.placeholder(dtype, shape)
    return create(**options)
