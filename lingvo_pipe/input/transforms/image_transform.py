"""What every transform of an image is.

Shapes: images of H x W pixels in C channels; the seed of random numbers is int64 [2].
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams

ImageShape = tuple[int | None, int | None, int]


class ImageTransform:
    """Makes another image of an image.

    A transform is a pure function of the image and the seed: the same two give the same
    bytes. One whose params are out of range is refused when it is made.

    Args:
        params: The params of the transform.
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
        """Returns the shape (H, W, C) of what images of `shape` become.

        H and W are None where they differ from image to image.

        Raises:
            ValueError: If the transform is not made for such images.
        """
        return shape

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the transformed image.

        Args:
            image: float32 [H, W, C].
            seed: int64 [2]; of it alone all random numbers are made.
        """
        raise NotImplementedError(f"{type(self).__name__}.Apply")
