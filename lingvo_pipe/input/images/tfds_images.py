"""Classified images from TensorFlow Datasets: K of N examples, images `[H, W, C]`."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.input import prepared_dataset
from lingvo_pipe.input.images.image_source import ImageFormat
from lingvo_pipe.input.tf_data import call_numpy


class TfdsImages:
    """An `ImageDataset` of TensorFlow Datasets (tfds).

    Raises:
        ValueError: if the data set is unknown, or has no images with labels.
    """

    def __init__(self, name: str, data_dir: str | None) -> None:
        self._name, self._data_dir = name, data_dir
        builder = prepared_dataset.find_builder(name, data_dir)
        self._features = builder.info.features
        pixel_max = getattr(builder, "PIXEL_MAX", None)
        self.format = _image_format(name, self._features, pixel_max)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of the labels, known without files."""
        return self._features["label"].names

    def Open(self, split: str) -> "TfdsSplit":
        """Returns a split such as `train`, or a slice such as `train[:90%]`."""
        builder = prepared_dataset.prepared_builder(self._name, self._data_dir)
        source = TfdsSplit(builder, split, self.format)
        _, first_label = source.Read(source.Fetch(tf.constant([0], tf.int64))[0])
        if first_label < 0:  # It has no labels.
            expected = f"a split of {self._name} with labels"
            raise UserValueError(path="split", expected=expected, got=split)
        return source


class TfdsSplit:
    """An `ImageSource` of one split of a data set that tfds has prepared."""

    def __init__(self, builder: Any, split: str, image_format: ImageFormat) -> None:
        self._records = prepared_dataset.open_records(builder, split)
        self.format, self.num_examples = image_format, len(self._records)
        self._name = f"of split {split!r} of {builder.name} in {builder.data_dir}"
        features = {name: builder.info.features[name] for name in ("image", "label")}
        self._features = tfds.features.FeaturesDict(features)
        skip = {"image": tfds.decode.SkipDecoding()}
        self._decoders = skip if image_format.is_encoded else None

    def Fetch(self, indices: tf.Tensor) -> tf.Tensor:
        """Returns the stored records of examples, string `[K]`."""

        def fetch(numbers: np.ndarray) -> np.ndarray:
            return np.array(self._records.__getitems__(numbers.tolist()), object)

        return call_numpy(fetch, indices, tf.TensorSpec(indices.shape, tf.string))

    def Read(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = self._features.deserialize_example(record, decoders=self._decoders)
        return example["image"], tf.cast(example["label"], tf.int32)

    def Name(self, index: int) -> str:
        return f"example {index} {self._name}"


def _image_format(dataset: str, features: Any, pixel_max: int | None) -> ImageFormat:
    features = dict(features.items())
    image, label = features.get("image"), features.get("label")
    has_image = image is not None and len(image.shape) == 3 and image.shape[2]
    if not has_image or not isinstance(label, tfds.features.ClassLabel):
        text = ", ".join(f"{name} {features[name]}" for name in sorted(features))
        expected = "images [H, W, C] under 'image' and classes under 'label'"
        got = Words(f"{dataset!r} with {text}")
        raise UserValueError(path="dataset", expected=expected, got=got)
    dtype = tf.as_dtype(image.np_dtype)
    is_encoded = isinstance(image, tfds.features.Image) and dtype == tf.uint8
    return ImageFormat(tuple(image.shape), is_encoded, dtype, pixel_max)
