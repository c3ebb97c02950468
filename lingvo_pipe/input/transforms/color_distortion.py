"""The image's colours, distorted.

After A. G. Howard, "Some Improvements on Deep Convolutional Neural Network Based Image
Classification" (2013), with the strengths and orders of Inception's preprocessing.

Shapes: images of H x W pixels in 3 channels: red, green, blue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform
from lingvo_pipe.input.transforms.param_checks import check_is_rgb, check_number

_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)


class ColorDistortion(ImageTransform):
    """Changes brightness, saturation, hue and contrast, in one of four orders.

    Values that leave 0 to 1 become 0 or 1, after all four.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: how far each may change; 0 leaves it as it is."""
        p = super().Params()
        p.Define("brightness", 32 / 255, "At most this much is added to all values.")
        p.Define("saturation", 0.5, "Saturation is scaled by 1 plus or minus this.")
        p.Define("hue", 0.2, "Hue is turned by at most this share of the circle.")
        p.Define("contrast", 0.5, "Contrast is scaled by 1 plus or minus this.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        check_number(params, "brightness", least=0, most=1)
        check_number(params, "saturation", least=0, most=1)
        check_number(params, "hue", least=0, most=0.5)
        check_number(params, "contrast", least=0, most=1)

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        check_is_rgb(self.params, shape)
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        changes = self._Changes(seed)
        order = tf.random.stateless_uniform(
            [], tf.random.fold_in(seed, tf.constant(len(changes), tf.int64)),
            minval=0, maxval=len(_ORDERS), dtype=tf.int32,
        )  # fmt: skip
        branches = [
            functools.partial(_apply_all, [changes[name] for name in names], image)
            for names in _ORDERS
        ]
        return tf.clip_by_value(tf.switch_case(order, branches), 0.0, 1.0)

    def _Changes(self, seed: tf.Tensor) -> dict[str, Callable]:
        """Returns the four changes by name, each with its random number drawn."""
        p = self.params
        functions = {
            "brightness": (0.0, p.brightness, lambda x, n: x + n),
            "saturation": (1.0, p.saturation, tf.image.adjust_saturation),
            "hue": (0.0, p.hue, tf.image.adjust_hue),
            "contrast": (1.0, p.contrast, tf.image.adjust_contrast),
        }
        return {
            name: _change(middle, strength, function, seed, place)
            for place, (name, (middle, strength, function)) in enumerate(
                functions.items()
            )
        }


def _change(
    middle: float, strength: float, function: Callable, seed: tf.Tensor, place: int
) -> Callable:
    """Returns `function` with a random number within `strength` of `middle`."""
    if not strength:
        return lambda image: image
    number = tf.random.stateless_uniform(
        [],
        tf.random.fold_in(seed, tf.constant(place, tf.int64)),
        minval=middle - strength,
        maxval=middle + strength,
    )
    return lambda image: function(image, number)


def _apply_all(changes: list[Callable], image: tf.Tensor) -> tf.Tensor:
    for change in changes:
        image = change(image)
    return image
