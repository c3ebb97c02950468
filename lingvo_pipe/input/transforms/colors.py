"""Transforms of the colors of images of H x W pixels in C channels."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams.param_rules import Rule, check_params, number_between
from lingvo_pipe.input.transforms.image_transform import (
    ImageShape,
    ImageTransform,
    nth_seed,
)

_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)


class Channels(ImageTransform):
    """A conversion of gray images to RGB, or of RGB to gray by luma of ITU-R BT.601."""

    PARAMS: ClassVar = {"channels": (3, "1 for gray, 3 for RGB.")}

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        p = self.params
        expected = f"1 or 3, from 1 or 3 and not {shape[2]}"
        rule = Rule(lambda x: {x, shape[2]} <= {1, 3}, expected)
        check_params(p, {"channels": rule})
        return *shape[:2], p.channels

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if image.shape[-1] == self.params.channels:
            return image
        if self.params.channels == 1:
            return tf.image.rgb_to_grayscale(image)
        return tf.image.grayscale_to_rgb(image)


class _RgbTransform(ImageTransform):
    def OutputShape(self, shape: ImageShape) -> ImageShape:
        if shape[2] != 3:
            raise UserValueError(
                path=self.params.cls.__name__,
                expected="images of 3 channels: red, green, blue",
                got=shape[2],
                hint="Leave it out for these images.",
            )
        return shape


class ColorDistortion(_RgbTransform):
    """Random brightness, saturation, hue and contrast, in one of four orders.

    From A. G. Howard, "Some Improvements on Deep Convolutional Neural Network Based
    Image Classification" (2013), with Inception's strengths and orders. Strength 0
    changes nothing. Values are clipped to 0 to 1 at the end. Images have 3 channels.
    """

    PARAMS: ClassVar = {
        "brightness": (
            32 / 255,
            "Largest number added to, or subtracted from, all values.",
        ),
        "saturation": (0.5, "Saturation is scaled by 1 plus or minus up to this."),
        "hue": (0.2, "Hue is turned by up to this share of the circle."),
        "contrast": (0.5, "Contrast is scaled by 1 plus or minus up to this."),
    }
    RULES: ClassVar = {
        **dict.fromkeys(PARAMS, number_between(0, 1)),
        "hue": number_between(0, 0.5),
    }

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        kinds: dict[str, tuple[float, Callable]] = {
            "brightness": (0.0, tf.add),
            "saturation": (1.0, tf.image.adjust_saturation),
            "hue": (0.0, tf.image.adjust_hue),
            "contrast": (1.0, tf.image.adjust_contrast),
        }
        changes = {
            name: _change(middle, self.params.Get(name), function, nth_seed(seed, i))
            for i, (name, (middle, function)) in enumerate(kinds.items())
        }
        order = tf.random.stateless_uniform(
            [], nth_seed(seed, len(changes)), 0, len(_ORDERS), tf.int32
        )

        def apply_all(names: Iterable[str]) -> tf.Tensor:
            return functools.reduce(lambda x, name: changes[name](x), names, image)

        branches = [functools.partial(apply_all, names) for names in _ORDERS]
        return tf.clip_by_value(tf.switch_case(order, branches), 0.0, 1.0)


def _change(
    middle: float, strength: float, function: Callable, seed: tf.Tensor
) -> Callable:
    if not strength:
        return lambda image: image
    number = tf.random.stateless_uniform(
        [], seed, minval=middle - strength, maxval=middle + strength
    )
    return lambda image: function(image, number)


# Red, green and blue of one unit of Y, Cb and Cr: ITU-R BT.601, as in JPEG.
_RGB_OF_Y_CB_CR = [
    [1.0, 1.0, 1.0],
    [0.0, -0.344136, 1.772],
    [1.402, -0.714136, 0.0],
]


class ChromaShift(_RgbTransform):
    """A random shift of luma and of each chroma, the same for all pixels of an image.

    Values are clipped to 0 to 1. This is the default of AmoebaNet's published program.
    Images have 3 channels.
    """

    PARAMS: ClassVar = {
        "max_luma": (32 / 255, "Largest change of luma."),
        "max_chroma": (0.1, "Largest change of Cb, and of Cr."),
    }
    RULES: ClassVar = dict.fromkeys(PARAMS, number_between(0))

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        limits = tf.constant([p.max_luma, p.max_chroma, p.max_chroma], tf.float32)
        shift = limits * tf.random.stateless_uniform([3], seed, minval=-1.0, maxval=1.0)
        shift = tf.reduce_sum(shift[:, tf.newaxis] * _RGB_OF_Y_CB_CR, axis=0)
        return tf.clip_by_value(image + shift, 0.0, 1.0)


class Normalization(ImageTransform):
    """The map (x - mean) / stddev. By default values of 0..1 become -1..1."""

    PARAMS: ClassVar = {
        "mean": (0.5, "Value that becomes 0."),
        "stddev": (0.5, "The distance from the mean that becomes 1."),
    }

    RULES: ClassVar = {
        "mean": Rule(
            lambda x: bool(_numbers(x)),
            "a number, or a list with one for each channel",
        ),
        "stddev": Rule(
            lambda x: min(_numbers(x), default=0) > 0,
            "a positive number, or a list with one for each channel",
        ),
    }

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        expected = f"a number for each of {shape[2]} channels"
        rule = Rule(lambda x: len(_numbers(x)) in (1, shape[2]), expected)
        check_params(self.params, dict.fromkeys(self.RULES, rule))
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        mean, stddev = _numbers(self.params.mean), _numbers(self.params.stddev)
        return (image - tf.constant(mean)) / tf.constant(stddev)


def _numbers(value: Any) -> list[float]:
    """Returns a number or a list of numbers as floats, or [] for other values."""
    values = value if isinstance(value, list | tuple) else [value]
    is_number = all(isinstance(number, int | float) for number in values)
    return [float(number) for number in values] if is_number else []
