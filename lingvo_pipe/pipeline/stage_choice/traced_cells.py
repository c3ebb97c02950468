"""Cells traced before the stages are chosen: their bytes, outputs and functions.

A copy of the cells is created in a separate graph, where variables take no memory. The
copy is traced as for a training step of full micro-batches.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present, present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import row_dim
from lingvo_pipe.layers.core.model_size import LayerSize, layer_sizes
from lingvo_pipe.layers.slice_layers import as_equal_slices
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.prologue import (
    PrologueFunction,
    PrologueInputs,
    prologue_spec,
)
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer
from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, SharedWeight, Workspace
from lingvo_pipe.pipeline.memory.peak_memory import (
    bytes_of_calls,
    shared_weights,
    value_bytes,
)
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.pipeline.splitting.cell_costs import boundary_bytes
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import CallContext
from lingvo_pipe.tshape import Shape, as_specs

# Params that a copy of the pipeline has while it is traced.
SINGLE_STAGE = {
    **dict.fromkeys(("splits", "stages_per_device", "num_replicas"), 1),
    **dict.fromkeys(("num_batch_shards", "recompute", "offload", "devices")),
    **dict.fromkeys(
        ("cell_costs", "memory_limit", "input_shapes", "input_dtypes", "slices")
    ),
    "schedule": "gpipe",
}
# Specs of the context of a call on a full micro-batch.
CONTEXT_SPECS = CallContext(
    path_hash=tf.TensorSpec([], tf.uint64),
    step=tf.TensorSpec([], tf.int64),
    first_example=tf.TensorSpec([], tf.int64),
    loss_scale=tf.TensorSpec([], tf.float64),
)
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class TracedCells:
    """The traced cells of a pipeline, and the specs of the values between the cells.

    The specs are for one micro-batch, by the values' numbers. `inputs` are the numbers
    of the values that the first cell takes. `outputs` are those that the last cell
    returns. `prologue_bytes` are what the prologue needs on the first device.
    """

    layers: list[PlacedLayer]
    specs: Mapping[int, tf.TensorSpec]
    inputs: list[int]
    outputs: list[int]
    prologue_bytes: int
    shared_weights: Sequence[SharedWeight]

    @property
    def traffic(self) -> list[int]:
        """Bytes that cross the boundary after each cell, for one micro-batch."""
        return boundary_bytes(
            [(layer.used, layer.values.made) for layer in self.layers],
            self.outputs,
            value_bytes(self.specs, self.inputs),
        )

    def memory(
        self,
        recomputed: Sequence[bool],
        num_accumulators: int,
        offloaded: Sequence[bool] = (),
    ) -> StageMemory:
        """Returns the memory of the cells, and of a loss after them.

        The loss is not known before a step runs. It is assumed to stash as many bytes
        as its inputs have, as the softmax cross entropy does, and to return their
        gradients. So are blocks' losses. See `bytes_of_calls` for the arguments.
        """
        cells = bytes_of_calls(self.layers, recomputed, num_accumulators, offloaded)
        output_bytes = num_bytes(self.specs[v] for v in self.outputs)
        loss = CallBytes(
            weights=0,
            accumulators=0,
            residuals=output_bytes,
            weight_residuals=0,
            recomputed=recomputed[-1],
            used=self.outputs,
            made=(),
            offloaded=cells[-1].offloaded,
            workspace=Workspace(
                backward=(output_bytes,), input_backward=(output_bytes,)
            ),
        )
        values = value_bytes(self.specs, self.inputs)
        return StageMemory([*cells, loss], values, shared_weights=self.shared_weights)


def trace_cells(p: InstantiableParams, device: str) -> TracedCells:
    """Traces a pipeline's cells for its `input_shapes`, as they would run on `device`.

    Raises:
        ValueError: if a cell can't be traced.
    """
    with tf.Graph().as_default():
        single_stage = p.Copy().Set(**SINGLE_STAGE).Set(devices=[device])
        single_stage.cell_tpl = list(map(as_equal_slices, p.cell_tpl))
        pipeline = single_stage.Instantiate()
    inputs = _input_specs(p, pipeline.fprop_dtype)
    if not present(inputs):
        raise UserValueError(
            path="input_shapes", expected="a shape for some input", got=p.input_shapes
        )
    prologue_bytes = 0
    if p.before_tpl:
        context = CONTEXT_SPECS._replace(path_hash=None, loss_scale=None)
        spec = prologue_spec(pipeline.before, pipeline.spec)
        prologue = PrologueFunction(
            dataclasses.replace(spec, trains=True),
            PrologueInputs(_thetas(pipeline.before), context, inputs),
        )
        prologue_bytes = prologue.num_bytes
        inputs = map_present(
            lambda x: _with_rows(p, x, lambda n: n // p.num_micro_batches),
            prologue.output_specs,
        )
    spec = dataclasses.replace(
        pipeline.spec, trains=True, input_gradients=bool(p.before_tpl)
    )
    thetas = _thetas(pipeline.cells)
    traced = spec.trace_layers(thetas, CONTEXT_SPECS, inputs, compute_loss=_exponents)
    compiled = compilation(spec.jit_compile[0], device)
    return TracedCells(
        layers=traced.placed_layers([compiled] * len(pipeline.cells)),
        specs=traced.specs,
        inputs=traced.inputs,
        outputs=present(traced.outputs),
        prologue_bytes=prologue_bytes,
        shared_weights=shared_weights(pipeline.cells, p.num_replicas),
    )


def _exponents(outputs: Any) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Stands in for the loss of a block: stashes as many bytes as its inputs have."""
    floats = [x for x in present(outputs) if x.dtype.is_floating]
    terms = [tf.cast(tf.reduce_mean(tf.exp(x)), tf.float32) for x in floats]
    return {"loss": (sum(terms, tf.constant(0.0)), tf.constant(1.0))}


