"""The base of image transforms, and checks of their params.

Shapes: images of H x W pixels in C channels; the seed of random numbers is int64 [2].
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams

ImageShape = tuple[int | None, int | None, int]


class ImageTransform:
    """A transform of an image: a pure function of the image and a seed.

    A param out of range raises a ValueError in the constructor.

    Args:
        params: the params of the transform.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the transform."""
        return InstantiableParams(cls)

    def __init__(self, params: InstantiableParams) -> None:
        self._params = params

    @property
    def params(self) -> InstantiableParams:
        return self._params

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        """Returns the shape (H, W, C) of transformed images of `shape`.

        H and W are None if images differ.

        Raises:
            ValueError: if the transform does not support such images.
        """
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the transformed image.

        Args:
            image: float32 [H, W, C].
            seed: int64 [2], the only source of random numbers.
        """
        raise NotImplementedError(f"{type(self).__name__}.Apply")


def check_number(
    params: InstantiableParams, name: str, minimum: float, maximum: float = math.inf
) -> None:
    """Raises a ValueError unless the param is in `minimum` to `maximum`."""
    _check(params, name, (int, float), "a number", minimum, maximum)


def check_int(params: InstantiableParams, name: str, minimum: int) -> None:
    """Raises a ValueError unless the param is an integer of at least `minimum`."""
    _check(params, name, (int,), "an integer", minimum, math.inf)


def check_is_rgb(params: InstantiableParams, shape: ImageShape) -> None:
    """Raises a ValueError unless images of `shape` (H, W, C) have 3 channels."""
    if shape[2] != 3:
        raise UserValueError(
            f"{params.cls.__name__}: expected images of 3 channels (red, green, blue), "
            f"got {shape[2]}. Leave it out for these images."
        )


def _check(
    params: InstantiableParams,
    name: str,
    types: tuple[type, ...],
    kind: str,
    minimum: float,
    maximum: float,
) -> None:
    value = params.Get(name)
    is_kind = isinstance(value, types) and not isinstance(value, bool)
    if is_kind and minimum <= value <= maximum:
        return
    bounds = (
        f"of at least {minimum}"
        if math.isinf(maximum)
        else f"from {minimum} to {maximum}"
    )
    raise UserValueError(
        path=name,
        expected=f"{kind} {bounds}",
        got=value,
        hint=f"Set it in the params of {params.cls.__name__}.",
    )
