"""Classified images from TensorFlow Datasets.

Shapes: K examples of N in a split, images of H x W pixels in C channels.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.images.image_source import ImageFormat
from lingvo_pipe.input.prepared_dataset import (
    find_builder,
    open_split,
    prepared_builder,
)


class TfdsImages:
    """An `ImageDataset` of TensorFlow Datasets: images and their classes.

    Args:
        name: name, as in `find_builder`.
        data_dir: folder, as in `find_builder`.

    Raises:
        ValueError: if no such data set is known, or it has no classified images.
    """

    def __init__(self, name: str, data_dir: str | None) -> None:
        self._name, self._data_dir = name, data_dir
        self._features = find_builder(name, data_dir).info.features
        self._format = _image_format(name, self._features)

    @property
    def format(self) -> ImageFormat:
        """The format of the images."""
        return self._format

    @property
    def class_names(self) -> list[str]:
        """The names of the classes; needs no data."""
        return self._features["label"].names

    def Open(self, split: str) -> TfdsSplit:
        """Opens a split; see `ImageDataset`."""
        builder = prepared_builder(self._name, self._data_dir)
        source = TfdsSplit(builder, split, self._format.is_encoded)
        if source.first_label() < 0:
            raise UserValueError(
                f"split: expected a split with labels, got {split!r} of {self._name}, "
                "which has none. Choose another split."
            )
        return source


class TfdsSplit:
    """An `ImageSource` of a split of a prepared data set.

    Stored records are fetched as bytes; TensorFlow's operations parse them in parallel.
    """

    def __init__(self, builder: Any, split: str, is_encoded: bool) -> None:
        self._records: Any = open_split(
            builder,
            split,
            deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
        )
        self._name = f"of split {split!r} of {builder.name} in {builder.data_dir}"
        features = builder.info.features
        image_and_label = tfds.features.FeaturesDict(
            {name: features[name] for name in ("image", "label")}
        )
        self._deserialize = functools.partial(
            image_and_label.deserialize_example,
            decoders={"image": tfds.decode.SkipDecoding()} if is_encoded else None,
        )

    @property
    def num_examples(self) -> int:
        return len(self._records)

    def Fetch(self, indices: tf.Tensor) -> tf.Tensor:
        """Returns the stored records, string [K]."""
        records = tf.numpy_function(
            self._fetch_array, [indices], tf.string, stateful=False
        )
        return tf.ensure_shape(records, indices.shape)

    def Read(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = self._deserialize(record)
        return example["image"], tf.cast(example["label"], tf.int32)

    def Name(self, index: int) -> str:
        return f"example {index} {self._name}"

    def first_label(self) -> int:
        """Returns the first example's label, which is negative without labels."""
        _, label = self.Read(tf.constant(self._records[0]))
        return int(label)

    def _fetch_array(self, indices: np.ndarray) -> np.ndarray:
        return np.array(self._records.__getitems__(indices.tolist()), object)


def _image_format(dataset: str, features: Any) -> ImageFormat:
    """Returns the format; raises a ValueError without images and classes."""
    features = dict(features.items())
    image, label = features.get("image"), features.get("label")
    has_image = image is not None and len(image.shape) == 3 and image.shape[2]
    if not has_image or not isinstance(label, tfds.features.ClassLabel):
        found = ", ".join(f"{name} {features[name]}" for name in sorted(features))
        raise UserValueError(
            "dataset: expected images [H, W, C] under 'image' and classes under "
            f"'label', got {dataset!r} with {found}. Choose another data set."
        )
    dtype = tf.as_dtype(image.np_dtype)
    is_encoded = isinstance(image, tfds.features.Image) and dtype == tf.uint8
    return ImageFormat(tuple(image.shape), is_encoded, dtype)
