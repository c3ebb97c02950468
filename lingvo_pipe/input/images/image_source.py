"""Protocols of data sets of classified images, and functions that read one image.

Shapes: K examples of N in a split, images of H x W pixels in C channels. A window is a
rectangle in an image: int32 `[4]`, first row, first column, height and width.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from lingvo_pipe.input.transforms.geometry import keep_window
from lingvo_pipe.input.transforms.image_transform import ImageShape
from lingvo_pipe.input.transforms.transform_chain import ChooseWindow


@dataclass(frozen=True)
class ImageFormat:
    """The format of a data set's images, known before any image is read."""

    shape: ImageShape  # (H, W, C); H and W are None if images differ
    is_encoded: bool  # True for JPEG, PNG, GIF or BMP, decoded to uint8; False: arrays
    dtype: tf.DType  # of the pixels
    pixel_max: int | None = None  # largest pixel; if None, the dtype's maximum


class ImageSource(Protocol):
    """One split of a data set of images, with random access to the examples.

    If the labels are known without reading examples, `labels` has them, int32 `[N]`.
    """

    @property
    def format(self) -> ImageFormat:
        """The format of the images."""

    @property
    def num_examples(self) -> int:
        """The number of examples in the split, N."""

    def Fetch(self, indices: tf.Tensor) -> Any:
        """Returns the records of examples, int64 `[K]`, as nested tensors `[K, ...]`.

        A record is what `Read` needs for one example, such as its path.
        """

    def Read(self, record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the image of a record, and its label, int32 `[]`.

        The image is `[H, W, C]` or, if encoded, the content of a file, string `[]`.
        """

    def Name(self, index: int) -> str:
        """Returns a text that tells users where an example is, such as its file."""


class ImageDataset(Protocol):
    """A data set of classified images, which may be made before its files exist."""

    @property
    def format(self) -> ImageFormat:
        """The format of the images."""

    @property
    def class_names(self) -> list[str]:
        """The name of each class, in the order of the labels. May need the files."""

    def Open(self, split: str) -> ImageSource:
        """Returns a split such as `train`, or a slice such as `train[:90%]`.

        Raises:
            ValueError: if the data are missing, or the split has no examples or labels.
        """


def read_pixels(
    source: ImageSource, record: Any, choose_window: ChooseWindow | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the pixels `[H, W, C]` and the label, int32 `[]`, of a record.

    If `choose_window` is given, returns only the pixels in the window that it chooses.
    """
    image, label = source.Read(record)
    if source.format.is_encoded:
        image = decode_image(image, source.format.shape[2], choose_window)
    elif choose_window is not None:
        image = cut(image, choose_window)
    return image, label


# JPEG interpolates colors between neighbors, so a decoded part's border is inexact.
_MARGIN = 2


def decode_image(
    encoded: tf.Tensor,
    num_channels: int,
    choose_window: ChooseWindow | None,
    dtype: tf.DType = tf.uint8,
) -> tf.Tensor:
    """Decodes an image file, or only a window of the image: `[H, W, C]`.

    `encoded`, string `[]`, is a JPEG, PNG, GIF or BMP file. `choose_window` maps the
    image's shape to a window. Of a JPEG, little more than the window is decoded,
    bitwise equal to that part of the whole image. `dtype` is uint8, or uint16 for whole
    images.
    """

    def whole() -> tf.Tensor:
        image = tf.io.decode_image(
            encoded, num_channels, dtype, expand_animations=False
        )
        return tf.ensure_shape(image, [None, None, num_channels])

    if choose_window is None:
        return whole()
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg_window(encoded, num_channels, choose_window),
        lambda: cut(whole(), choose_window),
    )


def cut(image: tf.Tensor, choose_window: ChooseWindow) -> tf.Tensor:
    """Returns the pixels `[H, W, C]` in the window that `choose_window` chooses."""
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
