"""A cached call of a language model, each operation where its weights are.

    token --> embedding --> layer 0 --> layer 1 --> layer 2 --> logits
              device 0      device 0    device 1    device 1    device 0, if tied
                            cache[:, 0] cache[:, 1] cache[:, 2]

KerasHub's models pass one cache: each layer reads its slice of it, with keys and
values, and the new slices are stacked. Here keys and values stay apart, as `Parts` on
the devices of their layers, and nothing is copied to be stacked. A method may have
several caches, in tuples and lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree
from tensorflow.python.framework.func_graph import FuncGraph

from lingvo_pipe.core.nests import pack_present, present, spec_of
from lingvo_pipe.pipeline.tracing.cut import CutGraph, captured_constants


class Parts(NamedTuple):
    """A cache in parts, in the order of its layout. Loops see a nested structure."""

    tensors: list[tf.Tensor]


class PlacedCall:
    """A call of a function, traced for given specs."""

    def __init__(
        self,
        function: Callable[..., Any],
        caches: Mapping[str, Any],
        arguments: Mapping[str, Any],
    ):
        """Traces `function(**caches, **arguments)`.

        `caches` has each cache's specs, or None for a cache that the function makes.
        The function's last results are the new caches, as many as `caches`. Tensors in
        `arguments` are arguments of the call. All else is constant.
        """
        graph, arguments, old, self._results, new = _traced(function, caches, arguments)
        self._new_caches = _map_caches(spec_of, new)
        pairs = zip(_flat_caches(old), _flat_caches(new), strict=True)
        self._caches = [_parts(*pair) for pair in pairs]
        self.layouts = [cache.layout for cache in self._caches]
        self.part_shapes = [x.shape for cache in self._caches for x in cache.after]
        constants = {inner.ref() for inner, _ in captured_constants(graph)}
        weights = [x for x in graph.captures if x[1].ref() not in constants]
        self._weights = [outer for outer, _ in weights]
        self._devices = operation_devices(
            graph, {inner.op.name: outer.device for outer, inner in weights}
        )
        inputs = [x for x in tree.flatten(arguments) if tf.is_tensor(x)]
        inputs += [x for cache in self._caches for x in cache.before]
        inputs += [inner for _, inner in weights]
        outputs = present(self._results)
        outputs += [x for cache in self._caches for x in cache.after]
        places = {x.ref(): i for i, x in enumerate(inputs)}
        # The index of the input that an output is, or None for a computed output.
        self._input_places = [places.get(x.ref()) for x in outputs]
        computed = [x for x in outputs if x.ref() not in places]
        cut = CutGraph(graph, inputs, [], [computed], self._devices)
        self._run = cut.function(0, inputs, computed)

    def __call__(self, arguments: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        """Returns the function's results, and the new caches as `Parts`.

        A cache is None, a tensor, or the `Parts` that another call has returned.
        """
        flat = [x for x in tree.flatten(dict(arguments)) if tf.is_tensor(x)]
        parts = [
            part
            for cache, parts in zip(
                _flat_caches(tuple(caches)), self._caches, strict=True
            )
            for part in self._placed(parts, parts.cut(cache))
        ]
        capture = tf.compat.v1.get_default_graph().capture
        inputs = [capture(x) for x in (*flat, *parts, *self._weights)]
        computed = iter(self._run(*inputs))
        outputs = iter(
            next(computed) if place is None else inputs[place]
            for place in self._input_places
        )
        results = pack_present(self._results, outputs)
        new = [
            Parts(self._placed(parts, [next(outputs) for _ in parts.after]))
            for parts in self._caches
        ]
        return results, _pack_caches(self._new_caches, iter(new))

    def _placed(
        self, cache: _CacheParts, parts: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        # TensorFlow keeps a loop variable on the device of its initial value.
        placed = []
        for part, traced in zip(parts, cache.after, strict=False):
            with tf.device(self._devices.get(traced.op.name)):
                placed.append(_copied(part))
        return placed


def _traced(
    function: Callable[..., Any],
    caches: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> tuple[FuncGraph, dict[str, Any], tuple, Any, tuple]:
    """Returns the function's graph, arguments, caches, other results and new caches."""
    with tf.init_scope():  # So that the graph captures variables directly.
        graph = FuncGraph("placed_call")
    with graph.as_default():
        old = {k: _map_caches(_placeholder, x) for k, x in caches.items()}
        named = {k: tree.map_structure(_placeholder, x) for k, x in arguments.items()}
        results = function(**old, **named)
    if not caches:
        return graph, named, (), results, ()
    number = len(caches)
    return graph, named, tuple(old.values()), results[:-number], results[-number:]


def cache_specs(caches: Any, layouts: Sequence[Layout | None] | None) -> Any:
    """Returns the specs of nested caches, each None, a tensor or `Parts`.

    `layouts` has an item for each cache, in order. If None, no cache is in parts.
    """
    flat = _flat_caches(caches)
    pairs = zip(flat, layouts or [None] * len(flat), strict=True)
    return _pack_caches(caches, (_spec(*pair) for pair in pairs))


def _spec(cache: Any, layout: Layout | None) -> tf.TensorSpec | None:
    if isinstance(cache, Parts):
        return _whole_spec(iter(cache.tensors), layout)
    return None if cache is None else spec_of(cache)


