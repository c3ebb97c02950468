"""Decoding of images, and of no more of them than is needed.

Shapes: images of H x W pixels in C channels. A window is int32 [4]: the row of its
first pixel, the column, its height, its width.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.input.transforms.crop_transform import keep_window
from lingvo_pipe.input.transforms.transform_chain import ChooseWindow

# JPEG interpolates colour between neighbours, which a pixel at the border of what is
# decoded lacks.
_MARGIN = 2


def decode_image(
    encoded: tf.Tensor, num_channels: int, choose_window: ChooseWindow | None
) -> tf.Tensor:
    """Returns the pixels of an image, or of a window of it.

    The window of a JPEG has the pixels it has in the whole image, to the byte; around
    it little is decoded.

    Args:
        encoded: string [], the content of a file of JPEG, PNG, GIF or BMP.
        num_channels: C; an image of another number is converted.
        choose_window: Gives the window for the shape of the image; None: all of it.

    Returns:
        uint8 [H, W, C].
    """
    if choose_window is None:
        return _decode_whole(encoded, num_channels)
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg_window(encoded, num_channels, choose_window),
        lambda: _cut(_decode_whole(encoded, num_channels), choose_window),
    )


def _cut(image: tf.Tensor, choose_window: ChooseWindow) -> tf.Tensor:
    return keep_window(image, choose_window(tf.shape(image)))


def _decode_whole(encoded: tf.Tensor, num_channels: int) -> tf.Tensor:
    image = tf.io.decode_image(encoded, num_channels, expand_animations=False)
    return tf.ensure_shape(image, [None, None, num_channels])


def _decode_jpeg_window(
    encoded: tf.Tensor, num_channels: int, choose_window: ChooseWindow
) -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(encoded)
    shape = tf.concat([shape[:2], [num_channels]], axis=0)
    window = choose_window(shape)
    first = tf.maximum(window[:2] - _MARGIN, 0)
    last = tf.minimum(window[:2] + window[2:] + _MARGIN, shape[:2])
    around = tf.image.decode_and_crop_jpeg(
        encoded, tf.concat([first, last - first], axis=0), num_channels
    )
    inner = tf.concat([window[:2] - first, window[2:]], axis=0)
    return tf.ensure_shape(keep_window(around, inner), [None, None, num_channels])
