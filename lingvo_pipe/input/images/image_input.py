"""An input of classified images: B of N examples in a batch, images `[H, W, C]`."""

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserLookupError, UserValueError
from lingvo_pipe.core.regular_file import check_local
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import check_params
from lingvo_pipe.input.data_fingerprint import DataFingerprint
from lingvo_pipe.input.example_order import stream_indices
from lingvo_pipe.input.images import (
    image_errors,
    image_input_checks as checks,
    image_pipeline as pipeline,
    image_source,
)
from lingvo_pipe.input.images.image_folder import ImageFolder
from lingvo_pipe.input.images.label_subset import LabelSubset
from lingvo_pipe.input.images.tfds_images import TfdsImages
from lingvo_pipe.input.transforms import transform_chain
from lingvo_pipe.nested_map import NestedMap


class ImageClassificationInput:
    """Batches of one split of a data set of classified images.

    A batch is a NestedMap of

    - image: float32 `[B, H, W, C]`, pixels from 0 to 1 before transforms.
    - label: int32 `[B]`.
    - weight: float32 `[B]`, 1 for an example and 0 for padding.

    Training batches depend only on the params and the step. The data set is opened when
    it is first read. If an image cannot be read, the error names the image. Raises
    ValueError if a param is wrong, or there is no such data set of classified images.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define(
            "dataset",
            "optdigits",
            "Name of a data set: of TensorFlow Datasets, such as cifar10; the embedded "
            "optdigits; or PATH or image_folder:PATH for PATH/SPLIT/CLASS/IMAGE.jpg.",
        )
        p.Define("split", "train", "Split to read, such as test or train[:90%].")
        p.Define(
            "data_dir",
            None,
            "Folder of data sets, and of PATH. If None, the default of tfds.",
        )
        p.Define(
            "labels",
            None,
            "Labels of the examples to read, renumbered 0, 1, ... in this order; the "
            "split is read once to find them. If None, all examples.",
        )
        p.Define(
            "num_logits",
            None,
            "Number of the model's classes. A data set with more is an error before "
            "training. If None, any number is allowed.",
        )
        p.Define("batch_size", None, "Examples in a batch, over all micro-batches.")
        p.Define("shuffle", True, "If True, training shuffles the examples each epoch.")
        p.Define(
            "random_seed",
            0,
            "Seed of the training order, and of the transforms' random numbers.",
        )
        p.Define(
            "pixel_max",
            checks.BYTE_MAX,
            "Pixel value that becomes 1.0. If None, 255 for bytes, or 16 for "
            "optdigits.",
        )
        p.Define(
            "image_size",
            None,
            "Height and width of the images, a number or both. Images are resized to "
            "it before the transforms, if these would not give it. If None, only "
            "transforms resize.",
        )
        p.Define(
            "channels",
            None,
            "Channels that images have before the transforms: 1 for gray, 3 for RGB. "
            "If None, as many as the data set has; images in folders have 3.",
        )
        p.Define(
            "train_transforms",
            [],
            "Transforms of training images, in order: params of ImageTransforms, from "
            "lingvo_pipe/input/transforms or your own.",
        )
        p.Define("eval_transforms", [], "Transforms of evaluation images, in order.")
        p.Define(
            "num_parallel_calls",
            None,
            "Images to decode and transform in parallel. If None, tf.data tunes it.",
        )
        return p

    @classmethod
    def ReplaceDataset(cls, p: InstantiableParams, name: str) -> None:
        """Changes the params `p` to another data set, called `name`.

        The new images get the shape of the present ones, by `image_size` and `channels`
        if these are unset. `pixel_max` and `labels` become None.
        """
        if name == p.dataset:
            return
        shape: Sequence[int | None] = None, None, None
        with contextlib.suppress(UserValueError):
            shape = p.Instantiate().image_shape
        if p.image_size is None and shape[0] is not None:
            p.image_size = shape[0] if shape[0] == shape[1] else list(shape[:2])
        p.Set(dataset=name, pixel_max=None, labels=None)
        p.channels = p.channels or shape[2]

    def __init__(self, params: InstantiableParams) -> None:
        check_params(params, checks.INPUT_RULES)
        self.params = params
        self._dataset = find_dataset(params.dataset, params.data_dir)
        checks.check_pixel_max(params, self._dataset.format)
        shape, size = self._dataset.format.shape, checks.image_size(params)
        self._train_chain, self._eval_chain = (
            transform_chain.fitting_chain(templates, shape, size, params.channels)
            for templates in (params.train_transforms, params.eval_transforms)
        )
        self.image_shape = checks.common_shape(
            self._train_chain.output_shape, self._eval_chain.output_shape, size
        )

    @property
    def num_examples(self) -> int:
        """The number of examples in the split, N."""
        return self._source.num_examples

    @property
    def num_batches(self) -> int:
        """Number of batches in one pass over the split."""
        return -(-self.num_examples // self.params.batch_size)

    @property
    def class_names(self) -> list[str]:
        """The name of each class, in the order of the labels."""
        names, labels = self._dataset.class_names, self.params.labels
        checks.check_labels(self.params, len(names))
        return names if labels is None else [names[label] for label in labels]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def note(self) -> str:
        """A sentence on how images are converted before the transforms, or ""."""
        changes = self._train_chain.conversion or self._eval_chain.conversion
        return f"Images of {self.params.dataset} are {changes}." if changes else ""

    @property
    def pixel_note(self) -> str:
        """A sentence on the range of pixels, and on the transforms in evaluations."""
        transforms = ", ".join(x.cls.__name__ for x in self.params.eval_transforms)
        then = f", then transformed by {transforms}" if transforms else ""
        return f"Pixels from 0 to {self._pixel_max} are divided by it{then}."

    @property
    def element_spec(self) -> NestedMap:
        batch_size = self.params.batch_size
        return NestedMap(
            image=tf.TensorSpec((batch_size, *self.image_shape), tf.float32),
            label=tf.TensorSpec((batch_size,), tf.int32),
            weight=tf.TensorSpec((batch_size,), tf.float32),
        )

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        """Returns the endless batches of training, from step `start_step` on.

        Logs a warning if `place`, from `Place`, is from other data.

        Raises:
            ValueError: if a batch has more examples than the split.
        """
        p, num_examples = self.params, self.num_examples
        check_counts(start_step=start_step, minimum=0)
        if p.batch_size > num_examples:
            raise UserValueError(
                path="input.batch_size",
                expected=f"at most {num_examples}, the examples of {p.dataset} "
                f"split {p.split!r}",
                got=p.batch_size,
            )
        self.data_fingerprint.check(place)
        seed, start = p.random_seed if p.shuffle else None, start_step * p.batch_size
        draws = pipeline.training_draws(seed, start, num_examples)

        def examples(number: int) -> np.ndarray:
            first = start + number * p.batch_size
            last = first + p.batch_size + pipeline.CHUNK_SIZE
            return stream_indices(seed, first, last, num_examples)

        batches = self._batches(draws, self._train_chain)
        return image_errors.NamedErrorsDataset(batches, self._source, examples)

    def Place(self, step: int) -> str:
        """Returns a fingerprint of the examples, which is the same at any step."""
        return self.data_fingerprint.text

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches with each example once, in order. Padding has weight 0."""
        size, num_examples = self.params.batch_size, self.num_examples
        draws = pipeline.one_pass(num_examples, self.num_batches * size)
        batches = self._batches(draws, self._eval_chain).apply(
            tf.data.experimental.assert_cardinality(self.num_batches)
        )
        return image_errors.NamedErrorsDataset(
            batches,
            self._source,
            lambda i: image_errors.consecutive(i * size, size, num_examples),
        )

    def EvalImage(self, image: tf.Tensor) -> tf.Tensor:
        """Prepares an image that is in no data set, like the images of an evaluation.

        `image` is an image file's content, string `[]`, or pixels from 0 to `pixel_max`
        in the data set's shape. The result is float32 `[H, W, C]`.

        Raises:
            ValueError: if the shape is not the data set's.
            tf.errors.InvalidArgumentError: if a pixel or the content is not valid.
        """
        chain, seed = self._eval_chain, tf.zeros([2], tf.int64)
        shape, pixel_max = self._dataset.format.shape, self._pixel_max
        if image.dtype == tf.string:
            dtype = checks.file_dtype(self._dataset.format.dtype, pixel_max)
            image = image_source.decode_image(image, shape[-1], None, dtype)
        if not image.shape.is_compatible_with(shape):
            expected = f"pixels [H, W, C] of shape {shape}"
            got = tuple(image.shape)
            hint = checks.shape_hint(got, shape)
            raise UserValueError(path="image", expected=expected, got=got, hint=hint)
        image = tf.cast(tf.ensure_shape(image, shape), tf.float32)
        tf.debugging.Assert(
            tf.reduce_all((image >= 0) & (image <= pixel_max)),
            [f"Expected pixels from 0 to {pixel_max}; got up to", tf.reduce_max(image)],
        )
        choose_window = chain.first_window(seed)
        if choose_window is not None:
            image = image_source.cut(image, choose_window)
        return self._transformed(image, chain, seed)

    def _transformed(
        self, pixels: tf.Tensor, chain: transform_chain.TransformChain, seed: tf.Tensor
    ) -> tf.Tensor:
        """Scales pixels `[H, W, C]`, and applies all transforms but an initial crop."""
        image = tf.cast(pixels, tf.float32) / self._pixel_max
        image = chain.apply_after_window(image, seed)
        return tf.ensure_shape(image, chain.output_shape)

    @functools.cached_property
    def _source(self) -> image_source.ImageSource:
        p = self.params
        source = self._dataset.Open(p.split)
        checks.check_num_logits(p, self.class_names)
        checks.check_pixels(p, source, self._pixel_max)
        return source if p.labels is None else LabelSubset(source, p.labels)

    @functools.cached_property
    def data_fingerprint(self) -> DataFingerprint:
        """A fingerprint of the split's number of examples and labels."""
        labels = getattr(self._source, "labels", ())
        return DataFingerprint(self.num_examples, [np.asarray(labels)])

    @property
    def _pixel_max(self) -> float:
        in_format = self._dataset.format.pixel_max
        return self.params.pixel_max or in_format or checks.BYTE_MAX

    def _batches(
        self, draws: tf.data.Dataset, chain: transform_chain.TransformChain
    ) -> tf.data.Dataset:
        p, source = self.params, self._source
        # Random numbers depend on the seed, the epoch and the example.
        signed = np.uint64(p.random_seed).astype(np.int64)

        def example(draw: pipeline.Draw, record: Any) -> NestedMap:
            seed = tf.constant([signed, 0], tf.int64)
            seed = tf.random.fold_in(tf.random.fold_in(seed, draw.epoch), draw.index)
            pixels, label = image_source.read_pixels(
                source, record, chain.first_window(seed)
            )
            image = self._transformed(pixels, chain, seed)
            return NestedMap(image=image, label=label, weight=draw.weight)

        examples = pipeline.read_examples(source, draws, example, p.num_parallel_calls)
        return pipeline.in_batches(examples, p.batch_size)