def _whole_spec(parts: Iterator[tf.Tensor], layout: Layout | None) -> tf.TensorSpec:
    """Returns the spec of the cache that consists of the next parts."""
    if layout is None:
        return spec_of(next(parts))
    slices = [_whole_spec(parts, inner) for inner in layout.slices]
    shape = slices[0].shape.as_list()
    shape.insert(layout.axis, len(slices))
    return tf.TensorSpec(shape, slices[0].dtype)


def _flat_caches(caches: Any) -> list[Any]:
    if isinstance(caches, (tuple, list)) and not isinstance(caches, Parts):
        return [x for inner in caches for x in _flat_caches(inner)]
    return [caches]


def _pack_caches(structure: Any, caches: Iterator[Any]) -> Any:
    if isinstance(structure, Parts) or not isinstance(structure, (tuple, list)):
        return next(caches)
    packed = [_pack_caches(inner, caches) for inner in structure]
    return packed if isinstance(structure, list) else tuple(packed)


def _map_caches(function: Callable[[Any], Any], caches: Any) -> Any:
    flat = [None if x is None else function(x) for x in _flat_caches(caches)]
    return _pack_caches(caches, iter(flat))


class Layout(NamedTuple):
    """The dimension by which a cache is cut, and the layouts of the slices."""

    axis: int
    slices: Sequence[Layout | None]


class _CacheParts(NamedTuple):
    """A cache's parts before and after a call. A new cache has none before it."""

    layout: Layout | None
    before: Sequence[tf.Tensor]
    after: Sequence[tf.Tensor]

    def cut(self, cache: Any) -> Sequence[tf.Tensor]:
        if cache is None:
            return []
        return cache.tensors if isinstance(cache, Parts) else _cut(cache, self.layout)


def _cut(cache: tf.Tensor, layout: Layout | None) -> list[tf.Tensor]:
    if layout is None:
        return [cache]
    if cache.op.type == "Fill":  # An empty cache: no device need hold the whole.
        shape = [n for i, n in enumerate(cache.shape) if i != layout.axis]
        slices = [tf.fill(shape, cache.op.inputs[1]) for _ in layout.slices]
    else:
        slices = tf.unstack(cache, axis=layout.axis)
    pairs = zip(slices, layout.slices, strict=True)
    return [part for x, inner in pairs for part in _cut(x, inner)]


def _copied(part: tf.Tensor) -> tf.Tensor:
    """Returns a copy on the current device. An empty part is not copied, but filled."""
    if part.op.type == "Fill":
        return tf.fill(part.shape, part.op.inputs[1])
    return tf.identity(part)


def _placeholder(x: Any) -> Any:
    if isinstance(x, tf.TensorSpec) or tf.is_tensor(x):
        return tf.compat.v1.placeholder(x.dtype, x.shape)
    return x


def _parts(
    cache: tf.Tensor | None, new_cache: tf.Tensor, pack: tf.Operation | None = None
) -> _CacheParts:
    """Returns a cache's parts. `pack` stacks the new cache with others, or is None.

    A cache has several parts if it is read slice by slice and then stacked again or
    returned unchanged, or if it is new and stacked. Otherwise it is one part.
    """
    axis, pairs = _pairs(cache, new_cache, pack)
    if axis is None:
        return _CacheParts(None, [] if cache is None else [cache], [new_cache])
    inner = [_parts(*pair, new_cache.op) for pair in pairs]
    return _CacheParts(
        Layout(axis, [parts.layout for parts in inner]),
        [x for parts in inner for x in parts.before],
        [x for parts in inner for x in parts.after],
    )


def _pairs(
    cache: tf.Tensor | None, new_cache: tf.Tensor, pack: tf.Operation | None
) -> tuple[int | None, Sequence[tuple[Any, Any]]]:
    """Returns the dimension of a cache's slices, and the slices before and after."""
    readers = [] if cache is None else [x for x in cache.consumers() if x is not pack]
    read_axis, slices = _slices(readers)
    if cache is new_cache:
        return read_axis, [(x, x) for x in slices]
    if new_cache.op.type == "Pack":
        axis, stacked = new_cache.op.get_attr("axis"), list(new_cache.op.inputs)
        if cache is None:
            return axis, [(None, x) for x in stacked]
        if (axis, len(stacked)) == (read_axis, len(slices)):
            return axis, list(zip(slices, stacked, strict=True))
    return None, []


def _slices(readers: Sequence[tf.Operation]) -> tuple[int | None, Sequence[tf.Tensor]]:
    """Returns the dimension by which readers slice a cache, and all slices in order.

    The dimension is None unless all readers slice, and each slice has one reader.
    """
    slices: dict[tuple[int, int], tf.Tensor] = {}
    for op in readers:
        read = _slice_read(op)
        if read is None or read in slices:
            return None, []
        slices[read] = op.outputs[0]
    axes = {axis for axis, _ in slices}
    if len(axes) != 1:
        return None, []
    (axis,) = axes
    if {*range(readers[0].inputs[0].shape[axis])} != {i for _, i in slices}:
        return None, []
    return axis, [slices[axis, i] for i in range(len(slices))]


def _slice_read(op: tf.Operation) -> tuple[int, int] | None:
    """Returns (axis, i) for `x[:, i, ...]`, with as many ":" as axis, or None."""
    if op.type != "StridedSlice":
        return None
    mask = op.get_attr("shrink_axis_mask")
    axis = mask.bit_length() - 1
    begin = tf.get_static_value(op.inputs[1])
    kept = [n for i, n in enumerate(op.inputs[0].shape) if i != axis]
    if mask != 1 << max(axis, 0) or begin is None or kept != op.outputs[0].shape:
        return None
    return axis, int(begin[axis])


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
