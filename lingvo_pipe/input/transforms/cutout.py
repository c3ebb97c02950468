"""A square of the image painted over.

After T. DeVries and G. W. Taylor, "Improved Regularization of Convolutional Neural
Networks with Cutout" (2017).
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageTransform
from lingvo_pipe.input.transforms.param_checks import check_int, check_number


class Cutout(ImageTransform):
    """Paints over a square whose centre is any pixel of the image.

    What of the square lies outside the image is lost, so that less is painted over near
    the border.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the square; the paper's is 16 for CIFAR-10 and 8 for CIFAR-100."""
        p = super().Params()
        p.Define("size", 16, "Pixels of each side of the square.")
        p.Define("fill", 0.5, "Value of the pixels in the square.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_int(params, "size", least=0)
        check_number(params, "fill", least=0, most=1)

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        sides = tf.shape(image)[:2]
        place = tf.random.stateless_uniform([2], seed)
        centre = tf.cast(place * tf.cast(sides, tf.float32), tf.int32)
        first = centre - self.params.size // 2
        rows, columns = (
            _is_within(tf.range(sides[axis]), first[axis], self.params.size)
            for axis in (0, 1)
        )
        is_cut = rows[:, tf.newaxis, tf.newaxis] & columns[tf.newaxis, :, tf.newaxis]
        return tf.where(is_cut, tf.cast(self.params.fill, image.dtype), image)


def _is_within(places: tf.Tensor, first: tf.Tensor, number: int) -> tf.Tensor:
    return (places >= first) & (places < first + number)
