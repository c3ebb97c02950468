"""Parts of a mini-batch, each on a pipeline of its own.

    micro-batches      0 1 2 3 | 4 5 6 7      M = 8, P = 2 parts, R = 2 replicas
    devices            a b c   | d e f        K = 3 each
    totals, stage 0    on a    + on d         added where the weights are: here or there

Replicas run side by side. Each weight lives on one device, its home, with all that the
optimizer keeps; the cells of a stage have their homes on the replicas in turn. A step
begins with copies of the weights to the other replicas, and ends with the totals of
their gradients on the way home, where they are added up in the order of the parts.

So the bytes that a step leaves depend on the number of parts, and not on that of the
replicas: those that have more than one part run them one after another.

Shapes: M micro-batches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.loops.emit import Emitter
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.plan import Plan

# What of the emitter's arguments is stacked by micro-batch.
_STACKED = ("batch", "first_examples", "num_examples", "output_gradients")


def emit_parts(
    emitters: Sequence[Emitter], plan: Plan, arguments: NestedMap
) -> list[NestedMap]:
    """Emits a pipeline for each part.

    Args:
        emitters: of the replicas, in order.
        plan: what they were made of.
        arguments: for all micro-batches; see `Emitter.emit`.

    Returns:
        For each part what its emitter returns.
    """
    if plan.num_parts == 1:
        return [emitters[0].emit(arguments)]
    parts: list[NestedMap] = []
    for emitter in emitters:
        after: Sequence[tf.Tensor] | None = None
        for _ in range(plan.parts_per_replica):
            with tf.device(plan.inputs_home):
                own = _cut(arguments, len(parts), plan.num_parts)
            parts.append(emitter.emit(own, after))
            after = parts[-1].times
    return parts


def join_parts(parts: Sequence[NestedMap], plan: Plan) -> NestedMap:
    """What the parts have made of a mini-batch, but for the weights' gradients.

    Args:
        parts: as from `emit_parts`.
        plan: of what they are.

    Returns:
        As `Emitter.emit`, without `gradients`; `times` are those of the first replica's
        devices, then the next one's.
    """
    if len(parts) == 1:
        return parts[0]
    devices = list(map(loop_device, plan.devices))
    first, last = devices[0], devices[-1]
    sums = []
    for k, device in enumerate(devices):
        with tf.device(device):
            sums.append(_sum([part.sums[k] for part in parts]))
    with tf.device(last):
        outputs = _concat([part.outputs for part in parts])
    with tf.device(first):
        input_gradients = _concat([part.input_gradients for part in parts])
    return NestedMap(
        sums=sums,
        outputs=outputs,
        input_gradients=input_gradients,
        times=_times(parts, plan.parts_per_replica),
    )


def added_totals(
    call: StageCall,
    totals: Sequence[Handles],
    devices: Sequence[str],
    home: str,
) -> Handles:
    """The totals of one layer's gradients over all parts, where its weights are.

    Args:
        call: of the layer.
        totals: of each part, packed.
        devices: of each part, where these are.
        home: where they are added up, in the order of the parts.
    """
    if len(totals) == 1:
        return totals[0]
    functions = call.functions
    flat = []
    for packed, device in zip(totals, devices, strict=True):
        with tf.device(device):
            flat.append(functions.unpack_gradients(*packed))
    with tf.device(home):
        total = functions.pack_gradients(*flat[0])
        for more in flat[1:]:
            total = functions.add_gradients(*total, *more)
    return total


def devices_of_parts(plan: Plan, stage: int) -> list[str]:
    """For each part the device on which the loop of a stage runs."""
    return [
        loop_device(devices[stage])
        for devices in plan.replicas
        for _ in range(plan.parts_per_replica)
    ]


def _cut(arguments: NestedMap, part: int, num_parts: int) -> NestedMap:
    size = tf.shape(arguments.first_examples)[0] // num_parts
    stacked = NestedMap({name: arguments[name] for name in _STACKED})
    own = map_present(lambda x: x[part * size : (part + 1) * size], stacked)
    return NestedMap(arguments, **own)


def _sum(structures: Sequence[Any]) -> Any:
    return functools.reduce(
        functools.partial(tf.nest.map_structure, tf.add), structures
    )


def _concat(structures: Sequence[Any]) -> Any:
    return tf.nest.map_structure(lambda *own: tf.concat(own, 0), *structures)


def _times(parts: Sequence[NestedMap], each: int) -> list[tf.Tensor]:
    """For each device those of its parts, one after another."""
    found = []
    for start in range(0, len(parts), each):
        for own in zip(
            *(part.times for part in parts[start : start + each]), strict=True
        ):
            with tf.device(own[0].device):
                found.append(tf.concat(own, 0))
    return found
