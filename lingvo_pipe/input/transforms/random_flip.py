"""The image or its mirror image."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.input.transforms.image_transform import ImageTransform


class RandomFlip(ImageTransform):
    """Exchanges left and right, of every second image on average."""

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.image.stateless_random_flip_left_right(image, seed)
