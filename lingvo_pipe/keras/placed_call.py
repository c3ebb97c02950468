"""A cached call of a language model, each operation where its weights are.

    token --> embedding --> layer 0 --> layer 1 --> layer 2 --> logits
              device 0      device 0    device 1    device 1    device 0, if tied
                            cache[:, 0] cache[:, 1] cache[:, 2]

KerasHub's models pass one cache for all layers: each layer reads its slice, and the new
slices are stacked. Here the slices stay apart, each on the device of its layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree
from tensorflow.python.framework.func_graph import FuncGraph

from lingvo_pipe.pipeline.tracing.cut import CutGraph, captured_constants


class PlacedCall:
    """A call of a function with a cache, traced for given specs.

    Attributes:
        axis: the dimension of the cache that numbers the layers, or None if the cache
            is one part.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cache: tf.TensorSpec,
        arguments: Mapping[str, Any],
    ):
        """Traces `function(cache=..., **arguments)`. Its last result is the new cache.

        Tensors in `arguments` are arguments of the call. All else is constant.
        """
        with tf.init_scope():  # So that the graph captures variables directly.
            graph = FuncGraph("placed_call")
        with graph.as_default():
            whole = _placeholder(cache)
            named = {
                k: tree.map_structure(_placeholder, x) for k, x in arguments.items()
            }
            *self._results, new_cache = function(cache=whole, **named)
        flat = [x for x in tree.flatten(named) if tf.is_tensor(x)]
        slices = _slices(whole, new_cache)
        self.axis = slices.axis
        constants = {inner.ref() for inner, _ in captured_constants(graph)}
        weights = [x for x in graph.captures if x[1].ref() not in constants]
        self._weights = [outer for outer, _ in weights]
        devices = operation_devices(
            graph, {inner.op.name: outer.device for outer, inner in weights}
        )
        self._devices = [devices.get(x.op.name) for x in slices.after]
        inputs = [*flat, *slices.before, *(inner for _, inner in weights)]
        outputs = [*tree.flatten(self._results), *slices.after]
        cut = CutGraph(graph, inputs, [], [outputs], devices)
        self._run = cut.function(0, inputs, outputs)

    def cut(self, cache: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the parts of a cache, each on the device of its layer."""
        slices = [cache] if self.axis is None else tf.unstack(cache, axis=self.axis)
        return self._placed(slices)

    def __call__(self, arguments: Mapping[str, Any], cache: Sequence[tf.Tensor]) -> Any:
        """Returns the function's results, the last a tuple of the new cache's parts."""
        flat = [x for x in tree.flatten(dict(arguments)) if tf.is_tensor(x)]
        capture = tf.compat.v1.get_default_graph().capture
        outputs = self._run(*flat, *cache, *map(capture, self._weights))
        number = len(outputs) - len(cache)
        results = tree.pack_sequence_as(self._results, outputs[:number])
        return (*results, self._placed(outputs[number:]))

    def _placed(self, parts: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        # TensorFlow keeps a loop's value on the device of its first one.
        placed = []
        for part, device in zip(parts, self._devices, strict=True):
            with tf.device(device):
                placed.append(tf.identity(part))
        return tuple(placed)


def stacked_spec(parts: Sequence[tf.Tensor], axis: int | None) -> tf.TensorSpec:
    """Returns the spec of the cache that has these parts."""
    shape = parts[0].shape.as_list()
    if axis is not None:
        shape.insert(axis, len(parts))
    return tf.TensorSpec(shape, parts[0].dtype)


class _Slices(NamedTuple):
    before: Sequence[tf.Tensor]
    after: Sequence[tf.Tensor]
    axis: int | None


def _placeholder(x: Any) -> Any:
    """Returns a placeholder for a tensor or spec, and anything else as it is."""
    if isinstance(x, tf.TensorSpec) or tf.is_tensor(x):
        return tf.compat.v1.placeholder(x.dtype, x.shape)
    return x


def _slices(cache: tf.Tensor, new_cache: tf.Tensor) -> _Slices:
    """Returns the slices that layers read of a cache, and those that they return.

    If the layers do not each read one slice, the whole cache is one part.
    """
    pack = new_cache.op
    if pack.type != "Pack":
        return _Slices([cache], [new_cache], None)
    axis, parts = pack.get_attr("axis"), list(pack.inputs)
    reads: dict[int, tf.Tensor] = {}
    for op in cache.consumers():
        number = _sliced_number(op, axis)
        if number is None or number in reads:
            return _Slices([cache], [new_cache], None)
        reads[number] = op.outputs[0]
    if sorted(reads) != [*range(len(parts))]:
        return _Slices([cache], [new_cache], None)
    return _Slices([reads[i] for i in range(len(parts))], parts, axis)


def _sliced_number(op: tf.Operation, axis: int) -> int | None:
    """Returns i for `x[:, i, ...]`, with as many ":" as `axis`, and None otherwise."""
    if op.type != "StridedSlice" or op.get_attr("shrink_axis_mask") != 1 << axis:
        return None
    begin, end, strides = (tf.get_static_value(x) for x in op.inputs[1:])
    if begin is None or len(op.outputs[0].shape) + 1 != len(op.inputs[0].shape):
        return None
    return int(begin[axis])


def operation_devices(graph: tf.Graph, weights: Mapping[str, str]) -> dict[str, str]:
    """Returns the device of each operation of a graph, by name.

    `weights` has the devices of the graph's inputs that are weights, by name. What is
    computed from weights alone is on their device, and so is an operation that also
    takes other values. Any other operation is where the last of its inputs was made. An
    operation without such inputs is where its results are used.
    """
    devices = dict(weights)
    constant = set(devices)  # What follows from weights and constants alone.
    order: dict[str, int] = {}
    operations = graph.get_operations()
    for op in operations:
        order[op.name] = len(order)
        if op.name in devices:
            continue
        names = [x.op.name for x in op.inputs]
        placed = [x for x in names if devices.get(x)]
        if op.type != "Placeholder" and all(x in constant for x in names):
            constant.add(op.name)
        of_weights = [x for x in placed if x in constant]
        if placed:
            devices[op.name] = devices[max(of_weights or placed, key=order.__getitem__)]
    for op in reversed(operations):
        if op.name not in devices:
            used = {devices.get(y.name) for x in op.outputs for y in x.consumers()}
            if len(used) == 1 and None not in used:
                devices[op.name] = str(used.pop())
    return devices
