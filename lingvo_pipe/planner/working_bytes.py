"""What a layer's functions need while they run, from their graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.peak_memory import num_bytes
from lingvo_pipe.pipeline.tracing.phases import Function, Phases

# What they make is what they are given, seen otherwise.
_VIEWS = {
    "ExpandDims",
    "Identity",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
# What they make can't take the place of what they are given: they read it to the end.
_READ_TO_THE_END = re.compile("MatMul|Einsum|Conv|Pool|Transpose|Gather|Reverse")


def working_bytes(phases: Phases) -> tuple[int, ...]:
    """What a layer has for itself at each moment, beside what is kept.

    Operations run in the order of the graph, each as soon as what it needs is there; a
    tensor is there from when it is made until its last use. One that takes the place of
    another, as sums do, takes none of its own.

    Returns:
        Bytes during each operation of the forward pass, then of the backward pass.
    """
    told = [*phases.weights, *phases.surroundings]
    forward = _moments(
        phases.forward(keeps=True), [*told, *phases.args], len(phases.residuals)
    )
    backward = _moments(
        phases.backward(), [*told, *phases.residuals, *phases.output_gradients], 0
    )
    return (*forward, *backward)


def _moments(
    function: Function, specs: Sequence[tf.TensorSpec], num_kept: int
) -> list[int]:
    """Bytes during each operation, without the last outputs: what is kept."""
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    graph = traced.graph
    operations = [op for op in graph.get_operations() if op.type not in _VIEWS]
    uses = Counter(_origin(x).ref() for op in operations for x in op.inputs)
    uses.update(_origin(x).ref() for x in graph.outputs)  # They stay until the end.
    last = graph.outputs[len(graph.outputs) - num_kept :]
    kept = {x.ref(): x for x in map(_origin, last) if _is_made(x)}
    now, found = -_bytes(kept.values()), []
    for op in operations:
        ended = []
        for x in map(_origin, op.inputs):
            uses[x.ref()] -= 1
            if not uses[x.ref()] and _is_made(x):
                ended.append(x)
        if not _is_constant(op):
            found.append(now + _new_bytes(op, ended))
        made = [x for x in op.outputs if uses[x.ref()] and _is_made(x)]
        now += _bytes(made) - _bytes(ended)
    return found


def _origin(x: tf.Tensor) -> tf.Tensor:
    """The tensor of which this one is a view, or this one."""
    while x.op.type in _VIEWS:
        x = x.op.inputs[0]
    return x


def _is_constant(op: tf.Operation) -> bool:
    """Whether it is one, or a placeholder.

    TensorFlow makes the same zeros a constant if they are few, else fills a tensor.
    """
    is_filled = op.type == "Fill" and all(x.op.type == "Const" for x in op.inputs)
    return is_filled or op.type in ("Placeholder", "Const")


def _is_made(x: tf.Tensor) -> bool:
    """Whether it takes memory here; sizes and the like, on the host, count as none."""
    if x.op.type == "Const":
        return x.dtype.is_floating and x.shape.rank > 0
    return x.op.type != "Placeholder"


def _new_bytes(op: tf.Operation, ended: Sequence[tf.Tensor]) -> int:
    """What an operation makes, less what takes the place of what is read last by it."""
    made = _bytes(op.outputs)
    if _READ_TO_THE_END.search(op.type):
        return made
    left = Counter((x.dtype, str(x.shape)) for x in ended)
    for x in op.outputs:
        key = x.dtype, str(x.shape)
        if left[key]:
            left[key] -= 1
            made -= _bytes([x])
    return made


def _bytes(tensors: Iterable[tf.Tensor]) -> int:
    """Of those whose size the graph tells."""
    return num_bytes(
        tf.TensorSpec(x.shape, x.dtype)
        for x in tensors
        if x.shape.rank is not None and x.dtype not in (tf.variant, tf.resource)
    )
