"""What every transform is that keeps a window of the image.

Shapes: images of H x W pixels in C channels. A window is int32 [4]: the row of its
first pixel, the column, its height, its width.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform


class CropTransform(ImageTransform):
    """Keeps a window, chosen by the image's size and not by its pixels.

    Of a JPEG whose first transform crops, no more than the window is decoded.
    """

    def Window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the window to keep, int32 [4].

        Args:
            shape: int32 [3]: H, W, C.
            seed: As for Apply.
        """
        raise NotImplementedError(f"{type(self).__name__}.Window")

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        return None, None, shape[2]

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return keep_window(image, self.Window(tf.shape(image), seed))


def keep_window(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of `image` [H, W, C] within a window, [height, width, C]."""
    row, column, height, width = tf.unstack(window)
    return image[row : row + height, column : column + width]
