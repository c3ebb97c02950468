"""The base of image transforms.

Shapes: images of H x W pixels in C channels; the seed of random numbers is int64 [2].
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams

ImageShape = tuple[int | None, int | None, int]


class ImageTransform:
    """A transform of an image: a pure function of the image and a seed.

    A param out of range raises a ValueError in the constructor.

    Attributes:
        INTEGERS: the smallest value of params that are integers, by name.
        NUMBERS: the smallest and the largest value of other numbers, by name.
        params: the params of the transform.
    """

    INTEGERS: ClassVar[dict[str, int]] = {}
    NUMBERS: ClassVar[dict[str, tuple[float, float]]] = {}

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the transform."""
        return InstantiableParams(cls)

    def __init__(self, params: InstantiableParams) -> None:
        self.params = params
        for name, least in self.INTEGERS.items():
            self._check(name, int, "an integer", least, math.inf)
        for name, (minimum, maximum) in self.NUMBERS.items():
            self._check(name, (int, float), "a number", minimum, maximum)

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

    def _check(
        self, name: str, types: Any, kind: str, minimum: float, maximum: float
    ) -> None:
        value = self.params.Get(name)
        is_kind = isinstance(value, types) and not isinstance(value, bool)
        if is_kind and minimum <= value <= maximum:
            return
        is_open = math.isinf(maximum)
        bounds = f"of at least {minimum}" if is_open else f"from {minimum} to {maximum}"
        raise UserValueError(
            path=name,
            expected=f"{kind} {bounds}",
            got=value,
            hint=f"Set it in the params of {self.params.cls.__name__}.",
        )
