"""The image's values, moved and scaled."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform


class Normalization(ImageTransform):
    """Subtracts `mean` from all values and divides them by `stddev`.

    As they are, values from 0 to 1 become values from -1 to 1.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: a number for all channels, or a list of one for each."""
        p = super().Params()
        p.Define("mean", 0.5, "What becomes 0.")
        p.Define("stddev", 0.5, "The distance from the mean that becomes 1.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        if not _numbers(params.mean):
            raise ValueError(
                "mean must be a number, or a list of one for each channel; got "
                f"{params.mean!r}. Set it in the params of Normalization."
            )
        if not _numbers(params.stddev) or min(_numbers(params.stddev)) <= 0:
            raise ValueError(
                "stddev must be a positive number, or a list of one for each channel; "
                f"got {params.stddev!r}. Set it in the params of Normalization."
            )

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        for name in ("mean", "stddev"):
            value = self.params.Get(name)
            if len(_numbers(value)) not in (1, shape[2]):
                raise ValueError(
                    f"{name} must have a number for each of {shape[2]} channels; got "
                    f"{value!r}. Set it in the params of Normalization."
                )
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        mean, stddev = (_numbers(self.params.Get(name)) for name in ("mean", "stddev"))
        return (image - tf.constant(mean)) / tf.constant(stddev)


def _numbers(value: Any) -> list[float]:
    """Returns a number, or several, as a list of floats; [] if it is neither."""
    values = value if isinstance(value, list | tuple) else [value]
    is_number = all(isinstance(number, int | float) for number in values)
    return [float(number) for number in values] if is_number else []
