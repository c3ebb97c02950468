"""The image in another size."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform
from lingvo_pipe.input.transforms.param_checks import check_int


class Resize(ImageTransform):
    """Stretches or shrinks the image to a size, whatever its aspect ratio.

    Each pixel is interpolated between the four nearest, as in Inception's
    preprocessing; there is no smoothing before shrinking.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the size."""
        p = super().Params()
        p.Define("height", None, "Pixels from top to bottom.")
        p.Define("width", None, "Pixels from left to right.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_int(params, "height", least=1)
        check_int(params, "width", least=1)

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        return self.params.height, self.params.width, shape[2]

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.image.resize(image, [self.params.height, self.params.width])
