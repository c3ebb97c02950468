"""The layers before a pipeline: on the first device, on the whole mini-batch.

They run once, outside the loops, and keep what they compute until the pipeline's
backward has made the gradients of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.pipeline.tracing.trace import is_differentiable


class Before:
    """One run of the layers."""

    def __init__(
        self,
        layers: Sequence[BaseLayer],
        thetas: Sequence[Any],
        args: Sequence[Any],
        device: str,
        batch_dim: int,
    ):
        """Runs the layers.

        Args:
            layers: in order; there may be none.
            thetas: of each layer its weights.
            args: inputs of the first.
            device: where they run.
            batch_dim: see `ForwardContext`.
        """
        self._device = device
        self._thetas = list(thetas)
        self._trained = [
            variable.trainable
            for layer in layers
            for variable in tf.nest.flatten(layer.vars)
        ]
        around = forward_context.current()
        context = ForwardContext(
            do_eval=around.do_eval,
            step=around.step,
            first_example=0 if around.first_example is None else around.first_example,
            batch_dim=batch_dim,
        )
        outputs: Any = tuple(args)
        with tf.device(device):
            # Each place has a tensor of its own, even if they hold one variable.
            self._weights = [tf.identity(w) for w in tf.nest.flatten(self._thetas)]
        own = tf.nest.pack_sequence_as(self._thetas, self._weights)
        with tf.device(device), context, tf.GradientTape() as self._tape:
            self._tape.watch([w for w in self._weights if is_differentiable(w)])
            for layer, theta in zip(layers, own, strict=True):
                outputs = layer.FProp(layer.CastTheta(theta), *as_args(outputs))
        if context.losses or context.metrics:
            raise ValueError(
                "Layers before a pipeline can't add losses or metrics; these do: "
                f"{sorted({**context.losses, **context.metrics})}. Make them cells."
            )
        self.outputs = as_args(outputs)
        self.accumulated = context.accumulated

    def gradients(self, output_gradients: Any) -> list[Any]:
        """The gradients in the structure of the layers' weights; None if not trained.

        Args:
            output_gradients: in the structure of the outputs; None where there is none.
        """
        pairs = [
            (x, gradient)
            for x, gradient in zip(
                tf.nest.flatten(self.outputs),
                tf.nest.flatten(output_gradients),
                strict=True,
            )
            if gradient is not None and is_differentiable(x)
        ]
        learned = [
            w for w, yes in zip(self._weights, self._trained, strict=True) if yes
        ]
        with tf.device(self._device):
            found = iter(
                self._tape.gradient(
                    [x for x, _ in pairs],
                    learned,
                    output_gradients=[gradient for _, gradient in pairs],
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
            )
        flat = [next(found) if yes else None for yes in self._trained]
        return tf.nest.pack_sequence_as(self._thetas, flat)
