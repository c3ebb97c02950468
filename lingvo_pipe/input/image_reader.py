"""From an example's record to the image that is fed.

Shapes: images of H x W pixels in C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lingvo_pipe.input.image_decoding import decode_image
from lingvo_pipe.input.image_faults import read_all
from lingvo_pipe.input.image_pipeline import Draw
from lingvo_pipe.input.image_source import ImageFormat, ImageSource
from lingvo_pipe.input.transforms.crop_transform import keep_window
from lingvo_pipe.input.transforms.transform_chain import ChooseWindow, TransformChain
from lingvo_pipe.nested_map import NestedMap


@dataclass(frozen=True)
class ImageReader:
    """Reads images and transforms them.

    Random numbers are a function of the seed, the epoch and the example, whatever the
    batch it is in.

    Attributes:
        source: Where the examples are.
        format: What is known of the images.
        chain: What is done to them.
        pixel_max: The pixel value that becomes 1.0.
        random_seed: Chooses the random numbers; from 0 to 2**64 - 1.
    """

    source: ImageSource
    format: ImageFormat
    chain: TransformChain
    pixel_max: float
    random_seed: int

    def __call__(self, draw: Draw, record: Any) -> NestedMap:
        """Returns image, float32 [H, W, C], label, int32 [], weight, float32 []."""
        seed = self._Seed(draw)
        pixels, label = _read_pixels(
            self.source, self.format, record, self.chain.FirstWindow(seed)
        )
        image = tf.cast(pixels, tf.float32) / self.pixel_max
        image = self.chain.ApplyAfterWindow(image, seed)
        return NestedMap(
            image=tf.ensure_shape(image, self.chain.output_shape),
            label=label,
            weight=draw.weight,
        )

    def _Seed(self, draw: Draw) -> tf.Tensor:
        """Returns the example's seed, int64 [2]."""
        is_high = self.random_seed >= 2**63
        signed = self.random_seed - 2**64 if is_high else self.random_seed
        seed = tf.constant([signed, 0], tf.int64)
        return tf.random.fold_in(tf.random.fold_in(seed, draw.epoch), draw.index)


def brightest_pixel(source: ImageSource, image_format: ImageFormat) -> float:
    """Returns the largest value of any pixel; reads the whole split.

    Raises:
        ValueError: If an image can't be read.
    """
    maxima = read_all(
        source,
        image_format,
        lambda record: tf.reduce_max(_read_pixels(source, image_format, record)[0]),
    )
    return max(maxima.as_numpy_iterator())


def _read_pixels(
    source: ImageSource,
    image_format: ImageFormat,
    record: Any,
    choose_window: ChooseWindow | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns pixels [H, W, C], of a window if one is chosen, and label, int32 []."""
    image, label = source.Read(record)
    if image_format.is_encoded:
        image = decode_image(image, image_format.shape[2], choose_window)
    elif choose_window is not None:
        image = keep_window(image, choose_window(tf.shape(image)))
    return image, label
