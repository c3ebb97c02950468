"""Transforms of an image's values: colors and normalization.

Shapes: images of H x W pixels in C channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import (
    ImageShape,
    ImageTransform,
    check_is_rgb,
    check_number,
)

_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)


class ColorDistortion(ImageTransform):
    """Random brightness, saturation, hue and contrast, in one of four orders.

    From A. G. Howard, "Some Improvements on Deep Convolutional Neural Network Based
    Image Classification" (2013), with the strengths and orders of Inception's
    preprocessing. Values are clipped to 0 to 1 after all four. Images have 3 channels.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params; a strength of 0 changes nothing."""
        p = super().Params()
        p.Define(
            "brightness",
            32 / 255,
            "Largest number added to, or subtracted from, all values.",
        )
        p.Define(
            "saturation", 0.5, "Saturation is scaled by 1 plus or minus up to this."
        )
        p.Define("hue", 0.2, "Hue is turned by up to this share of the circle.")
        p.Define("contrast", 0.5, "Contrast is scaled by 1 plus or minus up to this.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_number(params, "brightness", minimum=0, maximum=1)
        check_number(params, "saturation", minimum=0, maximum=1)
        check_number(params, "hue", minimum=0, maximum=0.5)
        check_number(params, "contrast", minimum=0, maximum=1)

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        check_is_rgb(self.params, shape)
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        changes = self._changes(seed)
        order = tf.random.stateless_uniform(
            [], tf.random.fold_in(seed, tf.constant(len(changes), tf.int64)),
            minval=0, maxval=len(_ORDERS), dtype=tf.int32,
        )  # fmt: skip
        branches = [
            functools.partial(_apply_all, [changes[name] for name in names], image)
            for names in _ORDERS
        ]
        return tf.clip_by_value(tf.switch_case(order, branches), 0.0, 1.0)

    def _changes(self, seed: tf.Tensor) -> dict[str, Callable]:
        """Returns the four changes by name, with their random numbers."""
        p = self.params
        functions = {
            "brightness": (0.0, p.brightness, lambda x, n: x + n),
            "saturation": (1.0, p.saturation, tf.image.adjust_saturation),
            "hue": (0.0, p.hue, tf.image.adjust_hue),
            "contrast": (1.0, p.contrast, tf.image.adjust_contrast),
        }
        return {
            name: _change(middle, strength, function, seed, index)
            for index, (name, (middle, strength, function)) in enumerate(
                functions.items()
            )
        }


def _change(
    middle: float, strength: float, function: Callable, seed: tf.Tensor, index: int
) -> Callable:
    """Returns `function` with a random number within `strength` of `middle`."""
    if not strength:
        return lambda image: image
    number = tf.random.stateless_uniform(
        [],
        tf.random.fold_in(seed, tf.constant(index, tf.int64)),
        minval=middle - strength,
        maxval=middle + strength,
    )
    return lambda image: function(image, number)


def _apply_all(changes: list[Callable], image: tf.Tensor) -> tf.Tensor:
    for change in changes:
        image = change(image)
    return image


# Red, green and blue of one unit of Y, Cb and Cr: ITU-R BT.601, as in JPEG.
_RGB_OF_Y_CB_CR = [
    [1.0, 1.0, 1.0],
    [0.0, -0.344136, 1.772],
    [1.402, -0.714136, 0.0],
]


class ChromaShift(ImageTransform):
    """Random numbers added to luma and to each chroma of all pixels.

    This is the default of AmoebaNet's published program. Values are clipped to 0 to 1.
    Images have 3 channels.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params."""
        p = super().Params()
        p.Define("max_luma", 32 / 255, "Largest change of luma.")
        p.Define("max_chroma", 0.1, "Largest change of Cb, and of Cr.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_number(params, "max_luma", minimum=0)
        check_number(params, "max_chroma", minimum=0)

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        check_is_rgb(self.params, shape)
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        limits = tf.constant([p.max_luma, p.max_chroma, p.max_chroma], tf.float32)
        shift = limits * tf.random.stateless_uniform([3], seed, minval=-1.0, maxval=1.0)
        shift = tf.reduce_sum(shift[:, tf.newaxis] * _RGB_OF_Y_CB_CR, axis=0)
        return tf.clip_by_value(image + shift, 0.0, 1.0)


class Normalization(ImageTransform):
    """A shift by `mean`, then a division by `stddev`.

    The defaults map values from 0 to 1 to values from -1 to 1.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params: a number, or a list with one for each channel."""
        p = super().Params()
        p.Define("mean", 0.5, "Value that becomes 0.")
        p.Define("stddev", 0.5, "The distance from the mean that becomes 1.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        if not _numbers(params.mean):
            raise UserValueError(
                "mean: expected a number, or a list with one for each channel, got "
                f"{params.mean!r}. Set it in the params of Normalization."
            )
        if not _numbers(params.stddev) or min(_numbers(params.stddev)) <= 0:
            raise UserValueError(
                "stddev: expected a positive number, or a list with one for each "
                f"channel, got {params.stddev!r}. Set it in the params of "
                "Normalization."
            )

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        for name in ("mean", "stddev"):
            value = self.params.Get(name)
            if len(_numbers(value)) not in (1, shape[2]):
                raise UserValueError(
                    f"{name}: expected a number for each of {shape[2]} channels, got "
                    f"{value!r}. Set it in the params of Normalization."
                )
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        mean, stddev = (_numbers(self.params.Get(name)) for name in ("mean", "stddev"))
        return (image - tf.constant(mean)) / tf.constant(stddev)


def _numbers(value: Any) -> list[float]:
    """Returns a number or a list of numbers as floats; [] for other values."""
    values = value if isinstance(value, list | tuple) else [value]
    is_number = all(isinstance(number, int | float) for number in values)
    return [float(number) for number in values] if is_number else []
