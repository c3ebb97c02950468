"""A model traced for a micro-batch, without allocating any weight.

Equal layers are created and traced once, so a thousand take no longer than a few. The
residuals of a backward pass are the tensors that it reads in the traced graph.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop

from lingvo_pipe.core.activity import set_detail
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.slice_layers import as_equal_slices
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer
from lingvo_pipe.pipeline.memory.peak_memory import (
    bytes_of_calls,
    shared_weights,
    value_bytes,
)
from lingvo_pipe.pipeline.memory.workspace import Rows, num_bytes
from lingvo_pipe.pipeline.slices import with_slices
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds, cell_costs
from lingvo_pipe.pipeline.stage_choice.traced_cells import CONTEXT_SPECS, SINGLE_STAGE
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.costs.model_costs import ModelCosts, Models, at_rows
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.training.optim.exponential_moving_average import make_averages
from lingvo_pipe.training.optim.learner import Learner
from lingvo_pipe.training.task.task_params import BACKPROPAGATION

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
# The planner traces a prime number of rows that divides no other dimension, and so
# knows the shapes for all others.
_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173)
_COUNTED_ROWS = (2, 3)


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model's costs, its cells and loss as layers, and specs of their values."""

    costs_of: Callable[[Rows], ModelCosts]
    layers: Sequence[PlacedLayer]
    specs: dict[int, tf.TensorSpec]

    @functools.cached_property
    def costs(self) -> ModelCosts:
        """The costs for the traced rows."""
        return self.costs_of(Rows())


class ModelTracer:
    """A tracer of a task's cells and loss, for micro-batches of any size.

    Args:
        task_params: params of the task; they are copied.
        batch_spec: specs of the task's batch, `[B, ...]`.
        device: a device's full name. Cells are compiled if it requires XLA.
        path: the pipeline's path in errors.

    Attributes:
        task_params, batch_spec: the arguments.
        num_cells, num_parameters: numbers of the whole model.
        fprop_dtype: the name of the dtype that the model computes in.

    Raises:
        UserValueError: if the pipeline has layers before its cells, or its blocks have
            losses of their own.
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
        self._distinct, self._order = _distinct_cells(task_params.pipeline)
        self._graph = tf.Graph()
        p = task_params.Copy().Set(name="planned")
        p.pipeline.Set(cell_tpl=list(self._distinct), **SINGLE_STAGE)
        with self._graph.as_default(), tf.variable_creator_scope(_without_value):
            self._task: Any = p.Instantiate()
            self._trained = _trained_by_cell(self._task)
        cells = self._task.pipeline.cells
        self._theta = [tf.nest.map_structure(spec_of, cell.vars) for cell in cells]

        trained = [self._trained[i] for i in self._order]
        self.num_cells = len(self._order)
        self.num_parameters = sum(weights.num_parameters for weights in trained)
        self.fprop_dtype = str(self._task.fprop_dtype.name)

    def trace(self, num_rows: int, counts_flops: bool = True) -> TracedModel:
        """Traces the model for micro-batches of b rows, and counts flops by FPropMeta.

        Raises:
            UserValueError: if a cell cannot be traced, or has no FPropMeta.
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
        traced = spec.trace_layers(
            thetas, CONTEXT_SPECS, inputs, targets, num_rows=num_rows
        )
        by_xla = self._pipeline.jit_compile or must_compile(self._device)
        compiled = compilation(by_xla, self._device)
        layers = traced.placed_layers([compiled] * len(traced.values))
        phases = [layer.functions.phases for layer in layers[:-1]]
        all_recomputed = [True] * len(layers)

        def costs_of(rows: Rows) -> ModelCosts:
            flops = [0] * self.num_cells
            if counts_flops:
                shapes = map_present(rows.shape, inputs)
                cells = [self._distinct[i] for i in self._order]
                flops = cell_costs(cells, *shapes).flops
            return ModelCosts(
                num_rows // rows.traced * rows.counted,
                flops,
                [self._trained[i].num_parameters for i in self._order],
                [self._trained[i].slot_bytes for i in self._order],
                bytes_of_calls(layers, all_recomputed, num_accumulators=1, rows=rows),
                value_bytes(traced.specs, traced.inputs, rows),
                shared_weights=shared_weights(spec.layers),
                weight_shares=[x.weight_share for x in phases],
                # The loss always needs the last cell's outputs.
                output_shares=[*(x.output_share for x in phases[:-1]), 0.0],
            )

        return TracedModel(costs_of, layers, traced.specs)

    def prime(self) -> int:
        """Returns a prime number of rows that no other dimension is a multiple of.

        Dimensions are of weights and examples, the latter also with one more or less,
        and halved several times, as convolutions do.
        """
        weights = {n for x in tf.nest.flatten(self._theta) for n in x.shape}
        examples = {n for x in tf.nest.flatten(self.batch_spec) for n in x.shape[1:]}
        near = {n + i for n in examples if n for i in (-1, 0, 1)}
        halves = {-(-n >> i) for n in near for i in range(8)}
        halves |= {n >> i for n in near for i in range(8)}
        dims = {n for n in weights | halves if n}
        return next((p for p in _PRIMES if all(n % p for n in dims)), 997)


