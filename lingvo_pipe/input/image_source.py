"""What every data set of classified images is, wherever it lies.

Shapes: K examples of N in a split, images of H x W pixels in C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from lingvo_pipe.input.transforms.image_transform import ImageShape


@dataclass(frozen=True)
class ImageFormat:
    """What is known of a data set's images before any is read.

    Attributes:
        shape: (H, W, C); H and W are None if they differ from image to image.
        is_encoded: Whether they are read as files of JPEG, PNG, GIF or BMP, to be
            decoded to uint8, or as arrays.
        dtype: The type of the pixels.
    """

    shape: ImageShape
    is_encoded: bool
    dtype: tf.DType


class ImageSource(Protocol):
    """One split of a data set, its examples to be read in any order."""

    @property
    def num_examples(self) -> int:
        """N."""

    def Fetch(self, indices: tf.Tensor) -> Any:
        """Returns what it takes to read some examples.

        Runs for several examples at a time, since that is quicker, in a function of
        tf.data.

        Args:
            indices: int64 [K], each from 0 to N - 1.

        Returns:
            A structure of tensors [K, ...]: the records.
        """

    def Read(self, record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns an example's image, undecoded if it is encoded, and its label.

        Args:
            record: A structure of tensors [...], of one example.

        Returns:
            (string [] or pixels [H, W, C], int32 []).
        """

    def Name(self, index: int) -> str:
        """Returns where an example lies, for errors: a file, or a place in a data set.

        Args:
            index: From 0 to N - 1.
        """


class ImageDataset(Protocol):
    """A data set that is known, but need not be there yet."""

    @property
    def format(self) -> ImageFormat:
        """What is known of the images."""

    @property
    def class_names(self) -> list[str]:
        """The name of each class, in the order of the labels.

        Raises:
            ValueError: If the data set must be there to know them, and is not.
        """

    def Open(self, split: str) -> ImageSource:
        """Returns a split such as `train`, or a part of one such as `train[:90%]`.

        Raises:
            ValueError: If the data set is not there, with the way to get it; or if
                there is no such split, it is empty or without labels.
        """
