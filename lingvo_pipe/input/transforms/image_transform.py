"""The base of transforms of images `[H, W, C]`. Random seeds are int64 `[2]`."""

import copy
from typing import Any, ClassVar

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import Rule, check_params

ImageShape = tuple[int | None, int | None, int]


class ImageTransform:
    """The base of transforms, which are pure functions of an image and a seed.

    Raises:
        ValueError: if a param is out of range.
    """

    # Default and description of each param, and the rule for its values, by name.
    PARAMS: ClassVar[dict[str, tuple[Any, str]]] = {}
    RULES: ClassVar[dict[str, Rule]] = {}

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the transform."""
        p = InstantiableParams(cls)
        for name, (default, description) in cls.PARAMS.items():
            p.Define(name, copy.copy(default), description)
        return p

    def __init__(self, params: InstantiableParams) -> None:
        self.params = params
        check_params(params, self.RULES)

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        """Returns (H, W, C) of transformed images. H and W are None if they vary."""
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Transforms an image, float32 `[H, W, C]`. All randomness is from the seed."""
        raise NotImplementedError(f"{type(self).__name__}.Apply")


def nth_seed(seed: tf.Tensor, index: int) -> tf.Tensor:
    """Derives the seed with number `index` from `seed`."""
    return tf.random.fold_in(seed, tf.constant(index, tf.int64))
