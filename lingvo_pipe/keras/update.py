"""The update of a Keras model's weights from a pipeline's gradients."""

from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.keras.loss import regularization, total_loss
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.updating_in_place import in_place


def apply_gradients(
    optimizer: keras.Optimizer,
    weights: list[keras.Variable],
    theta: Any,
    result: NestedMap,
    scale: tf.Tensor | None,
) -> tf.Tensor:
    """Adds the penalties of weights, updates the weights, and returns the loss.

    Args:
        optimizer: the optimizer.
        weights: the trained weights.
        theta: the pipeline's variables.
        result: what the pipeline's ComputeGradients has returned for `theta`.
        scale: the factor of the loss that a LossScaleOptimizer expects in gradients.
    """
    loss = total_loss(result.metrics)
    flat = tf.nest.flatten(theta), tf.nest.flatten(result.gradients)
    gradients = {v.ref(): g for v, g in zip(*flat, strict=True) if g is not None}
    for v, penalty, gradient in regularization(weights):
        loss += penalty
        gradients[v.value.ref()] += gradient
    pairs = [(gradients[v.value.ref()], v) for v in weights]
    if scale is not None:  # The engine has divided by it, as a part of the weight.
        pairs = [(g * tf.cast(scale, g.dtype), v) for g, v in pairs]
    if pairs:
        in_place(optimizer).apply_gradients(pairs)
    return loss