_FOLDER = "image_folder:"


class _UnknownDatasetError(UserValueError, UserLookupError):
    """Error: the name of no known data set and of no folder."""


def find_dataset(name: str, data_dir: str | None) -> image_source.ImageDataset:
    """Returns the data set called `name`, without opening it.

    The PATH of `image_folder:PATH` is absolute or within `data_dir`. PATH alone names a
    folder, too, if the folder has a folder `train`, or if TensorFlow Datasets has no
    data set of this name.

    Raises:
        ValueError: if no such data set is known. For an unknown name, the error is also
            a LookupError.
    """
    path = name.removeprefix(_FOLDER)
    check_local("dataset", path)
    parent = data_dir or tfds.core.constants.DATA_DIR
    folder = ImageFolder(os.path.join(parent, path))
    if path != name or folder.has_folder("train"):
        return folder
    try:
        return TfdsImages(name, data_dir)
    except UserValueError as error:
        if not isinstance(error.__cause__, tfds.core.DatasetNotFoundError):
            raise
        if folder.has_folder(""):
            return folder
        raise _UnknownDatasetError(
            path="dataset",
            expected="a name in TensorFlow Datasets, or a folder of your own images in "
            f"{parent}, with train/CLASS/IMAGE.jpg and test/CLASS/IMAGE.jpg",
            got=path,
            names=ImageFolder(parent).folders(),
            hint=error.hint,
        ) from error
