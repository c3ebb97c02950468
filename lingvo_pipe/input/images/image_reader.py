"""Reading and decoding one image, or a window of it.

Shapes: images of H x W pixels in C channels. A window is int32 [4]: the row of its
first pixel, the column, its height, its width.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.input.images.image_source import ImageSource
from lingvo_pipe.input.transforms.geometry import keep_window
from lingvo_pipe.input.transforms.transform_chain import ChooseWindow


def read_pixels(
    source: ImageSource, record: Any, choose_window: ChooseWindow | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns pixels [H, W, C], of a window if given, and label, int32 []."""
    image, label = source.Read(record)
    if source.format.is_encoded:
        image = decode_image(image, source.format.shape[2], choose_window)
    elif choose_window is not None:
        image = _cut(image, choose_window)
    return image, label


# JPEG interpolates colors between neighbors, so the border of a decoded part is
# inexact.
_MARGIN = 2


def decode_image(
    encoded: tf.Tensor, num_channels: int, choose_window: ChooseWindow | None
) -> tf.Tensor:
    """Returns the pixels, uint8 [H, W, C], of an image or of a window of it.

    A window of a JPEG is bitwise equal to that part of the whole image, but little more
    than the window is decoded.

    Args:
        encoded: string [], the content of a JPEG, PNG, GIF or BMP file.
        num_channels: C; other images are converted.
        choose_window: function from the image's shape to the window; if None, the
            whole image.
    """

    def whole() -> tf.Tensor:
        image = tf.io.decode_image(encoded, num_channels, expand_animations=False)
        return tf.ensure_shape(image, [None, None, num_channels])

    if choose_window is None:
        return whole()
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg_window(encoded, num_channels, choose_window),
        lambda: _cut(whole(), choose_window),
    )


def _cut(image: tf.Tensor, choose_window: ChooseWindow) -> tf.Tensor:
    return keep_window(image, choose_window(tf.shape(image)))


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
