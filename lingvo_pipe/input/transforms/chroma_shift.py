"""The image's brightness and tint, shifted.

As AmoebaNet's published program does unless told otherwise.

Shapes: images of H x W pixels in 3 channels: red, green, blue.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform
from lingvo_pipe.input.transforms.param_checks import check_is_rgb, check_number

# What Y, Cb and Cr add to red, green and blue: ITU-R BT.601, as JPEG uses it.
_RGB_OF_Y_CB_CR = [
    [1.0, 1.0, 1.0],
    [0.0, -0.344136, 1.772],
    [1.402, -0.714136, 0.0],
]


class ChromaShift(ImageTransform):
    """Adds one random number to luma and one to each chroma of all pixels.

    Values that leave 0 to 1 become 0 or 1.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: how far brightness and tint may move."""
        p = super().Params()
        p.Define("max_luma", 32 / 255, "Luma changes by at most this much.")
        p.Define("max_chroma", 0.1, "Cb, and Cr, change by at most this much.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_number(params, "max_luma", least=0)
        check_number(params, "max_chroma", least=0)

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        check_is_rgb(self.params, shape)
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        most = tf.constant([p.max_luma, p.max_chroma, p.max_chroma], tf.float32)
        shift = most * tf.random.stateless_uniform([3], seed, minval=-1.0, maxval=1.0)
        shift = tf.reduce_sum(shift[:, tf.newaxis] * _RGB_OF_Y_CB_CR, axis=0)
        return tf.clip_by_value(image + shift, 0.0, 1.0)
