"""Checks of an image input's params. Images have H x W pixels in C channels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.checks import is_count, is_number, is_sequence
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import (
    NAME,
    SEED,
    SWITCH,
    Rule,
    count,
    optional,
)
from lingvo_pipe.input.images.image_errors import read_all
from lingvo_pipe.input.images.image_source import (
    ImageFormat,
    ImageSource,
    read_pixels,
)
from lingvo_pipe.input.transforms.image_transform import ImageShape

BYTE_MAX = 255


def check_labels(p: InstantiableParams, num_classes: int) -> None:
    """Raises a ValueError if a label in the params is not below `num_classes`."""
    if p.labels is not None and max(p.labels) >= num_classes:
        expected = f"labels below {num_classes}, the number of classes of {p.dataset}"
        raise UserValueError(path="input.labels", expected=expected, got=p.labels)


def check_num_logits(p: InstantiableParams, class_names: Sequence[str]) -> None:
    """Raises a ValueError if there are more classes than the param `num_logits`."""
    if p.num_logits is not None and len(class_names) > p.num_logits:
        raise UserValueError(
            path="input.num_logits",
            expected=f"at least {len(class_names)}, the number of classes of "
            f"{p.dataset} (the last one is {class_names[-1]!r})",
            got=p.num_logits,
            hint="Use a model with more classes, or choose classes by input.labels.",
        )


def check_pixel_max(p: InstantiableParams, image_format: ImageFormat) -> None:
    """Raises a ValueError if the largest pixel is unset, and not known by the dtype."""
    is_known = p.pixel_max or image_format.pixel_max
    if image_format.dtype != tf.uint8 and not is_known:
        raise UserValueError(
            path="input.pixel_max",
            expected=f"the pixel value that becomes 1.0, since pixels of {p.dataset} "
            f"are {image_format.dtype.name}",
            got=None,
        )


def file_dtype(dtype: tf.DType, pixel_max: float) -> tf.DType:
    """Returns the dtype of a decoded file, for a data set with pixels of `dtype`."""
    is_deep = dtype != tf.uint8 and pixel_max > BYTE_MAX
    return tf.uint16 if dtype == tf.uint16 or is_deep else tf.uint8


def check_pixels(p: InstantiableParams, source: ImageSource, pixel_max: float) -> None:
    """Raises a ValueError if pixels of a source are not from 0 to `pixel_max`.

    Reads all images, unless their dtype has no other values.
    """
    dtype = source.format.dtype
    if dtype.min == 0 and pixel_max >= (source.format.pixel_max or dtype.max):
        return

    def bounds(record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        pixels, _ = read_pixels(source, record)
        return tf.reduce_min(pixels), tf.reduce_max(pixels)

    pixels = np.array([*read_all(source, bounds).as_numpy_iterator()])
    darkest, brightest = pixels.min().item(), pixels.max().item()
    if not darkest >= 0:
        expected = f"pixels of at least 0 in {p.dataset}"
        hint = "Prepare the data set with pixels that begin at 0."
        raise UserValueError(
            path="input.dataset", expected=expected, got=darkest, hint=hint
        )
    is_scaled = dtype.is_floating and brightest <= 1 and pixel_max == BYTE_MAX
    if is_scaled or not brightest <= pixel_max:
        bound = "about" if is_scaled else "at least"
        expected = f"{bound} {brightest}, the brightest pixel of {p.dataset}"
        raise UserValueError(path="input.pixel_max", expected=expected, got=pixel_max)


def image_size(p: InstantiableParams) -> tuple[int, int] | None:
    """Returns the param `image_size` as (H, W), or None if it is unset."""
    return None if p.image_size is None else _sides(p.image_size)


def common_shape(
    train: ImageShape, evaluation: ImageShape, size: tuple[int, int] | None
) -> tuple[int, int, int]:
    """Returns the (H, W, C) of all images after the transforms.

    Raises:
        ValueError: if the shapes of training and evaluation differ, or are not fixed.
    """
    height, width, channels = train
    if height is None or width is None or train != evaluation:
        raise UserValueError(
            path="input.train_transforms and input.eval_transforms",
            expected="the same fixed (height, width, channels)",
            got=(train, evaluation),
            hint="Set input.image_size to the size that the model takes, or end both "
            "with a Resize to it.",
        )
    if size not in (None, (height, width)):
        expected = f"None or {[height, width]}, to which the transforms resize"
        raise UserValueError(path="input.image_size", expected=expected, got=list(size))
    return height, width, channels


def shape_hint(got: Sequence[int], expected: ImageShape) -> str:
    """Returns advice on how to bring an array from the shape `got` to `expected`."""
    if len(got) == 2:
        return "Add a last dimension, of one channel."
    if len(got) != 3:
        return "Give one image at a time."
    convert = {(1, 3): "tf.image.grayscale_to_rgb", (3, 1): "tf.image.rgb_to_grayscale"}
    if function := convert.get((got[2], expected[2])):
        return f"Convert it by {function}."
    if got[2] != expected[2]:
        return f"Keep only its {expected[2]} channels of color."
    return "Resize it."


def _sides(value: Any) -> tuple[int, int]:
    """Returns (height, width) of `image_size`, or (0, 0) for a list not of length 2."""
    sides = value if is_sequence(value) else (value, value)
    return (sides[0], sides[1]) if len(sides) == 2 else (0, 0)


def _are_labels(value: Any) -> bool:
    is_list = is_sequence(value) and all(is_count(label, 0) for label in value)
    return is_list and 0 < len(value) == len(set(value))


INPUT_RULES = {
    "dataset": NAME,
    "split": NAME,
    "batch_size": count(),
    "shuffle": SWITCH,
    "random_seed": SEED,
    "pixel_max": optional(Rule(lambda x: is_number(x) and x > 0, "a positive number")),
    "image_size": optional(
        Rule(
            lambda x: all(map(is_count, _sides(x))),
            "a positive integer, or two, for height and width",
        )
    ),
    "channels": Rule(lambda x: x in (None, 1, 3), "1, 3 or None"),
    "num_parallel_calls": optional(count()),
    "train_transforms": Rule(is_sequence, "a list"),
    "eval_transforms": Rule(is_sequence, "a list"),
    "labels": optional(Rule(_are_labels, "a list of different integers of at least 0")),
    "num_logits": optional(count()),
}
