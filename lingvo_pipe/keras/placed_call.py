"""A cached call of a language model, each operation where its weights are.

    token --> embedding --> layer 0 --> layer 1 --> layer 2 --> logits
              device 0      device 0    device 1    device 1    device 0, if tied
                            cache[:, 0] cache[:, 1] cache[:, 2]

KerasHub's models pass one cache for all layers: each layer reads its slice, and that
slice's keys and values, and the new slices are stacked. Here keys and values stay
apart, each on the device of its layer, and nothing is copied to be stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree
from tensorflow.python.framework.func_graph import FuncGraph

from lingvo_pipe.pipeline.tracing.cut import CutGraph, captured_constants


class PlacedCall:
    """A call of a function with a cache, traced for given specs."""

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
            cache_input = _placeholder(cache)
            named = {
                k: tree.map_structure(_placeholder, x) for k, x in arguments.items()
            }
            *self._results, new_cache = function(cache=cache_input, **named)
        flat = [x for x in tree.flatten(named) if tf.is_tensor(x)]
        self._layout, pairs = _parts(cache_input, new_cache)
        before, after = zip(*pairs, strict=True)
        constants = {inner.ref() for inner, _ in captured_constants(graph)}
        weights = [x for x in graph.captures if x[1].ref() not in constants]
        self._weights = [outer for outer, _ in weights]
        devices = operation_devices(
            graph, {inner.op.name: outer.device for outer, inner in weights}
        )
        self._devices = [devices.get(x.op.name) for x in after]
        inputs = [*flat, *before, *(inner for _, inner in weights)]
        outputs = [*tree.flatten(self._results), *after]
        cut = CutGraph(graph, inputs, [], [outputs], devices)
        self._run = cut.function(0, inputs, outputs)

    def cut(self, cache: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the parts of a cache, each on the device of its layer."""
        return self._placed(_cut(cache, self._layout))

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


class _Layout(NamedTuple):
    """The dimension by which a cache is cut, and the layouts of the slices."""

    axis: int
    slices: Sequence[_Layout | None]


def _cut(cache: tf.Tensor, layout: _Layout | None) -> list[tf.Tensor]:
    if layout is None:
        return [cache]
    slices = tf.unstack(cache, axis=layout.axis)
    pairs = zip(slices, layout.slices, strict=True)
    return [part for x, inner in pairs for part in _cut(x, inner)]


def _placeholder(x: Any) -> Any:
    """Returns a placeholder for a tensor or spec, and anything else as it is."""
    if isinstance(x, tf.TensorSpec) or tf.is_tensor(x):
        return tf.compat.v1.placeholder(x.dtype, x.shape)
    return x


def _parts(
    cache: tf.Tensor, new_cache: tf.Tensor
) -> tuple[_Layout | None, list[tuple[tf.Tensor, tf.Tensor]]]:
    """Returns a cache's layout, and its parts before and after a call.

    A cache that is not read slice by slice and stacked again is one part.
    """
    pack = new_cache.op
    one_part = None, [(cache, new_cache)]
    if pack.type != "Pack":
        return one_part
    axis, reads = pack.get_attr("axis"), {}
    for op in cache.consumers():
        reads[_sliced_number(op, axis)] = op.outputs[0]
    if len(reads) != len(cache.consumers()) or set(reads) != {*range(len(pack.inputs))}:
        return one_part
    inner = [_parts(reads[i], x) for i, x in enumerate(pack.inputs)]
    layout = _Layout(axis, [slice_layout for slice_layout, _ in inner])
    return layout, [pair for _, pairs in inner for pair in pairs]


def _sliced_number(op: tf.Operation, axis: int) -> int | None:
    """Returns i for `x[:, i, ...]`, with as many ":" as `axis`, and None otherwise."""
    if op.type != "StridedSlice" or op.get_attr("shrink_axis_mask") != 1 << axis:
        return None
    begin = tf.get_static_value(op.inputs[1])
    kept = [n for i, n in enumerate(op.inputs[0].shape) if i != axis]
    return None if begin is None or kept != op.outputs[0].shape else int(begin[axis])


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
