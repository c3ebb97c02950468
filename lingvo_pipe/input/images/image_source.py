"""Protocols of data sets of classified images.

Shapes: K examples of N in a split, images of H x W pixels in C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from lingvo_pipe.input.transforms.image_transform import ImageShape


@dataclass(frozen=True)
class ImageFormat:
    """The format of a data set's images, known before any is read.

    Attributes:
        shape: (H, W, C); H and W are None if images differ.
        is_encoded: True for JPEG, PNG, GIF or BMP content, decoded to uint8; False for
            arrays.
        dtype: the type of the pixels.
    """

    shape: ImageShape
    is_encoded: bool
    dtype: tf.DType


class ImageSource(Protocol):
    """One split of a data set, with random access."""

    @property
    def format(self) -> ImageFormat:
        """The format of the images."""

    @property
    def num_examples(self) -> int:
        """N."""

    def Fetch(self, indices: tf.Tensor) -> Any:
        """Returns the records of examples, int64 [K]: a structure of tensors [K, ...].

        Runs in a function of tf.data, for several examples at once for speed.
        """

    def Read(self, record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns an image, string [] or pixels [H, W, C], and its label, int32 [].

        Args:
            record: a structure of tensors [...], of one example.
        """

    def Name(self, index: int) -> str:
        """Returns the location of an example for errors, such as a file."""


class ImageDataset(Protocol):
    """A data set, which need not be on disk until it is opened."""

    @property
    def format(self) -> ImageFormat:
        """The format of the images."""

    @property
    def class_names(self) -> list[str]:
        """The name of each class, in the order of the labels; may need the data."""

    def Open(self, split: str) -> ImageSource:
        """Returns a split such as `train`, or a slice such as `train[:90%]`.

        Raises:
            ValueError: if the data set is missing, with the way to get it, or the split
                does not exist, is empty or has no labels.
        """
