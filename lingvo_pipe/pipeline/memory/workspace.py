"""The workspace of a layer: its temporary tensors while it runs, from its graphs."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.pipeline.memory.call_bytes import Workspace
from lingvo_pipe.pipeline.tracing.phases import Function, Phases
from lingvo_pipe.pipeline.tracing.views import VIEWS, origin

# Operations whose output cannot reuse an input's memory: they read inputs to the end.
_NOT_IN_PLACE = re.compile("MatMul|Einsum|Conv|Pool|Transpose|Gather|Reverse")


def workspace_of(phases: Phases) -> Workspace:
    """Returns the workspace of a layer.

    Assumes that operations run in the graph's order. A tensor lives from its operation
    until its last use. An output that reuses an input's memory, such as a sum, counts
    as 0.
    """
    shared = [*phases.cast_weights, *phases.call_context]
    seeds, late = phases.output_gradients, phases.weight_residuals
    backward_specs = [*shared, *phases.residuals, *seeds]
    by_seeds = functools.partial(_bytes_by_operation, live=num_bytes(seeds))
    return Workspace(
        forward=_bytes_by_operation(
            phases.forward(stashes=True), [*shared, *phases.args], len(phases.residuals)
        ),
        backward=by_seeds(phases.backward(), backward_specs, 0),
        input_backward=by_seeds(phases.input_backward(), backward_specs, len(late)),
        weight_backward=_bytes_by_operation(
            phases.weight_backward(), [*shared, *late], 0
        ),
    )


def num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
    """Returns the bytes of tensors. A tensor of unknown size counts as 0."""
    return sum((spec.shape.num_elements() or 0) * spec.dtype.size for spec in specs)


def _bytes_by_operation(
    function: Function,
    specs: Sequence[tf.TensorSpec],
    num_residuals: int,
    live: int = 0,
) -> tuple[int, ...]:
    """Returns the bytes of tensors during each operation of a function's graph.

    The last `num_residuals` outputs are residuals and do not count. `live` are the
    bytes of tensors that exist throughout, and count.
    """
    graph = FuncGraph("phase")  # Quicker than a tf.function, which is made to run.
    with graph.as_default():
        outputs = function(*[tf.compat.v1.placeholder(x.dtype, x.shape) for x in specs])
    operations = [op for op in graph.get_operations() if op.type not in VIEWS]
    uses = Counter(origin(x).ref() for op in operations for x in op.inputs)
    uses.update(origin(x).ref() for x in outputs)  # They live until the end.
    last = outputs[len(outputs) - num_residuals :]
    residuals = {x.ref(): x for x in map(origin, last) if _is_allocated(x)}
    live -= _bytes(residuals.values())
    bytes_by_operation = []
    for op in operations:
        freed = []
        for x in map(origin, op.inputs):
            uses[x.ref()] -= 1
            if not uses[x.ref()] and _is_allocated(x):
                freed.append(x)
        if not _is_constant(op):
            bytes_by_operation.append(live + _new_bytes(op, freed))
        live_outputs = [x for x in op.outputs if uses[x.ref()] and _is_allocated(x)]
        live += _bytes(live_outputs) - _bytes(freed)
    return tuple(bytes_by_operation) or (0,)


def _is_constant(op: tf.Operation) -> bool:
    """Returns whether an operation is a placeholder, constant, or constant Fill."""
    is_filled = op.type == "Fill" and all(x.op.type == "Const" for x in op.inputs)
    return is_filled or op.type in ("Placeholder", "Const")


def _is_allocated(x: tf.Tensor) -> bool:
    """Returns whether a tensor takes memory on the device.

    Scalar and integer constants, such as sizes, are on the host.
    """
    if x.op.type == "Const":
        return x.dtype.is_floating and x.shape.rank > 0
    return x.op.type != "Placeholder"


def _new_bytes(op: tf.Operation, freed: Sequence[tf.Tensor]) -> int:
    """Returns the bytes of outputs that do not reuse the memory of a freed input."""
    new_bytes = _bytes(op.outputs)
    if _NOT_IN_PLACE.search(op.type):
        return new_bytes
    reusable = [spec_of(x) for x in freed]
    for x in op.outputs:
        if spec_of(x) in reusable:
            reusable.remove(spec_of(x))
            new_bytes -= _bytes([x])
    return new_bytes


def _bytes(tensors: Iterable[tf.Tensor]) -> int:
    return num_bytes(
        tf.TensorSpec(x.shape, x.dtype)
        for x in tensors
        if x.shape.rank is not None and x.dtype not in (tf.variant, tf.resource)
    )