def pipeline_sizes(
    p: InstantiableParams, *inputs: Any
) -> tuple[list[LayerSize], list[LayerSize]]:
    """Returns the sizes of a pipeline's prologue and cells (see `layer_sizes`)."""
    before = sizes_in_pipeline(p, "before_tpl", p.before_tpl, *inputs)
    inputs = before[-1].outputs if before else inputs
    cells = list(map(as_equal_slices, p.cell_tpl))
    return before, sizes_in_pipeline(p, "cell_tpl", cells, *inputs)


def sizes_in_pipeline(
    p: InstantiableParams,
    path: str,
    layers: Sequence[InstantiableParams],
    *inputs: Any,
) -> list[LayerSize]:
    """Returns the sizes of layers that inherit a pipeline's params (`layer_sizes`)."""
    inherited = {id(x): p.cls.CopyBaseParams(p, x.Copy()) for x in layers}
    return layer_sizes(
        [inherited[id(x)] for x in layers], *inputs, path=path, batch_dim=p.batch_dim
    )


def sizes_for_micro_batch(
    p: InstantiableParams,
) -> tuple[list[LayerSize], list[LayerSize]]:
    """Returns the sizes of a pipeline's prologue and cells for its `input_shapes`."""
    return pipeline_sizes(p, *_input_shapes(p))


def outside_graphs(function: Callable[..., Result], *args: Any) -> Result:
    """Returns the result of a function, called in another thread, outside any graph."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(function, *args).result()


def _thetas(layers: Sequence[Any]) -> list[Any]:
    return [tf.nest.map_structure(spec_of, layer.vars) for layer in layers]


def _input_shapes(p: InstantiableParams) -> list[Any]:
    dtypes = p.input_dtypes or [None] * len(p.input_shapes)

    def shape(value: Any, dtype: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            by_key = _dtypes_of_map(value, dtype)
            return NestedMap({k: shape(x, by_key.get(k)) for k, x in value.items()})
        if not isinstance(value, Iterable) or not all(map(is_count, value)):
            raise UserValueError(
                path="input_shapes",
                expected="tuples of positive integers such as (8, 32), a micro-batch's",
                got=value,
            )
        return Shape(value, None if dtype is None else tf.as_dtype(dtype))

    return list(map(shape, p.input_shapes, dtypes))


def _input_specs(p: InstantiableParams, default: tf.DType) -> tuple:
    """Returns specs of a mini-batch if there is a prologue, else of a micro-batch."""
    factor = p.num_micro_batches if p.before_tpl else 1
    specs = tuple(as_specs(_input_shapes(p), default))
    return map_present(lambda x: _with_rows(p, x, lambda n: n * factor), specs)


def _dtypes_of_map(shapes: Mapping[str, Any], dtypes: Any) -> Mapping[str, Any]:
    if dtypes is None:
        return {}
    if not isinstance(dtypes, Mapping) or not set(dtypes) <= set(shapes):
        raise UserValueError(
            path="input_dtypes",
            expected=f"None, or a map with keys of the inputs, {sorted(shapes)}",
            got=dtypes,
            hint="Write {'words': 'int32'}, for instance.",
        )
    return dtypes


def _with_rows(
    p: InstantiableParams, x: tf.TensorSpec, change: Callable[[int], int]
) -> tf.TensorSpec:
    sizes = x.shape.as_list()
    if sizes:
        dim = row_dim(len(sizes), p.batch_dim)
        sizes[dim] = change(sizes[dim])
    return tf.TensorSpec(sizes, x.dtype)
