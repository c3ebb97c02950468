"""A stage: consecutive layers as one forward and one backward function.

    forward :  theta, x           ->  y, sums
    backward:  theta, x, dy, acc  ->  dx, acc + dtheta       (recomputes y from x)

The last stage also computes the loss, from the micro-batch's targets; its backward
starts there instead of from dy. `sums` are what adds up over the micro-batches of a
step: batch norm's moments, and the metrics as (value · weight, weight). Gradients are
added to their accumulators inside the backward function, never outside, so that the
order of additions is the same for every schedule and number of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.boundary import Boundary
from lingvo_pipe.pipeline.layer_function import OUT_OF_LINE, LayerFunctions
from lingvo_pipe.pipeline.loss_function import LossFunction, make_loss_function
from lingvo_pipe.pipeline.optional_nest import map_present, spec_of


class Stage:
    """The functions of one stage and the specs of what goes in and out."""

    def __init__(
        self,
        layers: Sequence[BaseLayer],
        functions: LayerFunctions,
        thetas: Any,
        step: Any,
        args: Any,
        loss_fn: LossFunction | None,
        targets: Any,
    ):
        """Traces the stage.

        Args:
            layers: at least one.
            functions: where alike layers share theirs.
            thetas: specs of the layers' weights, a list of NestedMaps.
            step: spec of the step, or None where it is not known.
            args: specs of the positional inputs of one micro-batch.
            loss_fn: in the last stage of a training or evaluation; see
                `make_loss_function`.
            targets: specs of one micro-batch of targets.
        """
        self._layers = list(layers)
        self._functions = [functions[layer] for layer in layers]
        self._loss = loss_fn and make_loss_function(
            loss_fn, self._layers[-1], functions.do_eval
        )
        self._trained = [
            variable.trainable
            for layer in layers
            for variable in tf.nest.flatten(layer.vars)
        ]
        self.inputs = Boundary(args)
        self.forward = tf.function(self._forward, **OUT_OF_LINE)
        self.backward = tf.function(self._backward, **OUT_OF_LINE)
        example = tf.TensorSpec([], tf.int64)
        traced = self.forward.get_concrete_function(
            thetas, step, example, args, targets
        )
        outputs, self.sums = map_present(spec_of, traced.structured_outputs)
        self.outputs = Boundary(outputs)

    @property
    def has_loss(self) -> bool:
        """Whether the stage ends in the loss."""
        return self._loss is not None

    def trained(self, thetas: Any) -> list[Any]:
        """Of the layers' weights those that are trained, in order."""
        flat = tf.nest.flatten(thetas)
        return [w for w, yes in zip(flat, self._trained, strict=True) if yes]

    def zero_gradients(self, thetas: Any) -> list[tf.Tensor]:
        """Accumulators for the trained weights' gradients, in float32 or wider.

        In 16 bits a sum over many micro-batches would stop growing.
        """
        return [
            tf.zeros(w.shape, w.dtype if w.dtype.size > 2 else tf.float32)
            for w in self.trained(thetas)
        ]

    def pack_trained(self, thetas: Any, values: list[Any]) -> Any:
        """Values for the trained weights in the structure of `thetas`; else None."""
        remaining = iter(values)
        flat = [next(remaining, None) if yes else None for yes in self._trained]
        return tf.nest.pack_sequence_as(thetas, flat)

    def _forward(
        self, thetas: Any, step: Any, first_example: Any, args: Any, targets: Any
    ) -> tuple[Any, NestedMap]:
        accumulated: dict[str, tf.Tensor] = {}
        outputs: Any = args
        for function, theta in zip(self._functions, thetas, strict=True):
            outputs, sums = function(theta, step, first_example, *as_args(outputs))
            accumulated.update(sums)
        metrics = NestedMap()
        if self._loss is not None:
            metrics = self._loss(step, first_example, outputs, targets)
        return outputs, NestedMap(accumulated=accumulated, metrics=metrics)

    def _backward(
        self,
        thetas: Any,
        step: Any,
        first_example: Any,
        args: Any,
        targets: Any,
        output_gradients: list[tf.Tensor],
        accumulators: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        inputs = self.inputs.differentiable(self.inputs.tensors(args))
        weights = self.trained(thetas)
        with tf.GradientTape() as tape:
            tape.watch([inputs, weights])
            outputs, sums = self._forward(thetas, step, first_example, args, targets)
        outputs = self.outputs.differentiable(self.outputs.tensors(outputs))
        if self.has_loss:
            goal = sums.metrics.loss[0]
            gradients = tape.gradient(goal, inputs + weights + outputs)
            self._check_connected(gradients[len(inputs + weights) :])
        else:
            gradients = tape.gradient(outputs, inputs + weights, output_gradients)
        added = [
            total if gradient is None else total + tf.cast(gradient, total.dtype)
            for total, gradient in zip(
                accumulators, gradients[len(inputs) :][: len(weights)], strict=True
            )
        ]
        return list(map(_zeros_for_none, gradients, inputs)), added

    def _check_connected(self, output_gradients: list[Any]) -> None:
        """Raises ValueError if nothing would be learned."""
        if all(gradient is None for gradient in output_gradients):
            raise ValueError(
                "The loss must depend on the last layer's outputs; that of "
                f"{self._layers[-1].path} does not, as gradients go. Look for a "
                "tf.stop_gradient, a comparison or an integer cast in ComputeLoss."
            )


def _zeros_for_none(gradient: Any, like: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(like) if gradient is None else tf.convert_to_tensor(gradient)
