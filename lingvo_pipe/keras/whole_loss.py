"""Losses computed from the outputs of the whole mini-batch.

These are losses that mix examples, and losses that stages cannot rerun.

    pass 1   micro-batches --> outputs --> loss of the mini-batch --> gradients g
    pass 2   micro-batches --> outputs --> sum of g * outputs --> weights' gradients

The sum in pass 2 stands for the loss, because both have the same gradients. So the
result is plain Keras's for any number of micro-batches. This takes one more forward
pass, and memory for the outputs of the mini-batch.

Shapes: B examples in the mini-batch, b in a micro-batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present, pack_present, present, wide_dtype
from lingvo_pipe.pipeline.tracing.purity import check_pure


class WholeLoss(NamedTuple):
    """A mini-batch's loss and its gradients, which micro-batches take as targets."""

    values: tf.Tensor  # `[B]`, the loss, repeated for each example.
    gradients: list[tf.Tensor]  # Of the outputs that are floats, `[B, ...]` each.


def whole_loss(
    outputs: Sequence[Any], loss: Callable[[Sequence[Any]], tf.Tensor]
) -> WholeLoss:
    """Returns the loss of outputs, `[B, ...]` each or None, and its gradients."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        watched = map_present(lambda x: tf.stop_gradient(_wide(x)), outputs)
        floats = _floats(watched)
        tape.watch(floats)
        value = loss(_as_cast(outputs, watched))
        value = tf.cast(value, wide_dtype(value.dtype))
    gradients = tape.gradient(
        value, floats, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return WholeLoss(tf.fill([floats[0].shape[0]], value), gradients)


def stand_in(outputs: Sequence[Any], whole: WholeLoss, share: tf.Tensor) -> tf.Tensor:
    """Returns the loss of the mini-batch, with a micro-batch's part of its gradients.

    `share` is the micro-batch's part of the examples. The loss is the mean of the
    micro-batches' values, weighted by their shares.
    """
    pairs = zip(_floats(outputs), whole.gradients, strict=True)
    dtype = whole.values.dtype
    parts = [tf.cast(tf.reduce_sum(g * _wide(x)), dtype) for x, g in pairs]
    total = tf.add_n(parts) / tf.cast(share, dtype)
    return whole.values[0] + total - tf.stop_gradient(total)


def graph_of_loss(loss: Callable[..., Any], specs: Any) -> Any:
    """Returns the graph of a loss, traced for `specs`: nested KerasTensors or None."""
    signature = [tf.TensorSpec(x.shape, x.dtype) for x in present(specs)]

    def trace(*flat: tf.Tensor) -> None:
        loss(*pack_present(specs, flat))

    return tf.compat.v1.wrap_function(trace, signature).graph


def can_be_rerun(graph: Any) -> bool:
    """Returns whether a loss depends on its arguments alone, as a rerun needs."""
    try:
        check_pure(graph, "the loss", {})
    except UserValueError:
        return False
    return True


def _wide(x: tf.Tensor) -> tf.Tensor:
    """Returns 16-bit floats as float32, in which small gradients do not become 0."""
    return tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x


def _as_cast(outputs: Sequence[Any], wide: Sequence[Any]) -> list[Any]:
    """Drops the logits of widened outputs, as Keras does where it casts outputs."""
    triples = list(wide)
    for i in range(0, len(triples), 3):
        if outputs[i].dtype != wide[i].dtype:
            triples[i + 2] = None
    return triples


def _floats(outputs: Sequence[Any]) -> list[tf.Tensor]:
    return [x for x in present(outputs) if x.dtype.is_floating]
