"""Several transforms, one after the other.

Shapes: images of H x W pixels in C channels; the seed of random numbers is int64 [2].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.crop_transform import CropTransform
from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform

ChooseWindow = Callable[[tf.Tensor], tf.Tensor]


class TransformChain:
    """Applies transforms in order, each with random numbers of its own.

    A crop that comes first is told apart, for it can be done while decoding.

    Args:
        templates: The params of each transform.
        shape: The shape (H, W, C) of the images; H and W are None if they differ.

    Raises:
        ValueError: If one of the params is out of range or not that of a transform, or
            a transform is not made for the images it would get.
    """

    def __init__(
        self, templates: Sequence[InstantiableParams], shape: ImageShape
    ) -> None:
        self._transforms: list[ImageTransform] = []
        for template in templates:
            transform = _make(template)
            shape = transform.OutputShape(shape)
            self._transforms.append(transform)
        self._shape = shape

    @property
    def output_shape(self) -> ImageShape:
        """The shape (H, W, C) of the images that come out."""
        return self._shape

    def FirstWindow(self, seed: tf.Tensor) -> ChooseWindow | None:
        """Returns what chooses the window to begin with; None if the chain has none.

        Args:
            seed: That of the image.

        Returns:
            A function from the image's shape, int32 [3], to the window, int32 [4].
        """
        if not self._transforms or not isinstance(self._transforms[0], CropTransform):
            return None
        first = self._transforms[0]
        return lambda shape: first.Window(shape, _nth_seed(seed, 0))

    def ApplyAfterWindow(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the image after all transforms but a first that is a crop.

        Args:
            image: float32 [H, W, C], of which a first crop has been made.
            seed: That of the image.
        """
        for place, transform in enumerate(self._transforms):
            if place or not isinstance(transform, CropTransform):
                image = transform.Apply(image, _nth_seed(seed, place))
        return image


def _make(template: Any) -> ImageTransform:
    is_transform = (
        isinstance(template, InstantiableParams)
        and isinstance(template.cls, type)
        and issubclass(template.cls, ImageTransform)
    )
    if not is_transform:
        raise ValueError(
            "Transforms must be given as params of sub-classes of ImageTransform; got "
            f"{template!r}. Write for example RandomFlip.Params()."
        )
    return template.Instantiate()


def _nth_seed(seed: tf.Tensor, place: int) -> tf.Tensor:
    return tf.random.fold_in(seed, tf.constant(place, tf.int64))