def costs_by_rows(tracer: ModelTracer) -> Callable[[int], ModelCosts]:
    """Traces one size, and returns a function from a micro-batch's rows to costs."""
    prime = tracer.prime()
    set_detail("tracing cells")
    with _gradients_added_at_once():
        costs_of = tracer.trace(prime).costs_of
    a, b = (costs_of(Rows(prime, num_rows)) for num_rows in _COUNTED_ROWS)
    return functools.partial(at_rows, a, b)


@contextlib.contextmanager
def _gradients_added_at_once() -> Iterator[None]:
    """Makes tapes add up gradients at once, as for few rows, not when 128 MiB wait."""
    vspace = backprop._default_vspace
    without_sizes = vspace._replace(num_elements_fn=lambda _: 0)
    pywrap_tfe.TFE_Py_RegisterVSpace(without_sizes)
    try:
        yield
    finally:
        pywrap_tfe.TFE_Py_RegisterVSpace(vspace)


def flops_models(tracer: ModelTracer, device: DeviceModel, dtype: str) -> Models:
    """Returns costs and seconds by rows, for cells that compute in this dtype."""
    costs_of = costs_by_rows(tracer)

    @functools.cache
    def models(num_rows: int) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        costs = dataclasses.replace(costs_of(num_rows), in_place=device.in_place)
        return costs, flops_time(costs, device, dtype)

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
    pipeline: InstantiableParams,
) -> tuple[list[InstantiableParams], list[int]]:
    """Returns the cells that differ in more than names, and each cell's index there.

    The last cell, which no cell follows, and cells with tied weights have their own
    entries. Each entry has its name in the whole pipeline, by which weights are tied.
    """
    cells = pipeline.cell_tpl
    tied = {path.split("/")[0] for path in (*pipeline.tied, *pipeline.tied.values())}
    distinct: list[InstantiableParams] = []
    indices: dict[Any, int] = {}
    order = []
    for i, cell in enumerate(cells):
        name = cell.name or f"cells_{i}"
        is_unique = i == len(cells) - 1 or name in tied
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
    """Returns specs of the first cell's inputs and of the loss's targets."""
    batch = tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, [num_rows, *spec.shape[1:]]),
        batch_spec,
    )
    inputs = tuple(task.PipelineInputs(batch))
    return map_present(spec_of, inputs), map_present(spec_of, task.LossTargets(batch))


class _TrainedWeights(NamedTuple):
    """The trained weights that a cell owns, and the bytes of their optimizer state."""

    num_parameters: int
    slot_bytes: int


def _trained_by_cell(task: Any) -> list[_TrainedWeights]:
    """Returns each cell's trained weights, without weights tied to another cell's."""
    p, trained, weights = task.params.train, task.TrainedVariables(), []
    left, by_kind = dict(trained), dict[Any, int]()

    def state_bytes(path: str, variable: tf.Variable, is_owned: bool) -> int:
        # Muon alone looks at names.
        name = path if p.optimizer.name == "Muon" else ""
        trains = is_owned, variable.trainable
        kind = tuple(variable.shape), variable.dtype, trains, name
        if kind not in by_kind:
            every = {path: variable}
            owned = every if is_owned else {}
            slots = Learner(p, owned, list(trained)).OwnVariables() if owned else []
            averages = make_averages(p, owned, every)
            state = [v for _, v in slots if v.shape.rank]
            state += averages.State().values() if averages is not None else []
            by_kind[kind] = num_bytes(state)
        return by_kind[kind]

    for cell in task.pipeline.cells:
        variables = cell.VariablePaths()
        owned = {path: left.pop(path) for path in variables if path in left}
        slots = sum(
            state_bytes(path, variable, path in owned)
            for path, variable in {**variables, **owned}.items()
        )
        number = sum(v.shape.num_elements() for v in owned.values())
        weights.append(_TrainedWeights(number, slots))
    return weights


def _without_value(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Creates a variable that is never initialized, if its shape is known."""
    if options["shape"] is not None:
        placeholder = tf.compat.v1.placeholder
        arguments = options["dtype"], options["shape"]
        options["initial_value"] = functools.partial(placeholder, *arguments)
    return create(**options)
