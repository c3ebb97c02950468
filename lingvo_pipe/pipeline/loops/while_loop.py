"""A While loop that stays one node of the graph, and a clock for the loop's body."""

import functools
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from lingvo_pipe.core.nests import pack_present, present, spec_of
from lingvo_pipe.pipeline.devices.device_names import device_name

Carried = TypeVar("Carried")  # Nested tensors and None.


def while_loop(
    condition: Callable[[Carried], tf.Tensor],
    body: Callable[[Carried], Carried],
    carried: Carried,
) -> Carried:
    """Runs `body` on nested tensors, `carried`, while `condition` holds.

    The loop is not lowered to control-flow operations: each iteration is a function
    call. So messages of a channel carry no iteration number, and queue in the order in
    which they were sent.
    """
    tensors = present(carried)
    pack = functools.partial(pack_present, carried)

    def flat_body(*flat: tf.Tensor) -> list[tf.Tensor]:
        return present(body(pack(flat)))

    def flat_condition(*flat: tf.Tensor) -> tf.Tensor:
        return condition(pack(flat))

    specs = list(map(spec_of, tensors))
    results = tf.raw_ops.While(
        input=tensors,
        cond=tf.compat.v1.wrap_function(flat_condition, specs),
        body=tf.compat.v1.wrap_function(flat_body, specs),
        output_shapes=[x.shape for x in tensors],
        parallel_iterations=1,
    )
    for result, x in zip(results, tensors, strict=True):
        result.set_shape(x.shape)
    return pack(results)


def repeat(number: tf.Tensor, step: Callable[[], list[tf.Operation]]) -> tf.Tensor:
    """Runs the operations that `step` adds, `number` ([] int32) times in sequence.

    The result exists after the last time.
    """

    def body(carried: list[tf.Tensor]) -> list[tf.Tensor]:
        index, end = carried
        with tf.control_dependencies(step()):
            return [tf.identity(index + 1), end]

    index, _ = while_loop(
        lambda carried: carried[0] < carried[1],
        body,
        [tf.identity(tf.constant(0)), tf.identity(number)],
    )
    return index


def timestamp(device: str) -> tf.Tensor:
    """Returns the time at which the returned tensor is computed, [] float64 seconds.

    Only CPUs have a clock. A loop on another device calls a function that reads the
    clock of the device's host: operations in a loop's body run on the loop's device,
    but those in a called function run where they are placed.
    """
    name = device_name(device)
    if name.kind == "CPU":
        return tf.timestamp()
    return _clock_of(name.host.full)()


@functools.cache
def _clock_of(host: str) -> Callable[[], tf.Tensor]:
    def now() -> tf.Tensor:
        with tf.device(host):
            return tf.timestamp()

    return tf.function(
        now, autograph=False, experimental_attributes={"_noinline": True}
    )
