"""Batches of images and their classes, for training and for evaluation.

Shapes: B examples in a batch, N in the data set, images of H x W pixels in C channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.example_order import stream_indices
from lingvo_pipe.input.image_dataset import find_dataset
from lingvo_pipe.input.image_faults import FaultsNamed, consecutive
from lingvo_pipe.input.image_input_checks import (
    check_labels,
    check_num_logits,
    check_params,
    common_shape,
)
from lingvo_pipe.input.image_pipeline import (
    CHUNK_SIZE,
    in_batches,
    one_pass,
    read_examples,
    training_draws,
)
from lingvo_pipe.input.image_reader import ImageReader, brightest_pixel
from lingvo_pipe.input.image_source import ImageSource
from lingvo_pipe.input.label_subset import LabelSubset
from lingvo_pipe.input.transforms.transform_chain import TransformChain
from lingvo_pipe.nested_map import NestedMap


class ImageClassificationInput:
    """Reads one split of an image data set and makes batches of it.

    A batch is a NestedMap of

    - image: float32 [B, H, W, C], pixels from 0 to 1, or what transforms make of them.
    - label: int32 [B].
    - weight: float32 [B], 1 for an example and 0 for padding.

    Training batches depend on nothing but the params and the step, so a resumed run
    reads the batches that the uninterrupted run would have read. Of the data set no
    more than a few batches are in memory.

    The data set is opened when it is first read from: what is known of it without that,
    such as `element_spec`, can be had without the data. An image that can't be read is
    named when its batch is to come.

    Args:
        params: The params.

    Raises:
        ValueError: If a param is unset or out of range, the data set is unknown or not
            one of classified images, or its images do not come out alike.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define(
            "dataset",
            "optdigits",
            "Name of TensorFlow Datasets, such as cifar10; optdigits, which is "
            "embedded; or image_folder:PATH for PATH/SPLIT/CLASS/IMAGE.jpg.",
        )
        p.Define("split", "train", "Split to read, such as test or train[:90%].")
        p.Define(
            "data_dir",
            None,
            "Where data sets lie, and where PATH begins; None: the default of tfds.",
        )
        p.Define(
            "labels",
            None,
            "Labels of the examples to read, which become 0, 1, ... in this order; "
            "None: all, as they are. The split is read once to find them.",
        )
        p.Define(
            "num_logits",
            None,
            "How many classes the model tells apart. More are refused, before any is "
            "met in training; None: any number is read.",
        )
        p.Define("batch_size", None, "Examples in a batch, over all micro-batches.")
        p.Define("shuffle", True, "Whether training shuffles the examples each epoch.")
        p.Define(
            "random_seed",
            0,
            "Chooses the order of the training examples, and the random numbers of "
            "transforms.",
        )
        p.Define("pixel_max", 255, "Pixel value that becomes 1.0.")
        p.Define(
            "train_transforms",
            [],
            "What is done to each image in training, in order: params of "
            "ImageTransforms, of lingvo_pipe/input/transforms or your own.",
        )
        p.Define(
            "eval_transforms", [], "As train_transforms, for batches of evaluation."
        )
        p.Define(
            "num_parallel_calls",
            None,
            "How many images to decode and transform at a time; None: as many as pay.",
        )
        return p

    def __init__(self, params: InstantiableParams) -> None:
        check_params(params)
        self._params = params
        self._dataset = find_dataset(params.dataset, params.data_dir)
        shape = self._dataset.format.shape
        self._train_chain = TransformChain(params.train_transforms, shape)
        self._eval_chain = TransformChain(params.eval_transforms, shape)
        self._image_shape = common_shape(
            self._train_chain.output_shape, self._eval_chain.output_shape
        )

    @property
    def params(self) -> InstantiableParams:
        return self._params

    @property
    def num_examples(self) -> int:
        """Examples in the split, N."""
        return self._source.num_examples

    @property
    def num_batches(self) -> int:
        """Batches that hold every example once."""
        return -(-self.num_examples // self._params.batch_size)

    @property
    def class_names(self) -> list[str]:
        """The name of each class, in the order of the labels."""
        names, labels = self._dataset.class_names, self._params.labels
        check_labels(self._params, len(names))
        return names if labels is None else [names[label] for label in labels]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the images in batches."""
        return self._image_shape

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
            ValueError: If `start_step` is negative, a batch exceeds the split, or the
                data can't be read.
        """
        p, num_examples = self._params, self.num_examples
        if start_step < 0:
            raise ValueError(
                f"start_step must not be negative; got {start_step}. "
                "Give the number of steps already trained."
            )
        if p.batch_size > num_examples:
            raise ValueError(
                f"batch_size must not exceed the {num_examples} examples of "
                f"{p.dataset} split {p.split!r} in training; got {p.batch_size}. "
                "Set a smaller batch_size or a larger split."
            )
        seed, start = p.random_seed if p.shuffle else None, start_step * p.batch_size
        draws = training_draws(seed, start, num_examples)

        def examples(number: int) -> np.ndarray:
            first = start + number * p.batch_size
            last = first + p.batch_size + CHUNK_SIZE
            return stream_indices(seed, first, last, num_examples)

        return self._NamingFaults(self._Batches(draws, self._train_chain), examples)

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns one pass over the split, in its order.

        The last batch is filled up with copies of the last example of weight 0.

        Raises:
            ValueError: If the data can't be read.
        """
        size, num_examples = self._params.batch_size, self.num_examples
        draws = one_pass(num_examples, self.num_batches * size)
        batches = self._Batches(draws, self._eval_chain).apply(
            tf.data.experimental.assert_cardinality(self.num_batches)
        )
        return self._NamingFaults(
            batches, lambda number: consecutive(number * size, size, num_examples)
        )

    @functools.cached_property
    def _source(self) -> ImageSource:
        """The split, opened."""
        p = self._params
        source = self._dataset.Open(p.split)
        check_num_logits(p, self.class_names)
        if p.pixel_max < self._dataset.format.dtype.max:
            brightest = brightest_pixel(source, self._dataset.format)
            if brightest > p.pixel_max:
                raise ValueError(
                    f"pixel_max must reach the brightest pixel of {p.dataset}, "
                    f"{brightest}; got {p.pixel_max}. Set pixel_max={brightest}."
                )
        if p.labels is None:
            return source
        return LabelSubset(source, self._dataset.format, p.labels)

    def _Batches(
        self, draws: tf.data.Dataset, chain: TransformChain
    ) -> tf.data.Dataset:
        p, image_format = self._params, self._dataset.format
        reader = ImageReader(
            self._source, image_format, chain, p.pixel_max, p.random_seed
        )
        examples = read_examples(self._source, draws, reader, p.num_parallel_calls)
        return in_batches(examples, p.batch_size)

    def _NamingFaults(
        self, batches: tf.data.Dataset, examples: Callable[[int], np.ndarray]
    ) -> tf.data.Dataset:
        return FaultsNamed(batches, self._source, self._dataset.format, examples)
