"""A layer at its position in the model: its functions, and the numbers of its values.

Values and their gradients are in dicts by the numbers that `dataflow` uses.
"""

import dataclasses

import tensorflow as tf

from lingvo_pipe.pipeline.loops.dataflow import LayerValues
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.tracing.trace import is_differentiable

Values = dict[int, tf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedLayer:
    """A layer, or the loss, at its position in the model.

    Attributes:
        functions: the layer's functions, which identical layers share.
        values: the numbers of its values.
        path_hash: hash of the layer's path; None for the loss.
    """

    functions: PackedPhases
    values: LayerValues
    path_hash: int | None

    @property
    def used(self) -> list[int]:
        """The values that the forward pass takes."""
        return [self.values.args[i] for i in self.functions.phases.used]

    @property
    def given_gradients(self) -> list[int]:
        """The values whose gradients the backward pass returns."""
        return [self.values.args[i] for i in self.functions.phases.gives]

    def output_gradients(self, gradients: Values) -> list[tf.Tensor]:
        """Returns the gradients that the backward pass takes, 0 where there is none."""
        outputs = zip(self.values.made, self.functions.phases.made, strict=True)
        return [
            gradient_or_zeros(gradients, value, spec)
            for value, spec in outputs
            if is_differentiable(spec)
        ]

    def add_input_gradients(
        self, gradients: Values, input_gradients: list[tf.Tensor]
    ) -> None:
        """Adds the backward pass's results to the gradients of the inputs."""
        for value, gradient in zip(self.given_gradients, input_gradients, strict=True):
            before = gradients.get(value)
            gradients[value] = gradient if before is None else before + gradient


def gradient_or_zeros(gradients: Values, value: int, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a value's gradient, or zeros if there is none."""
    return gradients[value] if value in gradients else tf.zeros(spec.shape, spec.dtype)
