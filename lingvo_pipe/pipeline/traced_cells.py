"""Cells traced before there are stages: what they take, hand on, and can be timed by.

The cells are made once more for it, in a graph of their own where their variables take
no memory, and traced as for a training step of full micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present, spec_of
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.before_function import BeforeFunction, Given
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.peak_memory import call_bytes, num_bytes, value_bytes
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.splitting.cell_costs import as_shape
from lingvo_pipe.pipeline.stage_memory import CallBytes, StageMemory
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import Surroundings

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class TracedCells:
    """What is known of cells without a pipeline.

    Attributes:
        calls: of the cells, in order.
        specs: of the values between them, by number, for one micro-batch.
        inputs: values that are the first cell's inputs.
        outputs: values that the last cell returns.
        before_bytes: what the layers before take on the first device.
    """

    calls: list[StageCall]
    specs: Mapping[int, tf.TensorSpec]
    inputs: list[int]
    outputs: list[int]
    before_bytes: int

    @property
    def traffic(self) -> list[int]:
        """For each cell the bytes that it and those in front make for those behind."""
        crossing: list[int] = []
        used = set(self.outputs)
        for call in reversed(self.calls):
            crossing.append(num_bytes(self.specs[v] for v in used - set(self.inputs)))
            used.difference_update(call.call.made)
            used.update(call.used)
        return crossing[::-1]

    def memory(self, recomputed: Sequence[bool], num_totals: int) -> StageMemory:
        """What the cells take, and behind them a loss.

        The loss is known when a step runs, and not before. It is taken to keep as much
        as it is given, as the softmax cross entropy does.

        Args:
            recomputed: for each cell whether it is where the schedule recomputes.
            num_totals: see `call_bytes`.
        """
        cells = [
            call_bytes(call, again, num_totals)
            for call, again in zip(self.calls, recomputed, strict=True)
        ]
        loss = CallBytes(
            weights=0,
            totals=0,
            residuals=num_bytes(self.specs[v] for v in self.outputs),
            weight_residuals=0,
            recomputed=recomputed[-1],
            used=self.outputs,
            made=(),
        )
        return StageMemory([*cells, loss], value_bytes(self.specs, self.inputs))


def trace_cells(p: InstantiableParams, device: str) -> TracedCells:
    """Traces the cells of a pipeline.

    Args:
        p: params of a PipeliningLayer, with its `input_shapes`.
        device: full name; whether it needs XLA, the cells are compiled.

    Raises:
        ValueError: if a cell can't be traced.
    """
    alone = p.Copy().Set(
        splits=1,
        stages_per_device=1,
        num_replicas=1,
        num_parts=None,
        devices=[device],
        schedule="gpipe",
        recompute=None,
        cell_costs=None,
        input_shapes=None,
        input_dtypes=None,
        memory_limit=None,
    )
    with tf.Graph().as_default():
        pipeline = alone.Instantiate()
    inputs = _input_specs(p, pipeline.fprop_dtype)
    if not present(inputs):
        raise ValueError(
            "There must be a shape for each of the first layer's inputs; there is "
            "none. Set input_shapes."
        )
    before_bytes = 0
    if p.before_tpl:
        before = _before(p, pipeline, inputs, device)
        inputs, before_bytes = _micro_batch(p, before.output_specs), before.num_bytes
    first = present(inputs)[0]
    assembly = Assembly(
        pipeline.cells,
        _thetas(pipeline.cells),
        Surroundings(
            path_hash=tf.TensorSpec([], tf.uint64),
            step=tf.TensorSpec([], tf.int64),
            first_example=tf.TensorSpec([], tf.int64),
            loss_scale=tf.TensorSpec([], tf.float64),
        ),
        inputs,
        None,
        None,
        LayerFunctions(
            do_eval=False,
            trains=True,
            batch_dim=p.batch_dim,
            state_dtype=p.state_dtype,
            num_rows=first.shape[row_dim(first.shape.rank, p.batch_dim)],
        ),
        input_gradients=bool(p.before_tpl),
    )
    compiled = compilation(p.jit_compile or must_compile(device), device)
    return TracedCells(
        calls=assembly.stage_calls([compiled] * len(pipeline.cells)),
        specs=assembly.specs,
        inputs=assembly.inputs,
        outputs=present(assembly.outputs),
        before_bytes=before_bytes,
    )


def outside_graphs(function: Callable[..., Result], *args: Any) -> Result:
    """Calls a function where operations run at once, whatever graph is being built.

    That is in a thread of its own.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(function, *args).result()


def _before(
    p: InstantiableParams, pipeline: Any, inputs: Any, device: str
) -> BeforeFunction:
    """The layers before, traced for a mini-batch of the given micro-batches."""
    plan = Plan(
        layers=pipeline.before,
        ends=[len(pipeline.before)],
        replicas=[[device]],
        recomputed=[False] * len(pipeline.before),
        jit_compile=[p.jit_compile or must_compile(device)],
        name=pipeline.path,
        batch_dim=p.batch_dim,
        state_dtype=p.state_dtype,
        trains=True,
    )
    told = Surroundings(
        step=tf.TensorSpec([], tf.int64), first_example=tf.TensorSpec([], tf.int64)
    )
    return BeforeFunction(plan, Given(_thetas(pipeline.before), told, inputs))


def _thetas(layers: Sequence[Any]) -> list[Any]:
    return [tf.nest.map_structure(spec_of, layer.vars) for layer in layers]


def _input_specs(p: InstantiableParams, default: tf.DType) -> tuple:
    """Specs of the first layer's inputs: of a micro-batch, or a mini-batch of these."""
    dtypes = p.input_dtypes or [None] * len(p.input_shapes)
    rows = p.num_micro_batches if p.before_tpl else 1

    def spec(shape: Any, dtype: Any) -> Any:
        if shape is None:
            return None
        if isinstance(shape, Mapping):
            of_key = _dtypes_of(shape, dtype)
            return NestedMap({k: spec(v, of_key.get(k)) for k, v in shape.items()})
        return _with_rows(p, tf.TensorSpec(shape, dtype or default), lambda n: n * rows)

    return tuple(map(spec, map(as_shape, p.input_shapes), dtypes))


def _dtypes_of(shapes: Mapping[str, Any], dtypes: Any) -> Mapping[str, Any]:
    """The dtypes of a map of inputs, those that have one of their own.

    Raises:
        ValueError: if they are no map, or of inputs that are none.
    """
    is_known = isinstance(dtypes, Mapping) and set(dtypes) <= set(shapes)
    if dtypes is not None and not is_known:
        raise ValueError(
            "The dtypes of a map of shapes must be None, or a map of which each key is "
            f"one of {sorted(shapes)}; got {dtypes!r}. Write {{'words': 'int32'}}, for "
            "instance."
        )
    return dtypes or {}


def _micro_batch(p: InstantiableParams, specs: Any) -> Any:
    """Specs of a mini-batch's micro-batches."""
    return map_present(
        lambda x: _with_rows(p, x, lambda n: n // p.num_micro_batches), specs
    )


def _with_rows(
    p: InstantiableParams, x: tf.TensorSpec, change: Callable[[int], int]
) -> tf.TensorSpec:
    sizes = x.shape.as_list()
    if sizes:
        dim = row_dim(len(sizes), p.batch_dim)
        sizes[dim] = change(sizes[dim])
    return tf.TensorSpec(sizes, x.dtype)
