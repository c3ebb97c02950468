"""Batches of images and their classes, for training and for evaluation.

Shapes: B examples in a batch, N in the data set, images of H x W pixels in C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.example_order import iterate_batches
from lingvo_pipe.input.prepared_dataset import open_split, prepared_builder
from lingvo_pipe.nested_map import NestedMap


class ImageClassificationInput:
    """Reads one split of an image data set and makes batches of it.

    The whole split is held in memory. A batch is a NestedMap of

    - image: float32 [B, H, W, C], pixels from 0 to 1.
    - label: int32 [B].
    - weight: float32 [B], 1 for an example and 0 for padding.

    Training batches depend on nothing but the params and the step, so a resumed run
    reads the batches that the uninterrupted run would have read.

    Args:
        params: The params; a data set that is new is prepared on disk first.

    Raises:
        ValueError: If a param is unset or out of range, the data set or the split is
            unknown, or the data set is not one of classified images.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define(
            "dataset",
            "optdigits",
            "Name of TensorFlow Datasets, or optdigits, which is embedded.",
        )
        p.Define("split", "train", "Split to read, such as test or train[:90%].")
        p.Define("data_dir", None, "Where data sets lie; None: the default of tfds.")
        p.Define("batch_size", None, "Examples in a batch, over all micro-batches.")
        p.Define("shuffle", True, "Whether training shuffles the examples each epoch.")
        p.Define("random_seed", 0, "Chooses the order of the training examples.")
        p.Define("pixel_max", 255, "Pixel value that becomes 1.0.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        _check_params(params)
        self._params = params
        builder = prepared_builder(params.dataset, params.data_dir)
        _check_features(params.dataset, builder.info.features)
        self._num_classes = builder.info.features["label"].num_classes
        source: Any = open_split(builder, params.split)
        examples = source.__getitems__(range(len(source)))
        self._images = np.stack([example["image"] for example in examples])
        self._labels = np.array([example["label"] for example in examples], np.int32)
        brightest = self._images.max()
        if brightest > params.pixel_max:
            raise ValueError(
                f"pixel_max must reach the brightest pixel of {params.dataset}, "
                f"{brightest}; got {params.pixel_max}. Set pixel_max={brightest}."
            )

    @property
    def params(self) -> InstantiableParams:
        return self._params

    @property
    def num_examples(self) -> int:
        """Examples in the split."""
        return len(self._labels)

    @property
    def num_batches(self) -> int:
        """Batches that hold every example once."""
        return -(-self.num_examples // self._params.batch_size)

    @property
    def num_classes(self) -> int:
        return self._num_classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return self._images.shape[1:]

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each part of a batch."""
        batch_size = self._params.batch_size
        return NestedMap(
            image=tf.TensorSpec((batch_size, *self.image_shape), tf.float32),
            label=tf.TensorSpec((batch_size,), tf.int32),
            weight=tf.TensorSpec((batch_size,), tf.float32),
        )

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        """Returns the endless batches of training from `start_step` on.

        Args:
            start_step: The steps already trained.

        Raises:
            ValueError: If `start_step` is negative or a batch exceeds the split.
        """
        p = self._params
        if start_step < 0:
            raise ValueError(
                f"start_step must not be negative; got {start_step}. "
                "Give the number of steps already trained."
            )
        if p.batch_size > self.num_examples:
            raise ValueError(
                f"batch_size must not exceed the {self.num_examples} examples of "
                f"{p.dataset} split {p.split!r} in training; got {p.batch_size}. "
                "Set a smaller batch_size or a larger split."
            )
        seed = p.random_seed if p.shuffle else None
        return self._Dataset(
            lambda: iterate_batches(seed, start_step, p.batch_size, self.num_examples)
        )

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns one pass over the split, in its order.

        The last batch is filled up with copies of the last example of weight 0.
        """
        size = self._params.batch_size
        return self._Dataset(
            lambda: np.arange(self.num_batches * size).reshape(-1, size)
        ).apply(tf.data.experimental.assert_cardinality(self.num_batches))

    def _Dataset(self, rows: Callable[[], Iterable[np.ndarray]]) -> tf.data.Dataset:
        """Returns a batch for each row [B] of example indices."""
        return tf.data.Dataset.from_generator(
            lambda: map(self._Batch, rows()), output_signature=self.element_spec
        ).prefetch(tf.data.AUTOTUNE)

    def _Batch(self, indices: np.ndarray) -> NestedMap:
        """Returns the examples at `indices`; those past the last are padding."""
        existing = np.minimum(indices, self.num_examples - 1)
        scale = np.float32(self._params.pixel_max)
        return NestedMap(
            image=self._images[existing].astype(np.float32) / scale,
            label=self._labels[existing],
            weight=(indices < self.num_examples).astype(np.float32),
        )


def _check_params(p: InstantiableParams) -> None:
    """Raises a ValueError that names every param that is unset or out of range."""
    faults = []
    if not isinstance(p.batch_size, int) or p.batch_size < 1:
        faults.append(f"batch_size must be a positive int; got {p.batch_size!r}")
    if not isinstance(p.random_seed, int) or not 0 <= p.random_seed < 2**64:
        faults.append(
            f"random_seed must be an int from 0 to 2**64 - 1; got {p.random_seed!r}"
        )
    if not isinstance(p.pixel_max, int | float) or not p.pixel_max > 0:
        faults.append(f"pixel_max must be a positive number; got {p.pixel_max!r}")
    if faults:
        raise ValueError(
            f"{'; '.join(faults)}. Set them in the params of ImageClassificationInput."
        )


def _check_features(dataset: str, features: Any) -> None:
    """Raises a ValueError unless the examples are an image and its class."""
    features = dict(features.items())
    image, label = features.get("image"), features.get("label")
    has_image = image is not None and len(image.shape) == 3 and None not in image.shape
    if not has_image or not isinstance(label, tfds.features.ClassLabel):
        found = ", ".join(f"{name} {features[name]}" for name in sorted(features))
        raise ValueError(
            "dataset must have images of one size [H, W, C] under 'image' and classes "
            f"under 'label'; got {dataset!r} with {found}. Choose another data set."
        )
