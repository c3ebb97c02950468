"""A functional While that stays one node in the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import pack_present, present, spec_of


def while_loop(
    condition: Callable[[NestedMap], tf.Tensor],
    body: Callable[[NestedMap], NestedMap],
    carried: NestedMap,
) -> NestedMap:
    """Runs `body` on what is carried as long as `condition` holds.

    It is not lowered to control-flow operations, so each iteration is a function call,
    and messages of a channel carry no iteration number but queue in the order they were
    sent.
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
