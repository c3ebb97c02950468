"""Reading, decoding and transforming one image.

Shapes: images of H x W pixels in C channels. A window is int32 [4]: the row of its
first pixel, the column, its height, its width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lingvo_pipe.input.images.image_pipeline import Draw
from lingvo_pipe.input.images.image_source import ImageFormat, ImageSource
from lingvo_pipe.input.transforms.geometry import keep_window
from lingvo_pipe.input.transforms.transform_chain import ChooseWindow, TransformChain
from lingvo_pipe.nested_map import NestedMap


@dataclass(frozen=True)
class ImageReader:
    """A function that reads and transforms an image.

    Random numbers depend on the seed, the epoch and the example, not on the batch.

    Attributes:
        source: the source of the examples.
        format: the format of the images.
        chain: the transforms.
        pixel_max: the pixel value that becomes 1.0.
        random_seed: seed of the random numbers, from 0 to 2**64 - 1.
    """

    source: ImageSource
    format: ImageFormat
    chain: TransformChain
    pixel_max: float
    random_seed: int

    def __call__(self, draw: Draw, record: Any) -> NestedMap:
        """Returns image, float32 [H, W, C], label, int32 [], weight, float32 []."""
        seed = self._seed(draw)
        pixels, label = read_pixels(
            self.source, self.format, record, self.chain.first_window(seed)
        )
        image = tf.cast(pixels, tf.float32) / self.pixel_max
        image = self.chain.apply_after_window(image, seed)
        return NestedMap(
            image=tf.ensure_shape(image, self.chain.output_shape),
            label=label,
            weight=draw.weight,
        )

    def _seed(self, draw: Draw) -> tf.Tensor:
        """Returns the example's seed, int64 [2]."""
        is_high = self.random_seed >= 2**63
        signed = self.random_seed - 2**64 if is_high else self.random_seed
        seed = tf.constant([signed, 0], tf.int64)
        return tf.random.fold_in(tf.random.fold_in(seed, draw.epoch), draw.index)


def read_pixels(
    source: ImageSource,
    image_format: ImageFormat,
    record: Any,
    choose_window: ChooseWindow | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns pixels [H, W, C], of a window if given, and label, int32 []."""
    image, label = source.Read(record)
    if image_format.is_encoded:
        image = decode_image(image, image_format.shape[2], choose_window)
    elif choose_window is not None:
        image = _cut(image, choose_window)
    return image, label


# JPEG interpolates colors between neighbors, so the border of a decoded part is
# inexact.
_MARGIN = 2


def decode_image(
    encoded: tf.Tensor, num_channels: int, choose_window: ChooseWindow | None
) -> tf.Tensor:
    """Returns the pixels of an image, or of a window of it.

    A window of a JPEG is bitwise equal to that part of the whole image, but little more
    than the window is decoded.

    Args:
        encoded: string [], the content of a JPEG, PNG, GIF or BMP file.
        num_channels: C; other images are converted.
        choose_window: function from the image's shape to the window; if None, the
            whole image.

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
