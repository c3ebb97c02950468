"""The workspace of a layer: its temporary tensors while it runs, from its graphs."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import tensorflow as tf

from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.pipeline.memory.call_bytes import Workspace
from lingvo_pipe.pipeline.tracing.phases import Part, Phases
from lingvo_pipe.pipeline.tracing.views import VIEWS, origin

# Operations whose output cannot reuse an input's memory: they read inputs to the end.
_NOT_IN_PLACE = re.compile("MatMul|Einsum|Conv|Pool|Transpose|Gather|Reverse")


def workspace_of(phases: Phases) -> Workspace:
    """Returns the workspace of a layer.

    Assumes that operations run in the traced graph's order. A tensor lives from its
    operation until its last use. An output that reuses an input's memory, such as a
    sum, counts as 0.
    """
    seeds = num_bytes(phases.output_gradients)
    forward, backward, input_backward, weight_backward = phases.parts
    num_residuals, num_late = len(phases.residuals), len(phases.weight_residuals)
    count = bytes_when_compiled if phases.compilation.by_xla else bytes_by_operation
    return Workspace(
        forward=count(forward, num_residuals),
        backward=count(backward, 0, seeds),
        input_backward=count(input_backward, num_late, seeds),
        weight_backward=count(weight_backward, 0),
    )


def num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
    """Returns the bytes of tensors. A tensor of unknown size counts as 0."""
    return sum((spec.shape.num_elements() or 0) * spec.dtype.size for spec in specs)


def bytes_when_compiled(
    part: Part, num_residuals: int, live: int = 0
) -> tuple[int, ...]:
    """Returns the bytes of the results of a part that XLA compiles.

    What XLA allocates within is not known. For the arguments see `bytes_by_operation`.
    """
    results = part.results[: len(part.results) - num_residuals]
    return (live + _bytes(results),)


def bytes_by_operation(
    part: Part, num_residuals: int, live: int = 0
) -> tuple[int, ...]:
    """Returns the bytes of tensors during each operation of a part.

    The last `num_residuals` results are residuals and do not count. `live` are the
    bytes of tensors that exist throughout, and count. What the operations do not
    compute does not count.
    """
    operations = [op for op in part.operations if op.type not in VIEWS]
    computed = set(operations)
    results = [x for x in map(origin, part.results) if x.op in computed]
    uses = Counter(origin(x).ref() for op in operations for x in op.inputs)
    uses.update(x.ref() for x in results)  # They live until the end.
    last = part.results[len(part.results) - num_residuals :]
    residuals = {x.ref(): x for x in map(origin, last) if _is_allocated(x, computed)}
    live -= _bytes(residuals.values())
    moments = []
    for op in operations:
        freed = []
        for x in map(origin, op.inputs):
            uses[x.ref()] -= 1
            if not uses[x.ref()] and _is_allocated(x, computed):
                freed.append(x)
        if not _is_constant(op):
            moments.append(live + _new_bytes(op, freed))
        live_outputs = [
            x for x in op.outputs if uses[x.ref()] and _is_allocated(x, computed)
        ]
        live += _bytes(live_outputs) - _bytes(freed)
    return tuple(moments) or (0,)


def _is_constant(op: tf.Operation) -> bool:
    is_filled = op.type == "Fill" and all(x.op.type == "Const" for x in op.inputs)
    return is_filled or op.type == "Const"


def _is_allocated(x: tf.Tensor, computed: Collection[tf.Operation]) -> bool:
    """Returns whether one of the `computed` operations allocates a tensor.

    Scalar and integer constants, such as sizes, are on the host.
    """
    if x.op.type == "Const" and not (x.dtype.is_floating and x.shape.rank > 0):
        return False
    return x.op in computed


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
