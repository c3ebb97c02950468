"""The base of transforms of images [H, W, C].

Seeds of random numbers are int64 [2].
"""

import copy
import math
from typing import Any, ClassVar

import tensorflow as tf

from lingvo_pipe.core.checks import is_count, is_number
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.param_checks import check_params

ImageShape = tuple[int | None, int | None, int]


class ImageTransform:
    """A pure function of image and seed.

    Raises:
        ValueError: if a param is out of range.
    """

    # Default and description of each param, by name.
    PARAMS: ClassVar[dict[str, tuple[Any, str]]] = {}
    # The smallest value of params that are integers, by name; and the smallest and the
    # largest value of other numbers.
    INTEGERS: ClassVar[dict[str, int]] = {}
    NUMBERS: ClassVar[dict[str, tuple[float, float]]] = {}

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the transform."""
        p = InstantiableParams(cls)
        for name, (default, description) in cls.PARAMS.items():
            p.Define(name, copy.copy(default), description)
        return p

    def __init__(self, params: InstantiableParams) -> None:
        self.params = params
        for name, least in self.INTEGERS.items():
            is_valid = is_count(params.Get(name), least)
            self._check(name, is_valid, f"an integer of at least {least}")
        for name, (minimum, maximum) in self.NUMBERS.items():
            value = params.Get(name)
            is_valid = is_number(value) and minimum <= value <= maximum
            of_any = f"a number of at least {minimum}"
            bounded = f"a number from {minimum} to {maximum}"
            self._check(name, is_valid, of_any if math.isinf(maximum) else bounded)

    def _check(self, name: str, is_valid: bool, expected: str) -> None:
        check_params(self.params, {name: (is_valid, expected)}, "Set it")

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        """Returns transformed images' (H, W, C), H and W None if they differ."""
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Transforms an image, float32 [H, W, C].

        All randomness is from the seed.
        """
        raise NotImplementedError(f"{type(self).__name__}.Apply")


def nth_seed(seed: tf.Tensor, index: int) -> tf.Tensor:
    """Returns a seed of its own for each index."""
    return tf.random.fold_in(seed, tf.constant(index, tf.int64))
