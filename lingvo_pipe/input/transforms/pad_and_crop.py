"""The image moved by a few pixels.

As is usual for CIFAR since C.-Y. Lee et al., "Deeply-Supervised Nets" (2014).
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageTransform
from lingvo_pipe.input.transforms.param_checks import check_int, check_number


class PadAndCrop(ImageTransform):
    """Pads the image on all sides and keeps a random window of its former size."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: how far the image can move."""
        p = super().Params()
        p.Define("padding", 4, "Pixels added on each side.")
        p.Define("fill", 0.5, "Value of the pixels added.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_int(params, "padding", least=0)
        check_number(params, "fill", least=0, most=1)

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        margins = [[p.padding, p.padding], [p.padding, p.padding], [0, 0]]
        padded = tf.pad(image, margins, constant_values=p.fill)
        start = tf.random.stateless_uniform(
            [2], seed, minval=0, maxval=2 * p.padding + 1, dtype=tf.int32
        )
        size = tf.shape(image)
        moved = tf.slice(padded, tf.concat([start, [0]], axis=0), size)
        return tf.ensure_shape(moved, image.shape)
